"""Kafka's classic group coordinator, on the log of `__consumer_offsets` (docs/group-semantics.md).

    coordinator     what each request of a group does
      joining       JoinGroup
      rebalancing   session timers, join and sync phases, on the purgatory
      manager       the groups of this broker; loads, unloads, writes and cleans them up
        loading     groups from the records of a partition
        storage     the partitions of `__consumer_offsets`, among the broker's logs
    group           one group as a state machine; pure
      member        one member, and what its requests are answered
      offsets       what a group has committed
    records         keys and values of records, in Kafka's formats

Nothing but the manager's background task awaits.
"""
