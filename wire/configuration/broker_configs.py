"""All settings of a broker in one table: Kafka 3.9's, and ours, whose names begin with `kce.`.

To add a setting, add a line here and read it with ``properties.Properties`` where it is used. Types, defaults and
allowed values are Kafka's own; the values are narrower if this project needs that.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Final

from kce.wire.configuration.definitions import (
    LARGEST,
    BrokerConfigDef,
    ConfigType,
    Dynamic,
    Support,
    allowed_values,
)

#: in the properties of a broker they have no effect, in Kafka either (rule B8.18)
ONLY_DYNAMIC: Final = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)

#: the authorizer's: Kafka knows no type of them, and DescribeConfigs hides their values (rule B7.25)
UNTYPED: Final = frozenset({"allow.everyone.if.no.acl.found", "super.users"})

#: Kafka reads them without a definition: a value that is not allowed is not refused when a broker starts
UNDEFINED: Final = ONLY_DYNAMIC | UNTYPED

#: keys and certificates of a listener, which change only with its prefix before the name
TLS_STORES: Final = frozenset(
    f"ssl.{name}"
    for name in (
        "key.password", "keystore.certificate.chain", "keystore.key", "keystore.location", "keystore.password",
        "keystore.type", "truststore.certificates", "truststore.location", "truststore.password", "truststore.type",
    )
)  # fmt: skip

# Columns: name; type; default: - for none, max for the largest value of the type, empty; allowed values; where it may
# change at run time; whether DescribeConfigs lists it also where it is not set; which parsers read it.
_TABLE: Final[Mapping[Support, str]] = {
    Support.LIVE: """
advertised.listeners string - any broker described broker
compression.type string producer uncompressed|zstd|lz4|snappy|gzip|producer cluster described topics
follower.replication.throttled.rate long max 0.. cluster hidden broker
leader.replication.throttled.rate long max 0.. cluster hidden broker
listener.security.protocol.map string SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT any broker described broker
listeners string PLAINTEXT://:9092 any broker described broker
log.cleaner.backoff.ms long 15000 0.. cluster described logs
log.cleaner.dedupe.buffer.size long 134217728 any cluster described broker,logs
log.cleaner.delete.retention.ms long 86400000 0.. cluster described topics
log.cleaner.max.compaction.lag.ms long max 1.. cluster described topics
log.cleaner.min.cleanable.ratio double 0.5 0..1 cluster described topics
log.cleaner.min.compaction.lag.ms long 0 0.. cluster described topics
log.cleanup.policy list delete compact|delete cluster described topics
log.flush.interval.messages long max 1.. cluster described topics
log.flush.interval.ms long - 0.. cluster described topics
log.index.interval.bytes int 4096 0.. cluster described topics
log.index.size.max.bytes int 10485760 4.. cluster described topics
log.message.downconversion.enable boolean true any cluster described topics
log.message.timestamp.after.max.ms long max 0.. cluster described topics
log.message.timestamp.before.max.ms long max 0.. cluster described topics
log.message.timestamp.difference.max.ms long max 0.. cluster described topics
log.message.timestamp.type string CreateTime CreateTime|LogAppendTime cluster described topics
log.retention.bytes long -1 any cluster described topics
log.retention.ms long - any cluster described broker,topics
log.roll.jitter.ms long - 0.. cluster described topics
log.roll.ms long - 1.. cluster described topics
log.segment.bytes int 1073741824 14.. cluster described topics
log.segment.delete.delay.ms long 60000 0.. cluster described logs,topics
max.connection.creation.rate int max 0.. cluster described broker
max.connections int max 0.. cluster described broker
max.connections.per.ip int max 0.. cluster described broker
max.connections.per.ip.overrides string empty any cluster described broker
message.max.bytes int 1048588 0.. cluster described logs,topics
min.insync.replicas int 1 1.. cluster described topics
num.io.threads int 8 1.. cluster described broker
num.network.threads int 3 1.. cluster described broker
num.replica.fetchers int 1 any cluster described broker
producer.id.expiration.ms int 86400000 1.. cluster described logs
replica.alter.log.dirs.io.max.bytes.per.second long max 0.. cluster hidden broker
ssl.key.password password - any broker described broker
ssl.keystore.certificate.chain password - any broker described broker
ssl.keystore.key password - any broker described broker
ssl.keystore.location string - any broker described broker
ssl.keystore.password password - any broker described broker
ssl.keystore.type string JKS any broker described broker
ssl.truststore.certificates password - any broker described broker
ssl.truststore.location string - any broker described broker
ssl.truststore.password password - any broker described broker
ssl.truststore.type string JKS any broker described broker
transaction.partition.verification.enable boolean true any cluster described broker
unclean.leader.election.enable boolean false any cluster described controller
""",  # noqa: E501 - the default of listener.security.protocol.map
    Support.HONOURED: """
