"""Leader election and retrieval as services, after Flink's: a contender is granted leadership, confirms where it can be
found, and is revoked; a listener is told who leads. Rules E... are those of docs/election-semantics.md.

    api               contender, listener, services, and what a driver offers     errors   their tree
    service           issued and confirmed, granted and revoked, for any driver   retrieval   the same for listeners
    serial_calls      one call at a time, in order
    information       an address and a session id      java_stream   the bytes of it, as Java writes them
    paths             where the nodes are, in three layouts
    session           one store for many users; connected, suspended, lost, reconnected
    latch             who is first                     leader_node   what it says of itself
    zookeeper  standalone  embedded                    the drivers
    config  services  Flink's settings, and the services of a process that they make
    kafka             Kafka's elector, a user of the same contract, and where its rules are others

Only `latch`, `leader_node`, `session` and `zookeeper` touch the metadata store, and through its port alone.
"""
