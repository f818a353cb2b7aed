"""Paths of Kafka's znodes, and the JSON of the controller, brokers and topics (rules of section 1). Pure.

The JSON of all others is in ``cluster_nodes``.

Encoders write what Kafka 3.9 writes. Decoders read what any Kafka has written, and ignore unknown keys (1.1). For any
other content they raise ``BadZNode``, and nothing else: what they return can be encoded in Kafka's messages.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final
from uuid import UUID

import orjson

from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import SECURITY_PROTOCOLS
from kce.zookeeper.model import (
    RECOVERED,
    RECOVERING,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderAndIsr,
    Leadership,
    RegisteredBroker,
    ReplicaAssignment,
    TopicAssignment,
    TopicPartition,
)
from kce.zookeeper.node_json import (
    BadZNode as BadZNode,
)
from kce.zookeeper.node_json import (
    Malformed,
    as_ids,
    as_int,
    as_list,
    as_number,
    as_object,
    as_text,
    load,
    malformed,
)
from kce.zookeeper.store import CREATOR_ALL_ACL, OPEN_ACL, READ_ACL, Acls

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE_ID = "/brokers/seqid"
TOPICS = "/brokers/topics"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGE_NOTIFICATION = "/isr_change_notification"
ISR_CHANGE_PREFIX = f"{ISR_CHANGE_NOTIFICATION}/isr_change_"
LOG_DIR_EVENT_NOTIFICATION = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENT_NOTIFICATION}/log_dir_event_"
CLUSTER_ID = "/cluster/id"
FEATURE = "/feature"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
#: the default entity of each type (rule 1.34)
DEFAULT_ENTITY = "<default>"

#: rule 1.3: every broker creates these first; Kafka 3.9.1 without /config/client-metrics
TOP_LEVEL = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE_ID,
    ISR_CHANGE_NOTIFICATION,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENT_NOTIFICATION,
    *(f"/config/{kind}" for kind in ("topics", "clients", "users", "brokers", "ips")),
)

_MAX_PORT = 2**16 - 1

#: rule 1.13: content of /controller_epoch before the first election
INITIAL_CONTROLLER_EPOCH = 0


#: rule 1.5: not world-readable
_SENSITIVE = ("/config/users", "/config/brokers", "/delegation_token/tokens")


def secure_acls(path: str) -> Acls:
    """The ACL of a node if `zookeeper.set.acl` is true (rule 1.5)."""
    if path.startswith("/consumers"):
        return OPEN_ACL
    return CREATOR_ALL_ACL if path.startswith(_SENSITIVE) else CREATOR_ALL_ACL + READ_ACL


_partition_number = functools.lru_cache(maxsize=8192)(as_number)


def numbered(names: Iterable[str]) -> list[int]:
    """The names of nodes that are ids or partition numbers; skips others."""
    found = []
    for name in names:
        try:
            number = as_number(name)
        except ValueError:
            continue
        if name == str(number):
            found.append(number)
    return found


def absolute(path: str) -> str:
    """The path. Raises ValueError."""
    if not path.startswith("/"):
        raise ValueError(f"the path of a znode begins with /, not so {path!r}")
    return path


def broker_path(broker: int) -> str:
    return f"{BROKER_IDS}/{broker}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def config_path(kind: str, name: str) -> str:
    return f"/config/{kind}/{name}"


#: relative paths, empty names and characters that ZooKeeper refuses; it sees two surrogates in those above the last
_NO_PATH: Final = re.compile("/\\.{0,2}(/|$)|[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def is_path(path: str) -> bool:
    """Whether the path, which begins with "/" and is not the root, is one to ZooKeeper (``PathUtils.validatePath``)."""
    return _NO_PATH.search(path) is None


def consumer_offset_path(group: str, partition: TopicPartition) -> str:
    """Raises ValueError for a group that cannot be part of a path."""
    path = f"/consumers/{group}/offsets/{partition.topic}/{partition.partition}"
    if not is_path(path):
        raise ValueError(f"group {group!r} cannot be part of a path in ZooKeeper")
    return path


def topic_config_path(topic: str) -> str:
    return config_path("topics", topic)


def broker_config_path(broker: str) -> str:
    """``broker`` is an id or `DEFAULT_ENTITY`."""
    return config_path("brokers", broker)


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(tp: TopicPartition) -> str:
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}"


def partition_state_path(tp: TopicPartition) -> str:
    return f"{TOPICS}/{tp[0]}/partitions/{tp[1]}/state"  # faster than by name


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


# controller, rules 1.8-1.14


def encode_controller(broker: int, now_ms: int) -> bytes:
    return orjson.dumps({"version": 2, "brokerid": broker, "timestamp": str(now_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> BrokerId | None:
    """The active controller's id; None if the content is not JSON. Raises BadZNode (1.9)."""
    try:
        obj = orjson.loads(data)
    except ValueError:
        return None
    try:
        return BrokerId(as_int(obj if isinstance(obj, int) else as_object(obj)["brokerid"]))  # a number: rule 1.10
    except (KeyError, ValueError) as e:
        raise malformed(CONTROLLER, e, data) from None


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> ControllerEpoch:
    try:
        return ControllerEpoch(as_number(data.decode(), -(2**31)))
    except ValueError as e:
        raise malformed(CONTROLLER_EPOCH, e, data) from None