allow.everyone.if.no.acl.found boolean false any static hidden broker
alter.log.dirs.replication.quota.window.num int 11 1.. static described broker
alter.log.dirs.replication.quota.window.size.seconds int 1 1.. static described broker
authorizer.class.name string empty kafka.security.authorizer.AclAuthorizer| static described broker
auto.create.topics.enable boolean true any static described broker
auto.leader.rebalance.enable boolean true any static described controller
broker.id int -1 -1.. static described broker
broker.id.generation.enable boolean true any static described broker
broker.rack string - any static described broker
connection.failed.authentication.delay.ms int 100 0.. static described broker
connections.max.idle.ms long 600000 any static described broker
connections.max.reauth.ms long 0 any static described broker
control.plane.listener.name string - any static described broker
controlled.shutdown.enable boolean true any static described broker
controlled.shutdown.max.retries int 3 any static described broker
controlled.shutdown.retry.backoff.ms long 5000 0.. static described broker
controller.quota.window.num int 11 1.. static described broker
controller.quota.window.size.seconds int 1 1.. static described broker
controller.socket.timeout.ms int 30000 1.. static described broker
default.replication.factor int 1 1..32767 static described broker
delegation.token.expiry.check.interval.ms long 3600000 1.. static described broker
delegation.token.expiry.time.ms long 86400000 1.. static described broker
delegation.token.master.key password - any static described broker
delegation.token.max.lifetime.ms long 604800000 1.. static described broker
delegation.token.secret.key password - any static described broker
delete.topic.enable boolean true any static described broker
fetch.max.bytes int 57671680 1024.. static described broker
group.coordinator.rebalance.protocols list classic consumer|classic|share|unknown static described broker
group.initial.rebalance.delay.ms int 3000 any static described broker
group.max.session.timeout.ms int 1800000 any static described broker
group.max.size int max 1.. static described broker
group.min.session.timeout.ms int 6000 any static described broker
inter.broker.listener.name string - any static described broker
inter.broker.protocol.version string 3.9-IV0 any static described broker
kce.controller.only boolean false any static hidden node
kce.metrics.port int - 0..65535 static hidden node
leader.imbalance.check.interval.seconds long 300 1.. static described controller
leader.imbalance.per.broker.percentage int 10 any static described controller
log.cleaner.enable boolean true any static described logs
log.dir string /tmp/kafka-logs any static described broker
log.dirs string - any static described broker
log.flush.offset.checkpoint.interval.ms int 60000 0.. static described logs
log.flush.scheduler.interval.ms long max 0.. static described logs,topics
log.flush.start.offset.checkpoint.interval.ms int 60000 0.. static described logs
log.initial.task.delay.ms long 30000 0.. static hidden logs
log.message.format.version string 3.0-IV1 any static described broker,topics
log.retention.check.interval.ms long 300000 1.. static described logs
log.retention.hours int 168 any static described broker,topics
log.retention.minutes int - any static described broker,topics
log.roll.hours int 168 1.. static described topics
log.roll.jitter.hours int 0 0.. static described topics
node.id int -1 -1.. static described broker
num.partitions int 1 1.. static described broker
offset.metadata.max.bytes int 4096 any static described broker
offsets.commit.required.acks short -1 any static described broker
offsets.commit.timeout.ms int 5000 1.. static described broker
offsets.load.buffer.size int 5242880 1.. static described broker
offsets.retention.check.interval.ms long 600000 1.. static described broker
offsets.retention.minutes int 10080 1.. static described broker
offsets.topic.compression.codec int 0 any static described broker
offsets.topic.num.partitions int 50 1.. static described broker
offsets.topic.replication.factor short 3 1.. static described broker
offsets.topic.segment.bytes int 104857600 1.. static described broker
password.encoder.cipher.algorithm string AES/CBC/PKCS5Padding AES/CBC/PKCS5Padding static described broker
password.encoder.iterations int 4096 1024.. static described broker
password.encoder.key.length int 128 128|192|256 static described broker
password.encoder.keyfactory.algorithm string - PBKDF2WithHmacSHA1|PBKDF2WithHmacSHA256|PBKDF2WithHmacSHA512 static described broker
password.encoder.secret password - any static described broker
producer.id.expiration.check.interval.ms int 600000 1.. static hidden logs
queued.max.request.bytes long -1 any static described broker
queued.max.requests int 500 1.. static described broker
quota.window.num int 11 1.. static described broker
quota.window.size.seconds int 1 1.. static described broker
replica.fetch.backoff.ms int 1000 0.. static described broker
replica.fetch.max.bytes int 1048576 0.. static described broker
replica.fetch.min.bytes int 1 any static described broker
replica.fetch.response.max.bytes int 10485760 0.. static described broker
replica.fetch.wait.max.ms int 500 0.. static described broker
replica.high.watermark.checkpoint.interval.ms long 5000 any static described logs
replica.lag.time.max.ms long 30000 1.. static described broker
replica.selector.class string - org.apache.kafka.common.replica.RackAwareReplicaSelector static described broker
replica.socket.timeout.ms int 30000 any static described broker
replication.quota.window.num int 11 1.. static described broker
replication.quota.window.size.seconds int 1 1.. static described broker
request.timeout.ms int 30000 1.. static described broker
reserved.broker.max.id int 1000 0.. static described broker
sasl.enabled.mechanisms list GSSAPI any broker described broker
sasl.jaas.config password - any broker described broker
sasl.mechanism.inter.broker.protocol string GSSAPI any broker described broker
sasl.server.max.receive.size int 524288 any static described broker
security.inter.broker.protocol string PLAINTEXT PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL static described broker
socket.listen.backlog.size int 50 1.. static described broker
socket.request.max.bytes int 104857600 1.. static described broker
ssl.allow.dn.changes boolean false any static described broker
ssl.allow.san.changes boolean false any static described broker
ssl.client.auth string none required|requested|none broker described broker
ssl.enabled.protocols list TLSv1.2,TLSv1.3 TLSv1.2|TLSv1.3 broker described broker
ssl.endpoint.identification.algorithm string https any broker described broker
ssl.principal.mapping.rules string DEFAULT any static described broker
ssl.protocol string TLSv1.3 TLS|TLSv1.2|TLSv1.3 broker described broker
super.users string empty any static hidden broker
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 1.. static described broker
transaction.max.timeout.ms int 900000 1.. static described broker
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000 1.. static described broker
transaction.state.log.load.buffer.size int 5242880 1.. static described broker
transaction.state.log.min.isr int 2 1.. static described broker
transaction.state.log.num.partitions int 50 1.. static described broker
transaction.state.log.replication.factor short 3 1.. static described broker
transaction.state.log.segment.bytes int 104857600 1.. static described broker
transactional.id.expiration.ms int 604800000 1.. static described broker
zookeeper.clientCnxnSocket string - org.apache.zookeeper.ClientCnxnSocketNetty|org.apache.zookeeper.ClientCnxnSocketNIO static described zookeeper
zookeeper.connect string - any static described zookeeper
zookeeper.connection.timeout.ms int - 1.. static described zookeeper
zookeeper.session.timeout.ms int 18000 1.. static described zookeeper
zookeeper.set.acl boolean false any static described zookeeper
zookeeper.ssl.client.enable boolean false any static described zookeeper
zookeeper.ssl.endpoint.identification.algorithm string HTTPS any static described zookeeper
zookeeper.ssl.keystore.location string - any static described zookeeper
zookeeper.ssl.keystore.password password - any static described zookeeper
zookeeper.ssl.keystore.type string - any static described zookeeper
zookeeper.ssl.truststore.location string - any static described zookeeper
zookeeper.ssl.truststore.type string - any static described zookeeper
""",  # noqa: E501 - names of Java classes
    Support.REFUSED: """
