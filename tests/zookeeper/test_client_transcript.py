"""All that clients of Kafka's nodes ask of ZooKeeper, and make of its answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from kce.wire.metadata_version import LATEST, MetadataVersion
from kce.zookeeper import admin, admin_nodes, client_configs, cluster_nodes, security_nodes, topic_plans, znodes
from kce.zookeeper.client import UNFENCED, ChangeHandler
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import (
    BrokerId,
    ControllerEpoch,
    EpochZkVersion,
    LeaderAndIsr,
    Leadership,
    ProducerIdsBlock,
    TopicPartition,
)
from kce.zookeeper.security_nodes import AccessControlEntry, PatternType, ResourcePattern, TokenInformation
from kce.zookeeper.store import (
    OPEN_ACL,
    READ_ACL,
    Check,
    Create,
    Delete,
    Op,
    OpResult,
    SetData,
    StoreError,
)
from tests import transcripts
from tests.transcripts import RecordedStore, RecordedZooKeeper
from tests.zookeeper.scripts import Script, broker, ids

FOLDER = Path(__file__).parent / "transcripts"
TP, TP1 = TopicPartition("t", 0), TopicPartition("t", 1)
ONE = EpochZkVersion(1)


class Racing(RecordedStore):
    """Before a write of ours, somebody else does one of theirs."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.meanwhile: list[Sequence[Op]] = []
        #: right after our next write
        self.afterwards: list[Op] = []

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        self._somebody()
        answers = await super().write(ops, fence=fence)
        while self.afterwards:
            self._server.tree.multi(self, [self.afterwards.pop(0)])
        return answers

    async def multi(self, groups: Sequence[Sequence[Op]]) -> Any:
        self._somebody()
        return await super().multi(groups)

    def _somebody(self) -> None:
        if self.meanwhile:
            for op in self.meanwhile.pop(0):
                self._server.tree.multi(self, [op])


