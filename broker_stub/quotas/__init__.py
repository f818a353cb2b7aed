"""What clients may take of a broker (section 8 of docs/broker-semantics.md).

entities         users and client ids, and how `/config/users` and `/config/clients` name them
client_quota     who shares which limit, and by how much it is exceeded: one manager for each kind of quota
mutations        the quota of partitions that are created and deleted
administration   what DescribeClientQuotas finds and AlterClientQuotas accepts
client_quotas    the four of one broker; charges requests

Limits of connections are in ``broker_stub.reactor.quotas``, those of replicas in ``broker_stub.replication.throttle``.
"""