client.quota.callback.class class - any static described
process.roles list empty broker|controller static described
zookeeper.metadata.migration.enable boolean false any static described
zookeeper.ssl.cipher.suites list - any static described
zookeeper.ssl.crl.enable boolean false any static described
zookeeper.ssl.enabled.protocols list - any static described
zookeeper.ssl.ocsp.enable boolean false any static described
""",
    Support.PROTECTION: """
alter.config.policy.class.name class - any static described
create.topic.policy.class.name class - any static described
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder any broker described
sasl.client.callback.handler.class class - any static described
sasl.login.callback.handler.class class - any static described
sasl.login.class class - any static described
sasl.oauthbearer.expected.audience list - any static described
sasl.oauthbearer.expected.issuer string - any static described
sasl.oauthbearer.jwks.endpoint.url string - any static described
sasl.oauthbearer.token.endpoint.url string - any static described
sasl.server.callback.handler.class class - any static described
security.providers string - any static described
ssl.cipher.suites list empty any broker described
ssl.engine.factory.class class - any broker described
ssl.provider string - any broker described
""",  # noqa: E501 - names of Java classes
    Support.IGNORED: """
auto.include.jmx.reporter boolean true any static described
background.threads int 10 1.. cluster described
broker.heartbeat.interval.ms int 2000 any static described
broker.session.timeout.ms int 9000 any static described
compression.gzip.level int -1 -1|1..9 cluster described
compression.lz4.level int 9 1..17 cluster described
compression.zstd.level int 3 -131072..22 cluster described
controller.listener.names string - any static described
controller.quorum.append.linger.ms int 25 any static described
controller.quorum.bootstrap.servers list empty any static described
controller.quorum.election.backoff.max.ms int 1000 any static described
controller.quorum.election.timeout.ms int 1000 any static described
controller.quorum.fetch.timeout.ms int 2000 any static described
controller.quorum.request.timeout.ms int 2000 any static described
controller.quorum.retry.backoff.ms int 20 any static described
controller.quorum.voters list empty any static described
delete.records.purgatory.purge.interval.requests int 1 any static described
early.start.listeners string - any static described
eligible.leader.replicas.enable boolean false any static described
fetch.purgatory.purge.interval.requests int 1000 any static described
group.consumer.assignors list org.apache.kafka.coordinator.group.assignor.UniformAssignor,org.apache.kafka.coordinator.group.assignor.RangeAssignor any static described
group.consumer.heartbeat.interval.ms int 5000 1.. static described
group.consumer.max.heartbeat.interval.ms int 15000 1.. static described
group.consumer.max.session.timeout.ms int 60000 1.. static described
group.consumer.max.size int max 1.. static described
group.consumer.migration.policy string disabled disabled|downgrade|upgrade|bidirectional static hidden
group.consumer.min.heartbeat.interval.ms int 5000 1.. static described
group.consumer.min.session.timeout.ms int 45000 1.. static described
group.consumer.session.timeout.ms int 45000 1.. static described
group.coordinator.append.linger.ms int 10 0.. static described
group.coordinator.new.enable boolean false any static hidden
group.coordinator.threads int 1 1.. static described
group.share.delivery.count.limit int 5 2..10 static described
group.share.enable boolean false any static hidden
group.share.heartbeat.interval.ms int 5000 1.. static described
group.share.max.groups short 10 1..100 static described
group.share.max.heartbeat.interval.ms int 15000 1.. static described
group.share.max.record.lock.duration.ms int 60000 30000..3600000 static described
group.share.max.session.timeout.ms int 60000 1.. static described
group.share.max.size short 200 10..1000 static described
group.share.min.heartbeat.interval.ms int 5000 1.. static described
group.share.min.record.lock.duration.ms int 15000 1000..30000 static described
group.share.min.session.timeout.ms int 45000 1.. static described
group.share.partition.max.record.locks int 200 100..10000 static described
group.share.record.lock.duration.ms int 30000 1000..60000 static described
group.share.session.timeout.ms int 45000 1.. static described
initial.broker.registration.timeout.ms int 60000 any static described
kafka.metrics.polling.interval.secs int 10 1.. static described
kafka.metrics.reporters list empty any static described
log.cleaner.io.buffer.load.factor double 0.9 any cluster described logs
log.cleaner.io.buffer.size int 524288 0.. cluster described logs
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308 any cluster described logs
log.cleaner.threads int 1 0.. cluster described broker,logs
log.dir.failure.timeout.ms long 30000 1.. static described
log.local.retention.bytes long -2 -2.. cluster described
log.local.retention.ms long -2 -2.. cluster described
log.preallocate boolean false any cluster described
max.incremental.fetch.session.cache.slots int 1000 0.. static described broker
max.request.partition.size.limit int 2000 1.. static described
metadata.log.dir string - any static described
metadata.log.max.record.bytes.between.snapshots long 20971520 1.. static described
metadata.log.max.snapshot.interval.ms long 3600000 0.. static described
metadata.log.segment.bytes int 1073741824 12.. static described
metadata.log.segment.min.bytes int 8388608 12.. static hidden
metadata.log.segment.ms long 604800000 any static described
metadata.max.idle.interval.ms int 500 0.. static described
metadata.max.retention.bytes long 104857600 any static described
metadata.max.retention.ms long 604800000 any static described
metric.reporters list empty any cluster described
metrics.num.samples int 2 1.. static described
metrics.recording.level string INFO any static described
metrics.sample.window.ms long 30000 1.. static described
num.recovery.threads.per.data.dir int 1 1.. cluster described
num.replica.alter.log.dirs.threads int - any static described
password.encoder.old.secret password - any static described
producer.purgatory.purge.interval.requests int 1000 any static described
remote.fetch.max.wait.ms int 500 1.. cluster described
remote.log.index.file.cache.total.size.bytes long 1073741824 1.. cluster described
remote.log.manager.copier.thread.pool.size int -1 -1|1.. static described
remote.log.manager.copy.max.bytes.per.second long max 1.. cluster described
remote.log.manager.copy.quota.window.num int 11 1.. static described
remote.log.manager.copy.quota.window.size.seconds int 1 1.. static described
remote.log.manager.expiration.thread.pool.size int -1 -1|1.. static described
remote.log.manager.fetch.max.bytes.per.second long max 1.. cluster described
remote.log.manager.fetch.quota.window.num int 11 1.. static described
remote.log.manager.fetch.quota.window.size.seconds int 1 1.. static described
remote.log.manager.task.interval.ms long 30000 1.. static described
remote.log.manager.task.retry.backoff.max.ms long 30000 1.. static hidden
remote.log.manager.task.retry.backoff.ms long 500 1.. static hidden
remote.log.manager.task.retry.jitter double 0.2 0..0.5 static hidden
remote.log.manager.thread.pool.size int 10 1.. static described
remote.log.metadata.custom.metadata.max.bytes int 128 0.. static described
remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager any static described
remote.log.metadata.manager.class.path string - any static described
remote.log.metadata.manager.impl.prefix string rlmm.config. any static described
remote.log.metadata.manager.listener.name string - any static described
remote.log.reader.max.pending.tasks int 100 1.. static described
remote.log.reader.threads int 10 1.. static described
remote.log.storage.manager.class.name string - any static described
remote.log.storage.manager.class.path string - any static described
remote.log.storage.manager.impl.prefix string rsm.config. any static described
remote.log.storage.system.enable boolean false any static described
replica.socket.receive.buffer.bytes int 65536 any static described
sasl.kerberos.kinit.cmd string /usr/bin/kinit any broker described
sasl.kerberos.min.time.before.relogin long 60000 any broker described
sasl.kerberos.principal.to.local.rules list DEFAULT any broker described
sasl.kerberos.service.name string - any broker described
sasl.kerberos.ticket.renew.jitter double 0.05 any broker described
sasl.kerberos.ticket.renew.window.factor double 0.8 any broker described
sasl.login.connect.timeout.ms int - any static described
sasl.login.read.timeout.ms int - any static described
sasl.login.refresh.buffer.seconds short 300 any broker described
sasl.login.refresh.min.period.seconds short 60 any broker described
sasl.login.refresh.window.factor double 0.8 any broker described
sasl.login.refresh.window.jitter double 0.05 any broker described
sasl.login.retry.backoff.max.ms long 10000 any static described
sasl.login.retry.backoff.ms long 100 any static described
sasl.mechanism.controller.protocol string GSSAPI any static described
sasl.oauthbearer.clock.skew.seconds int 30 any static described
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 any static described
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 any static described
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 any static described
sasl.oauthbearer.scope.claim.name string scope any static described
sasl.oauthbearer.sub.claim.name string sub any static described
server.max.startup.time.ms long max 0.. static hidden
socket.connection.setup.timeout.max.ms long 30000 any static described
socket.connection.setup.timeout.ms long 10000 any static described
socket.receive.buffer.bytes int 102400 any static described
socket.send.buffer.bytes int 102400 any static described
ssl.keymanager.algorithm string SunX509 any broker described
ssl.secure.random.implementation string - any broker described
ssl.trustmanager.algorithm string PKIX any broker described
telemetry.max.bytes int 1048576 1.. static described
unclean.leader.election.interval.ms long 300000 1.. static hidden
unstable.api.versions.enable boolean false any static hidden
unstable.feature.versions.enable boolean false any static hidden
zookeeper.max.in.flight.requests int 10 1.. static described
zookeeper.metadata.migration.min.batch.size int 200 1.. static hidden
zookeeper.ssl.protocol string TLSv1.2 any static described
zookeeper.ssl.truststore.password password - any static described
""",  # noqa: E501 - names of Java classes
}


def _definitions() -> Iterator[BrokerConfigDef]:
    for support, lines in _TABLE.items():
        for line in lines.strip().splitlines():
            name, kind_name, default, allowed, dynamic, described, *readers = line.split(" ")
            kind = ConfigType[kind_name.upper()]
            yield BrokerConfigDef(
                name=name,
                type=kind,
                default=_default(default, kind),
                allowed=allowed_values(allowed, kind),
                support=support,
                dynamic=Dynamic(dynamic),
                described=described == "described",
                readers=tuple(readers[0].split(",")) if readers else (),
            )


def _default(text: str, kind: ConfigType) -> str | None:
    if text == "max":
        return str(LARGEST[kind])
    return {"-": None, "empty": ""}.get(text, text)


#: by name, in alphabetical order
BROKER_CONFIGS: Final[Mapping[str, BrokerConfigDef]] = {
    definition.name: definition for definition in sorted(_definitions(), key=lambda definition: definition.name)
}

_LISTENER_PREFIX: Final = "listener.name."


def broker_config(key: str) -> BrokerConfigDef | None:
    """The definition of a setting, also with the prefix `listener.name.<listener>.[<SASL mechanism>.]`."""
    if not key.startswith(_LISTENER_PREFIX):
        return BROKER_CONFIGS.get(key)
    _, _, rest = key.removeprefix(_LISTENER_PREFIX).partition(".")
    return BROKER_CONFIGS.get(rest) or BROKER_CONFIGS.get(rest.partition(".")[2])


def nearest(key: str) -> str | None:
    """The setting that was probably meant."""
    return next(iter(difflib.get_close_matches(key, BROKER_CONFIGS, n=1)), None)