async def clients(script: Script) -> None:
    """A client of Kafka's nodes."""
    server = RecordedZooKeeper()
    numbers = itertools.count(1)

    def client() -> KafkaZkClient:
        store = Racing(server, next(server._sessions))
        store.lines = script.lines
        return KafkaZkClient(store, now_ms=lambda: 1234, new_uuid=lambda: UUID(int=next(numbers)))

    zk, other = client(), client()

    def meanwhile(*writes: Sequence[Op]) -> None:
        assert isinstance(zk.store, Racing)
        zk.store.meanwhile = list(writes)

    note = script.note
    await note("top level", zk.create_top_level_paths)
    await note("again", zk.create_top_level_paths)
    await note("paths", lambda: zk.ensure_paths(["x/y/z", "/x/w", "/x"]))
    meanwhile([], [Create("/cluster/id", cluster_nodes.encode_cluster_id("theirs"))])
    await note("cluster id, which somebody makes first", zk.get_or_create_cluster_id)
    await zk.store.write([Delete("/cluster/id")])
    await note("cluster id", zk.get_or_create_cluster_id)
    await note("the same", zk.get_or_create_cluster_id)
    for number, rack in ((1, "a"), (2, "b"), (3, None)):
        await note(f"register {number}", lambda n=number, r=rack: zk.register_broker(broker(n, r), LATEST))  # type: ignore[misc]
    await note("register again", lambda: zk.register_broker(broker(1, "a"), MetadataVersion.parse("0.9.0")))
    await note("of another session", lambda: other.register_broker(broker(1), LATEST))
    await note("endpoints of another", lambda: zk.check_endpoints_free(broker(4, port=9091)))
    await note("endpoints", lambda: zk.check_endpoints_free(broker(1)))
    meanwhile([Create("/brokers/ids/4", b"", ephemeral=True)], [Delete("/brokers/ids/4")])
    await note("register what another session has left", lambda: zk.register_broker(broker(4), LATEST))
    await zk.store.write([Create("/brokers/ids/5", b"nonsense"), Create("/brokers/ids/name", b"{}")])
    for watch in (True, False):
        await note("brokers", lambda w=watch: zk.get_brokers(watch=w))  # type: ignore[misc]
    await note("broker", lambda: zk.get_broker(1))
    await note("no broker", lambda: zk.get_broker(9))
    for what in (zk.get_controller_id, zk.get_controller_epoch):
        await note("controller", what)
    await note("become controller", lambda: zk.register_controller(BrokerId(1)))
    await note("another", lambda: other.register_controller(BrokerId(2)))
    await note("resign, fenced", lambda: zk.delete_controller(EpochZkVersion(7)))
    await note("resign", lambda: zk.delete_controller(ONE))
    meanwhile([SetData("/controller_epoch", b"8")])
    await note("become, too late", lambda: zk.register_controller(BrokerId(1)))
    await note("become again", lambda: zk.register_controller(BrokerId(1)))
    for what in (zk.get_controller_id, zk.get_controller_epoch):
        await note("controller", what)
    version = EpochZkVersion(3)
    # handlers
    fired: list[str] = []
    handler = ChangeHandler(
        created=lambda: fired.append("created"),
        changed=lambda: fired.append("changed"),
        deleted=lambda: fired.append("deleted"),
    )
    for path in ("/w", "/v"):
        await note("watch", lambda p=path: zk.register_and_check(p, handler))  # type: ignore[misc]
    zk.register_child_handler("/", lambda: fired.append("children"))
    await note("children", lambda: zk.get_children("/"))
    await note("children unwatched", lambda: zk.get_children("/", watch=False))
    await note("children of none", lambda: zk.get_children("/none"))
    await note("mixed", lambda: zk.exists(["/w", "/x", "/none"]))
    await note("two", lambda: zk.get_data(["/w", "/x"]))
    await note("one", lambda: zk.get_one("/w"))
    for op in (Create("/w"), SetData("/w", b"1"), Delete("/w")):
        await other.store.write([op])
        await note(f"fired {fired}", lambda: zk.get_one("/w"))
    zk.unregister_change_handler("/w")
    zk.unregister_child_handler("/")
    await other.store.write([Create("/w")])
    await note(f"fired {fired}", lambda: zk.get_one("/w"))
    for expected in (UNFENCED, EpochZkVersion(-2), EpochZkVersion(9), version):
        await note("fenced", lambda e=expected: zk.fenced([Create("/f"), Delete("/none")], e))  # type: ignore[misc]
    await note("delete", lambda: zk.delete(["/f", "/none"], version))
    await note("delete what has children", lambda: zk.delete(["/x"], version))
    # topics
    random = Random(1)
    replicas = {0: [1, 2], 1: [2, 3]}
    await note("create", lambda: admin.create_topic(zk, "t", assignment=replicas, config={"a": "b"}, random=random))
    for name, more in (
        ("t", {}), ("t.x", {}), ("t_x", {}), ("b d", {}), ("placed", {"partitions": 3, "replication_factor": 2}),
        ("placed", {}), ("none", {"partitions": 0}), ("most", {"replication_factor": 9}),
        ("rackless", {"partitions": 2, "rack_aware_mode": admin.RackAwareMode.DISABLED}),
        ("bad", {"assignment": {0: [1, 1]}}), ("bad", {"assignment": {1: [1]}}), ("bad", {"assignment": {0: [-1]}}),
        ("bad", {"assignment": {0: [1], 1: [1, 2]}}), ("bad", {"assignment": {0: []}}), ("bad", {"assignment": {}}),
    ):  # fmt: skip
        await note(f"create {name} {more}", lambda n=name, m=more: admin.create_topic(zk, n, random=random, **m))  # type: ignore[misc]
    meanwhile([Create("/brokers/topics/raced", znodes.encode_topic(UUID(int=77), {}))])
    await note("raced", lambda: admin.create_topic(zk, "raced", assignment={0: [1]}, random=random))
    for count, added in (
        (3, None), (2, None), (1, None), (4, [[1, 2], [3, 1]]), (4, [[1, 2]]), (3, [[1, 9]]), (3, [[1]]), (3, [[1, 1]]),
        (3, [[]]), (topic_plans.MAX_PARTITIONS + 1, None),
    ):  # fmt: skip
        await note(
            f"plan {count} {added}", lambda c=count, a=added: admin.plan_partitions(zk, "t", c, a, random=random)
        )  # type: ignore[misc]
    await note("plan for none", lambda: admin.plan_partitions(zk, "none", 2, None, random=random))
    found = (await zk.get_topic_assignments(["t"]))["t"]
    await note("add", lambda: admin.add_partitions(zk, found, {2: (3, 1)}))
    await zk.store.write([Create("/brokers/topics/odd", b"nonsense")])
    await note("assignments", lambda: zk.get_topic_assignments(["t", "odd", "none"]))
    state = Leadership(LeaderAndIsr(BrokerId(1), ids(1, 2), 4), ControllerEpoch(9))
    await note("states", lambda: zk.create_partition_states({TP: state, TP1: state}, version))
    await note("states again", lambda: zk.create_partition_states({TP: state}, version))
    wanted = {
        TP: state.leader_and_isr.new_leader(BrokerId(2)),
        TP1: state.leader_and_isr.new_leader(BrokerId(2)).with_partition_epoch(7),
        TopicPartition("t", 9): state.leader_and_isr,
    }
    await note("update", lambda: zk.update_leader_and_isr(wanted, ControllerEpoch(9), version))
    await note("the same", lambda: zk.update_leader_and_isr(wanted, ControllerEpoch(9), version))
    await note("fenced", lambda: zk.update_leader_and_isr(wanted, ControllerEpoch(9), ONE))
    await note("read", lambda: zk.get_partition_states([TP, TP1, TopicPartition("t", 9)]))
    for topics in (None, ["t"], ["none"]):
        described = await note(f"describe {topics}", lambda t=topics: admin.describe_topics(zk, t))  # type: ignore[misc]
        script.lines += [f"{topic.name} has leaders: {topic.has_leaders}" for topic in described or ()]
    led = SetData("/brokers/topics/t/partitions/0/state", znodes.encode_partition_state(
        Leadership(state.leader_and_isr.new_leader(BrokerId(-1)), ControllerEpoch(9))
    ))  # fmt: skip
    await zk.store.write([led])
    described = await note("describe", lambda: admin.describe_topics(zk, ["t"]))
    script.lines += [f"{topic.name} has leaders: {topic.has_leaders}" for topic in described]
    await note("existing", lambda: zk.existing_partitions("t"))
    states = {True: BrokerId(2), False: BrokerId(-1)}
    for is_led, leader in states.items():
        topic = f"led-{is_led}"
        await admin.create_topic(zk, topic, assignment={0: [2]}, random=random)
        state = Leadership(LeaderAndIsr(leader, ids(2), 0), ControllerEpoch(9))
        await zk.create_partition_states({TopicPartition(topic, 0): state}, version)
        (described,) = await admin.describe_topics(zk, [topic])
        script.lines.append(f"{topic}: {described.has_leaders}")
    await zk.store.write([Create(f"/brokers/topics/{name}") for name in ("q.r_s", "q_r.s")])
    await note("collides with two", lambda: admin.create_topic(zk, "q.r.s", random=random))
    # configurations
    for change in ({"a": "1"}, {}):
        for kind, name in (
            ("topics", "t"),
            ("users", "u"),
            ("users", "u/clients/c"),
            ("clients", "c"),
            ("ips", "1.2.3.4"),
        ):
            await note(
                f"change {kind} {name} {change}", lambda k=kind, n=name, c=change: client_configs.change(zk, k, n, c)
            )  # type: ignore[misc]
            await note("all", lambda k=kind: client_configs.read_all(zk, k))  # type: ignore[misc]
    await note("put", lambda: zk.put_config("brokers", "1", {"x": "y"}))
    await note("configuration", lambda: zk.get_config("brokers", "1"))
    await note("none", lambda: zk.get_config("brokers", "9"))
    await note("configurations", lambda: zk.get_configs("brokers"))
    await zk.store.write([SetData("/config/topics/t", b"nonsense")])
    await note("of topics", lambda: zk.get_topic_configs(["t", "placed", "none"]))
    await note("notify", lambda: zk.notify_config_change("topics", "t"))
    # what controllers are told
    for data in (cluster_nodes.encode_partition_reassignment({TP: ids(3, 1)}), b"nonsense"):
        await note("reassign", lambda: admin_nodes.set_partition_reassignment(zk, {TP: ids(1)}, version))
        await zk.store.write([SetData("/admin/reassign_partitions", data)])
        await note("reassignment", lambda: admin_nodes.get_partition_reassignment(zk))
        await note("done", lambda: admin_nodes.delete_partition_reassignment(zk, version))
        await note("none", lambda: admin_nodes.get_partition_reassignment(zk))
    for data in (cluster_nodes.encode_partition_list([TP1, TP]), b"nonsense"):
        await zk.store.write([Create("/admin/preferred_replica_election", data)])
        await note("elections", lambda: admin_nodes.get_preferred_replica_election(zk))
        await note("done", lambda: admin_nodes.delete_preferred_replica_election(zk, version))
        await note("none", lambda: admin_nodes.get_preferred_replica_election(zk))
    block = "/latest_producer_id_block"
    for _ in range(2):
        await note("producer ids", lambda: admin_nodes.allocate_producer_ids(zk, BrokerId(3)))
    last = cluster_nodes.encode_producer_id_block(ProducerIdsBlock(BrokerId(2), 5000, 5999))
    meanwhile([SetData(block, last)])
    await note("producer ids, raced", lambda: admin_nodes.allocate_producer_ids(zk, BrokerId(3)))
    for end in (2**63 - 1001, 2**63 - 1):
        await zk.store.write(
            [SetData(block, cluster_nodes.encode_producer_id_block(ProducerIdsBlock(BrokerId(2), 0, end)))]
        )
        await note("the last producer ids", lambda: admin_nodes.allocate_producer_ids(zk, BrokerId(3)))
    for _ in range(2):
        await note("broker id", lambda: admin_nodes.generate_broker_id(zk, 1000))
    for _ in range(2):
        await note("log dir", lambda: zk.propagate_log_dir_event(2))
    told = await note("notifications", lambda: zk.get_notifications("/log_dir_event_notification"))
    await note("delete one", lambda: zk.delete_notifications(list(told)[:1], version))
    await note("delete all", lambda: zk.delete_all_notifications("/log_dir_event_notification", version))
    await note("feature", zk.get_feature)
    for create in (True, False):
        await note("put feature", lambda c=create: zk.put_feature(b"{}", create=c))  # type: ignore[misc]
    # deletion
    for topic in ("t", "t", "none"):
        await note(f"delete {topic}", lambda t=topic: admin.delete_topic(zk, t))  # type: ignore[misc]
    await note("marked", zk.get_topic_deletions)
    await note("create what is being deleted", lambda: admin.create_topic(zk, "t", random=random))
    await note("delete its nodes", lambda: zk.delete_topic_nodes(["t"], version))
    await note("unmark", lambda: zk.delete_topic_deletions(["t"], version))
    await note("delete a tree", lambda: zk.delete_path("/x"))
    await note("delete none", lambda: zk.delete_path("/x"))
    # security
    literal, prefixed = ResourcePattern("Topic", "t"), ResourcePattern("TransactionalId", "x", PatternType.PREFIXED)
    acls = [AccessControlEntry("User:a", "*", "Read", "Allow"), AccessControlEntry("User:a", "*", "All", "Deny")]

    async def acls_of(resource: ResourcePattern) -> object:
        found = await security_nodes.get_acls(zk, resource)
        return found.version, sorted(found.acls)

    await note("ACL paths", lambda: security_nodes.create_acl_paths(zk))
    for resource in (literal, prefixed):
        for at in (security_nodes.NO_VERSION, 5, 0):
            await note("set ACLs", lambda r=resource, v=at: security_nodes.set_acls(zk, r, acls, v))  # type: ignore[misc]
        await note("ACLs", lambda r=resource: acls_of(r))  # type: ignore[misc]
        await note("resources", lambda r=resource: security_nodes.get_resources(zk, r.pattern))  # type: ignore[misc]
        await note("notify", lambda r=resource: security_nodes.notify_acl_change(zk, r))  # type: ignore[misc]
        for at in (7, 1, 1):
            await note("delete ACLs", lambda r=resource, v=at: security_nodes.delete_acls(zk, r, v))  # type: ignore[misc]
        await note("no ACLs", lambda r=resource: acls_of(r))  # type: ignore[misc]
    token = TokenInformation("id", "User:o", "User:q", ("User:r",), 1, 3, 2)
    await note("token paths", lambda: security_nodes.create_token_paths(zk))
    for _ in range(2):
        await note("token", lambda: security_nodes.set_or_create_token(zk, token))
    for name in ("id", "none"):
        await note("get", lambda n=name: security_nodes.get_token(zk, n))  # type: ignore[misc]
        await note("delete", lambda n=name: security_nodes.delete_token(zk, n))  # type: ignore[misc]
        await note("notify", lambda n=name: security_nodes.notify_token_change(zk, n))  # type: ignore[misc]


