"""What nodes contain, what is made of damaged ones, and where replicas are placed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from uuid import UUID

from kce.wire.metadata_version import LATEST, MetadataVersion
from kce.zookeeper import assignment, cluster_nodes, node_json, security_nodes, znodes
from kce.zookeeper.model import (
    BrokerId,
    ControllerEpoch,
    EpochZkVersion,
    LeaderAndIsr,
    Leadership,
    ProducerIdsBlock,
    ReplicaAssignment,
    TopicPartition,
)
from kce.zookeeper.security_nodes import PatternType
from tests import transcripts
from tests.zookeeper.scripts import Script, broker, ids

FOLDER = Path(__file__).parent / "transcripts"
TP, TP1 = TopicPartition("t", 0), TopicPartition("t", 1)
ONE = EpochZkVersion(1)


async def nodes(script: Script) -> None:
    """What nodes contain, and what is made of that."""
    note = script.note
    lai = LeaderAndIsr(BrokerId(1), ids(1, 2), 4, partition_epoch=6)
    assigned = {1: ReplicaAssignment(ids(1, 2, 3), ids(3), ids(1)), 0: ReplicaAssignment(ids(2))}
    for version in ("0.9.0", "0.10.1", "0.10.2", "2.6", "2.7", "3.9"):
        for rack in (None, "r"):
            ibp = MetadataVersion.parse(version)
            await note(f"broker {version}", lambda r=rack, i=ibp: znodes.encode_broker(broker(1, r), i, 5, 7))  # type: ignore[misc]
    only = broker(1, features={"f": (1, 2)}, controller_only=True)
    await note("controller only", lambda: znodes.encode_broker(only, LATEST, 5))
    for encode, values in (
        (znodes.encode_controller, (1, 5)), (znodes.encode_controller_epoch, (3,)),
        (znodes.encode_topic, (UUID(int=2**127), assigned)), (znodes.encode_topic, (None, assigned)),
        (znodes.encode_partition_state, (Leadership(lai, ControllerEpoch(3)),)),
        (znodes.encode_partition_state, (Leadership(lai.new_recovering(BrokerId(2), ids(2)), ControllerEpoch(3)),)),
        (cluster_nodes.encode_config, ({"b": "1", "a": "2"},)), (cluster_nodes.encode_config_change, ("topics", "t")),
        (cluster_nodes.encode_partition_list, ([TP, TP1],)), (cluster_nodes.encode_log_dir_event, (4,)),
        (cluster_nodes.encode_partition_reassignment, ({TP: ids(1, 2), TP1: ids()},)),
        (cluster_nodes.encode_producer_id_block, (ProducerIdsBlock(BrokerId(1), 0, 999),)),
    ):  # fmt: skip
        await note(f"{encode.__name__}{values}", lambda e=encode, v=values: e(*v))  # type: ignore[misc, operator]
    await note("feature", lambda: cluster_nodes.encode_feature(2, enabled=True, features={"f": 1}))
    await note("no feature", lambda: cluster_nodes.encode_feature(1, enabled=False, features={}))
    endpoints = [
        "PLAINTEXT://h:1",
        "A://:0",
        "A://[::1]:65535",
        "A://h:65536",
        "A://h:-1",
        "A://h",
        "h:1",
        "A://h:x",
        5,
    ]
    for endpoint in endpoints:
        for protocols in (None, {"A": "SSL", "PLAINTEXT": "SASL_SSL"}, {"A": "NOPE"}):
            await note(f"{endpoint} {protocols}", lambda e=endpoint, p=protocols: znodes.decode_endpoint(e, p))  # type: ignore[misc]
    full = b'{"version":5,"host":"h","port":1,"jmx_port":-1,"timestamp":"1","endpoints":["A://h:1"],"rack":"r",' \
        b'"listener_security_protocol_map":{"A":"SSL"},"features":{"f":{"min_version":1,"max_version":2}}}'  # fmt: skip
    part = b'{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","partitions":{"1":[1,2,3],"0":[2]}' \
        b',"adding_replicas":{"1":[3]},"removing_replicas":{"1":[1]}}'  # fmt: skip
    state = b'{"version":1,"leader":1,"leader_epoch":4,"controller_epoch":3,"isr":[1,2],"leader_recovery_state":1}'
    feature = b'{"version":2,"status":1,"features":{"f":1}}'
    listed = b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"t","partition":1}]}'
    moved = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'
    ids_block = b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'
    token = b'{"version":3,"owner":"User:o","tokenRequester":"User:q","renewers":["User:r"],"issueTimestamp":"1",' \
        b'"maxTimestamp":"3","expirationTimestamp":"2","tokenId":"id"}'  # fmt: skip
    acl = b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","host":"*","operation":"Read"}]}'
    decoders: Mapping[str, tuple[Callable[[bytes], object], bytes]] = {
        "broker": (lambda data: znodes.decode_broker(1, data), full),
        "controller": (
            znodes.decode_controller,
            b'{"version":2,"brokerid":1,"timestamp":"5","kraftControllerEpoch":-1}',
        ),
        "kraft epoch": (znodes.kraft_controller_epoch, b'{"version":2,"brokerid":1,"kraftControllerEpoch":7}'),
        "controller epoch": (znodes.decode_controller_epoch, b"7"),
        "topic": (lambda data: znodes.decode_topic("t", data), part),
        "state": (lambda data: znodes.decode_partition_state(data, 6), state),
        "configuration": (lambda data: cluster_nodes.decode_config("/c", data), b'{"version":1,"config":{"a":"1"}}'),
        "change": (
            lambda data: cluster_nodes.decode_config_change("/c", data),
            b'{"version":2,"entity_path":"topics/t"}',
        ),
        "old change": (
            lambda data: cluster_nodes.decode_config_change("/c", data),
            b'{"version":1,"entity_type":"topics","entity_name":"t"}',
        ),
        "cluster id": (cluster_nodes.decode_cluster_id, b'{"version":"1","id":"x"}'),
        "feature": (cluster_nodes.decode_feature, feature),
        "list": (lambda data: cluster_nodes.decode_partition_list("/l", data), listed),
        "log dir": (cluster_nodes.decode_log_dir_event, b'{"version":1,"broker":2,"event":1}'),
        "reassignment": (cluster_nodes.decode_partition_reassignment, moved),
        "producer ids": (cluster_nodes.decode_producer_id_block, ids_block),
        "ACLs": (lambda data: security_nodes.decode_acls("/a", data), acl),
        "ACL change": (
            lambda data: security_nodes.decode_acl_change(PatternType.LITERAL, data),
            b"TRANSACTIONAL_ID:x:y",
        ),
        "prefixed ACL change": (
            lambda data: security_nodes.decode_acl_change(PatternType.PREFIXED, data),
            b'{"version":1,"resourceType":"TOPIC","name":"t","patternType":"PREFIXED"}',
        ),
        "token": (lambda data: security_nodes.decode_token("/t", data), token),
    }
    for name, (decode, data) in decoders.items():
        for damaged in damages(data):
            await note(f"{name} {damaged!r}", lambda d=decode, x=damaged: d(x))  # type: ignore[misc]
    for one, other in ((b'{"a":1,"b":2}', b'{"b":2,"a":1}'), (b"{}", b"[]"), (b"x", b"x"), (b"x", b"{}")):
        await note(f"same {one!r} {other!r}", lambda a=one, b=other: node_json.is_same_json(a, b))  # type: ignore[misc]
    await note("numbers", lambda: znodes.numbered(["2", "10", "x", "-1", "01", "", "3000000000"]))
    for path in ("", "a", "/a"):
        await note(f"absolute {path}", lambda p=path: znodes.absolute(p))  # type: ignore[misc]
    for path in (
        "/",
        "/brokers/ids/1",
        "/config/users",
        "/controller",
        "/consumers",
        "/kafka-acl",
        "/delegation_token",
    ):
        await note(f"ACL of {path}", lambda p=path: znodes.secure_acls(p))  # type: ignore[misc]
    for group in ("g", "a/b", "", ".", "a/..", "\0"):
        await note(f"group {group!r}", lambda g=group: znodes.consumer_offset_path(g, TP))  # type: ignore[misc]
    # placement and models
    for racks in ((None,) * 5, ("a", "b", "a", "b", "c"), ("a", None, "a", "b", "c"), ("a", "a", "a", "a", "b")):
        brokers = dict(enumerate(racks, start=1))
        for count, factor, start, first in (
            (7, 3, -1, -1),
            (7, 2, 0, 3),
            (12, 5, 2, -1),
            (0, 1, -1, -1),
            (1, 6, -1, -1),
            (1, 0, -1, -1),
        ):
            await note(
                f"place {count} {factor} {start} {first} on {racks}",
                lambda b=brokers, c=count, f=factor, s=start, p=first: assignment.assign_replicas(  # type: ignore[misc]
                    b, c, f, fixed_start=s, start_partition=p, random=Random(3)
                ),
            )
    for target in ((2, 1), (4, 5), (1,), (3, 2, 1)):
        for of in assigned.values():
            await note(f"{of} to {target}", lambda o=of, t=target: (o.reassign_to(ids(*t)), o.origin, o.target))  # type: ignore[misc]
    for number in (1, 2, 3, 9):
        await note(f"remove {number}", lambda n=number: assigned[1].remove_replica(BrokerId(n)))  # type: ignore[misc]


def damages(data: bytes) -> list[bytes]:
    """The data, and with other numbers and types in each of its places."""
    found = [data, b"", b"nonsense", b"{}", b"[]", b"null", b"5"]
    for old, new in (
        (b'"version":', b'"version":9'), (b'"version":', b'"version":-'), (b":1", b":-1"), (b":1", b":3000000000"),
        (b":1", b':"1"'),
        (b"[1", b"[-1"), (b"[1", b'["1"'), (b"[", b"{"), (b':"', b':5,"'), (b'"t"', b'""'), (b'"0"', b'"-1"'),
        (b'"999"', b'"x"'), (b":2", b":0"), (b":2", b":null"), (b":4", b":-4"), (b":", b":null,"), (b":7", b":-7"),
    ):  # fmt: skip
        if old in data:
            found += [data.replace(old, new, 1), data.replace(old, new)]
    return list(dict.fromkeys(found))


async def test_the_transcript() -> None:
    script = Script()
    await nodes(script)
    transcripts.check(FOLDER / "nodes.txt", script.lines)