def kraft_controller_epoch(data: bytes) -> int:
    """The epoch of the KRaft controller that holds /controller during a migration; -1 if none does (rule 1.11)."""
    try:
        return as_int((load(data) or {}).get("kraftControllerEpoch", -1))
    except ValueError:
        return -1


# brokers, rules 1.15-1.19


#: a field of ours in a registration; Kafka reads only the fields that it knows
_CONTROLLER_ONLY: Final = "kce_controller_only"


def encode_broker(broker: RegisteredBroker, ibp: MetadataVersion, now_ms: int, jmx_port: int = -1) -> bytes:
    version = ibp.broker_znode_version
    plaintext = next((e for e in broker.endpoints if e.security_protocol == "PLAINTEXT"), None)
    obj: dict[str, Any] = {
        "version": version,
        "host": plaintext.host if plaintext else None,
        "port": plaintext.port if plaintext else -1,
        "endpoints": list(map(str, broker.endpoints)),
        "jmx_port": jmx_port,
        "timestamp": str(now_ms),
    }
    if broker.rack is not None and version >= 3:
        obj["rack"] = broker.rack
    if version >= 4:
        obj["listener_security_protocol_map"] = {e.listener: e.security_protocol for e in broker.endpoints}
    if version >= 5:
        obj["features"] = {
            name: {"min_version": low, "max_version": high} for name, (low, high) in broker.features.items()
        }
    if broker.controller_only:
        obj[_CONTROLLER_ONLY] = True
    return orjson.dumps(obj)


def decode_broker(broker: int, data: bytes) -> RegisteredBroker:
    """Raises BadZNode."""
    obj = load(data)
    try:
        if obj is None:
            raise Malformed("it is not a JSON object")
        version = as_int(obj["version"], lowest=1)
        rack = None if obj.get("rack") is None else as_text(obj["rack"])
        features = {
            as_text(name): (
                as_int(as_object(levels)["min_version"], 0, 2**15 - 1),
                as_int(levels["max_version"], 0, 2**15 - 1),
            )
            for name, levels in as_object(obj.get("features")).items()
        }
        if version == 1:
            port = as_int(obj["port"], 0, _MAX_PORT)
            endpoints: tuple[Endpoint, ...] = (Endpoint("PLAINTEXT", "PLAINTEXT", as_text(obj["host"]), port),)
        else:
            protocols = obj.get("listener_security_protocol_map")
            by_listener = None if protocols is None else {k.upper(): v for k, v in as_object(protocols).items()}
            endpoints = tuple(decode_endpoint(text, by_listener) for text in as_list(obj["endpoints"]))
        return RegisteredBroker(BrokerId(broker), endpoints, rack, features, obj.get(_CONTROLLER_ONLY) is True)
    except (KeyError, ValueError) as e:
        raise malformed(broker_path(broker), e, data) from None