async def elections(script: Script) -> None:
    """Of controllers, in which somebody else writes meanwhile."""
    epoch, ours, theirs = "/controller_epoch", znodes.encode_controller(1, 5), znodes.encode_controller(2, 5)
    claimed = Create("/controller", ours, ephemeral=True)
    for name, before, meanwhile, afterwards, acls in (
        ("first", [], [], [], OPEN_ACL),
        ("somebody creates the epoch", [], [[Create(epoch, b"6")]], [], OPEN_ACL),
        ("somebody deletes the epoch", [], [], [Delete(epoch)], OPEN_ACL),
        ("nobody may create the epoch", [], [], [], READ_ACL),
        ("nobody may create the controller", [Create(epoch, b"6")], [], [], READ_ACL),
        ("the answer was lost", [Create(epoch, b"6")], [[claimed, SetData(epoch, b"7")]], [], OPEN_ACL),
        ("an older answer was lost", [Create(epoch, b"6")], [[claimed, SetData(epoch, b"9")]], [], OPEN_ACL),
        ("and the epoch is gone", [Create(epoch, b"6")], [[claimed, Delete(epoch)]], [], OPEN_ACL),
        (
            "another has it",
            [Create(epoch, b"6"), Create("/controller", theirs)],
            [],
            [],
            OPEN_ACL,
        ),
    ):
        server = RecordedZooKeeper()
        store = Racing(server, next(server._sessions))
        for op in before:
            server.tree.multi(store, [op])
        store.lines, store.meanwhile, store.afterwards = script.lines, list(meanwhile), list(afterwards)
        server.tree.nodes["/"].acls = acls
        zk = KafkaZkClient(store, now_ms=lambda: 1234)
        await script.note(name, lambda z=zk: z.register_controller(BrokerId(1)))  # type: ignore[misc]


async def test_the_transcript() -> None:
    script = Script()
    await clients(script)
    await elections(script)
    transcripts.check(FOLDER / "clients.txt", script.lines)
