"""The controller of Kafka in ZooKeeper mode: elected, fenced by epochs, it decides what the cluster is to be.

    kafka_controller  every node's controller module: sessions, election, requests
    elector           Kafka's election of the controller
    controller_role   what a node does while it is the controller: failover and resignation
    dispatch          the table of all events and requests       events       the events, named in the past tense
    event_loop        the single writer: one event at a time     scheduler    delayed events
    context           the mutable state
    partition_state_machine, replica_state_machine               tables of transitions, and what each does
    leader_selection  which replica leads next: pure
    brokers  topics  topic_deletion  isr_changes  controlled_shutdown  reassignment  replica_leader_election  features
                      one capability each, on the shared `runtime`
    request_batch     the control requests of one step           channel_manager, channel   one per broker, with retries
    control_requests  how they are built                         encoded_states, known_replicas  for many partitions
    vectorised        the same with numpy, for very many
    metrics           under Kafka's names                        config           settings

The order is always: decide, write to ZooKeeper under the controller epoch, update the context, send. Only new topics of
the controller's own node enter the context while they are written (`topics`), and are sent afterwards. This package
knows no broker: it is given a function that dials one, and the node's own broker submits requests through
`KafkaController`.
"""
