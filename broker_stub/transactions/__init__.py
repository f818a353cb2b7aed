"""Kafka's transaction coordinator, on the log of `__transaction_state` (docs/transaction-semantics.md).

    coordinator     what each request of a transactional id does; timeouts and expiry
      manager       the transactional ids of this broker; loads, unloads and writes them
        loading     transactional ids from the records of a partition
        storage     the partitions of `__transaction_state`, among the broker's logs
      markers       sends the markers of ended transactions to the partitions' leaders
    verification    transactional records are appended once the coordinator knows of the transaction
      verifier      asks coordinators whether partitions are in a transaction
    connection      to another broker, of markers and verifier
    metadata        one transactional id as a state machine; pure
    records         keys and values of records, in Kafka's formats

Nothing awaits but the manager's background task and the tasks that send requests to other brokers.
"""
