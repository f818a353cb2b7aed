"""Leader election and retrieval as services, after Flink's.

A contender is granted leadership, confirms its address, and is revoked. A listener is notified of the leader. Rules
E... are those of docs/election-semantics.md.

    api               contender, listener, services, and the drivers' interface    errors      the exceptions
    service           grants, confirmations and revocations, for any driver        retrieval   the same for listeners
    serial_calls      one call at a time, in order
    information       an address and a session id      java_stream   its bytes, as Java writes them
    paths             paths of the nodes, in three layouts
    session           one store for many users; connected, suspended, lost, reconnected
    latch             the queue of contenders          leader_node   the node with the leader's address
    zookeeper  standalone  embedded                    the drivers
    config  services  Flink's settings, and the services of a process

Only `latch`, `leader_node`, `session` and `zookeeper` use the metadata store, through its port. Kafka's own election
is `kce.controller.elector`.
"""