def decode_endpoint(text: object, protocols: Mapping[str, object] | None) -> Endpoint:
    """``LISTENER://host:port``, with the security protocol of ``protocols``; for None, the listener's name is that of
    its protocol (1.19). Raises ValueError."""
    listener, separator, address = as_text(text).partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon:
        raise Malformed(f"{text!r:.100} is not LISTENER://host:port")
    listener = listener.upper()
    protocol = as_text(listener if protocols is None else protocols.get(listener)).upper()
    if protocol not in SECURITY_PROTOCOLS.values():
        raise Malformed(f"listener {listener} has no known security protocol, but {protocol!r:.100}")
    return Endpoint(listener, protocol, host.strip("[]"), as_number(port, 0, _MAX_PORT))


# topics and partitions, rules 1.25-1.29


def encode_topic_id(topic_id: UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def decode_topic_id(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def encode_topic(topic_id: UUID | None, partitions: Mapping[int, ReplicaAssignment]) -> bytes:
    obj: dict[str, Any] = {
        "version": 3,
        "partitions": {str(p): a.replicas for p, a in partitions.items()},
        "adding_replicas": {str(p): a.adding for p, a in partitions.items() if a.adding},
        "removing_replicas": {str(p): a.removing for p, a in partitions.items() if a.removing},
    }
    if topic_id is not None:
        obj["topic_id"] = encode_topic_id(topic_id)
    return orjson.dumps(obj)


def _assignments(lists: Collection[object]) -> Iterator[ReplicaAssignment]:
    """Equal ones, of which a cluster has many, are one object."""
    if not {list}.issuperset(map(type, lists)) or not {int}.issuperset(map(type, chain.from_iterable(lists))):  # type: ignore[arg-type]
        raise Malformed(f"{lists!r:.100} are not lists of numbers")
    return map(_assignment, map(tuple, lists))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=8192)
def _assignment(replicas: tuple[int, ...]) -> ReplicaAssignment:
    return ReplicaAssignment(tuple(BrokerId(as_int(broker)) for broker in replicas))


def decode_topic(topic: str, data: bytes) -> TopicAssignment:
    """Content that is not JSON is an empty assignment (1.26). Raises BadZNode."""
    obj = load(data) or {}
    try:
        text = obj.get("topic_id")
        adding, removing = as_object(obj.get("adding_replicas")), as_object(obj.get("removing_replicas"))
        listed = as_object(obj.get("partitions"))
        numbers = map(_partition_number, listed)
        unsorted = dict(zip(numbers, _assignments(listed.values()), strict=True))
        partitions = dict(sorted(unsorted.items()))
        for p in adding.keys() | removing.keys():
            if p in listed:
                replicas, added, removed = (as_ids(of.get(p, [])) for of in (listed, adding, removing))
                partitions[_partition_number(p)] = ReplicaAssignment(replicas, added, removed)
        return TopicAssignment(topic, decode_topic_id(as_text(text)) if text else None, partitions)
    except ValueError as e:
        raise malformed(topic_path(topic), e, data) from None


@functools.lru_cache(maxsize=8192)  # many partitions have equal leaders, ISRs and epochs
def encode_partition_state(leadership: Leadership) -> bytes:
    state, controller_epoch = leadership
    recovery = f',"leader_recovery_state":{state.recovery_state}' if state.recovery_state != RECOVERED else ""
    # only numbers: formatting is five times faster than a JSON encoder
    return (
        f'{{"version":1,"leader":{state.leader},"leader_epoch":{state.leader_epoch},'
        f'"controller_epoch":{controller_epoch},"isr":[{",".join(map(str, state.isr))}]{recovery}}}'
    ).encode()


@functools.lru_cache(maxsize=8192)  # as above
def decode_partition_state(data: bytes, partition_epoch: int) -> Leadership | None:
    """None for malformed content (6.14 calls that "no leader/isr information")."""
    obj = load(data)
    try:
        if obj is None:
            return None
        state = LeaderAndIsr(
            BrokerId(as_int(obj["leader"])),
            as_ids(obj["isr"]),
            as_int(obj["leader_epoch"]),
            as_int(obj.get("leader_recovery_state", RECOVERED), RECOVERED, RECOVERING),
            partition_epoch,
        )
        return Leadership(state, ControllerEpoch(as_int(obj["controller_epoch"])))
    except (KeyError, ValueError):
        return None
