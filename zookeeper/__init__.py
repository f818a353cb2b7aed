"""ZooKeeper as Kafka uses it: the ground floor below controller, broker_stub and election.

store/         the port; kazoo and the in-memory ZooKeeper behind it
client         watches and fenced writes
znodes  cluster_nodes  paths and JSON: pure                 model        ids, epochs, frozen values
registration  kafka_zk_client  admin_nodes  security_nodes  Kafka's znodes as typed operations
admin          administration of topics                     topic_plans  which are valid, where replicas go: pure
assignment     replica placement: pure
client_config  the zookeeper.* settings
"""
