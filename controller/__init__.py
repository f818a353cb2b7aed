"""Decides: a controller of Kafka in ZooKeeper mode, elected, fenced, and driving brokers with epoch-stamped requests.

    controller        sessions, what others may ask               active     failover, which event goes where
    election/         Kafka's elector, and leader election and retrieval after Flink's
    event_loop        the single writer: one event at a time      events     everything that can happen, past tense
    context           the one mutable state                       model      ids, epochs, frozen values
    partition_state_machine, replica_state_machine                leader_selection   who leads next: pure
    brokers  topics  topic_deletion  isr  controlled_shutdown  reassignment  elections  features
                      one capability each, on a shared `core`     scheduler  events that are due later
    metrics           Kafka's names                               config_changes     what is configured at run time
    request_batch     what one step tells which broker            channel_manager    one task per broker, resent
    kafka_zk_client  zk_registration  admin_nodes   Kafka's nodes as typed operations  zk_data    paths and JSON: pure
    zk_client         watches that only enqueue, fenced writes    store/     ZooKeeper, and its twin in memory
    admin             topics, as an administrator makes them      assignment replica placement: pure

The order is always: decide, persist under the epoch's version, apply to the context, send. It knows no broker: the way
to them is a function that dials, and what it owes a broker of its own node is asked of it by `alter_partition` and
`controlled_shutdown`.
"""
