"""JSON of the znodes of configurations, the cluster, notifications and requests of admins (section 1). Pure.

Encoders and decoders as in ``znodes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from kce.zookeeper.model import BrokerId, ProducerIdsBlock, TopicPartition
from kce.zookeeper.node_json import (
    BadZNode,
    Malformed,
    as_ids,
    as_int,
    as_list,
    as_number,
    as_object,
    as_text,
    is_json,
    load,
    malformed,
)
from kce.zookeeper.znodes import CLUSTER_ID, FEATURE, PRODUCER_ID_BLOCK, REASSIGN_PARTITIONS


def encode_config(config: Mapping[str, str]) -> bytes:
    return orjson.dumps({"version": 1, "config": dict(config)})


def encode_config_change(kind: str, name: str) -> bytes:
    """Rule 1.35."""
    return orjson.dumps({"version": 2, "entity_path": f"{kind}/{name}"})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """Missing data, and content that is not JSON, mean no overrides (1.34). Raises BadZNode."""
    try:
        return {k: str(v) for k, v in as_object((load(data) or {}).get("config")).items()}
    except ValueError as e:
        raise malformed(path, e, data) from None


def decode_config_change(path: str, data: bytes) -> tuple[str, str]:
    """(entity type, entity) of a notification in /config/changes; for a user's client the entity is "user/clients/id"
    (1.35). Raises BadZNode."""
    obj = load(data) or {}
    try:
        if obj["version"] == 1 and obj["entity_type"] in ("topics", "clients"):
            return obj["entity_type"], str(obj["entity_name"])
        if obj["version"] == 2:
            entity_type, slash, entity = obj["entity_path"].partition("/")
            if slash and entity:
                return entity_type, entity
    except (KeyError, AttributeError):
        pass
    raise BadZNode(f"{path} has no configuration change: {data[:200]!r}")


def encode_cluster_id(cluster_id: str) -> bytes:
    return orjson.dumps({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """Raises BadZNode."""
    obj = load(data)
    if obj is None or not isinstance(obj.get("id"), str):
        raise BadZNode(f"{CLUSTER_ID} has no id: {data[:100]!r}")
    return str(obj["id"])


def encode_feature(version: int, *, enabled: bool, features: Mapping[str, int]) -> bytes:
    """/feature (1.41). ``features``: name -> finalized level."""
    lowest = {"min_version_level": 1} if version == 1 else {}
    levels = {name: {**lowest, "max_version_level": level} for name, level in features.items()}
    return orjson.dumps({"version": version, "status": int(enabled), "features": levels})


def decode_feature(data: bytes) -> tuple[bool, dict[str, int]]:
    """(enabled, finalized level by feature). Raises BadZNode."""
    obj = load(data)
    try:
        if obj is None or (version := obj["version"]) not in (1, 2) or obj["status"] not in (0, 1):
            raise Malformed("neither version 1 nor 2, or no status")
        levels = {}
        for name, entry in as_object(obj["features"]).items():
            lowest = as_int(as_object(entry)["min_version_level"], 1, 2**15 - 1) if version == 1 else 1
            levels[as_text(name)] = as_int(as_object(entry)["max_version_level"], lowest, 2**15 - 1)
        return bool(obj["status"]), levels
    except (KeyError, ValueError) as e:
        raise malformed(FEATURE, e, data) from None


def decode_partition_list(path: str, data: bytes) -> list[TopicPartition]:
    """The partitions of an isr-change notification or a preferred election (1.32, 1.39); [] if it is not JSON.

    Raises BadZNode."""
    try:
        if (obj := load(data)) is None and is_json(data):
            raise Malformed("it is not a JSON object")
        return [_partition(p) for p in as_list((obj or {}).get("partitions"))]
    except (KeyError, ValueError) as e:
        raise malformed(path, e, data) from None


def _partition(value: object) -> TopicPartition:
    obj = as_object(value)
    return TopicPartition(as_text(obj["topic"]), as_int(obj["partition"]))


def encode_partition_list(partitions: Iterable[TopicPartition]) -> bytes:
    return orjson.dumps(
        {"version": 1, "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]}
    )


def encode_log_dir_event(broker: int) -> bytes:
    """Rule 1.33: failure is the only event."""
    return orjson.dumps({"version": 1, "broker": broker, "event": 1})


def decode_log_dir_event(data: bytes) -> BrokerId | None:
    """The broker whose log directory failed (1.33)."""
    try:
        return BrokerId(as_int((load(data) or {}).get("broker")))
    except ValueError:
        return None


_REASSIGNED = frozenset(("topic", "partition", "replicas"))


def encode_partition_reassignment(targets: Mapping[TopicPartition, Iterable[BrokerId]]) -> bytes:
    """/admin/reassign_partitions (1.38)."""
    partitions = [{"topic": tp.topic, "partition": tp.partition, "replicas": list(t)} for tp, t in targets.items()]
    return orjson.dumps({"version": 1, "partitions": partitions})


def decode_partition_reassignment(data: bytes) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Raises BadZNode; also, as Kafka's classes for this node, for fields that are not its own (1.38)."""
    obj = load(data)
    try:
        if obj is None:
            raise Malformed("it is not a JSON object")
        partitions = as_list(obj.get("partitions"))
        for known, part in (({"version", "partitions"}, obj), *((_REASSIGNED, as_object(p)) for p in partitions)):
            if unknown := sorted(part.keys() - known):
                raise Malformed(f"it has no field {unknown[0]!r}")
        return {_partition(p): as_ids(p["replicas"]) for p in partitions}
    except (KeyError, ValueError) as e:
        raise malformed(REASSIGN_PARTITIONS, e, data) from None


def encode_producer_id_block(block: ProducerIdsBlock) -> bytes:
    """/latest_producer_id_block (1.43)."""
    return orjson.dumps(
        {"version": 1, "broker": block.broker, "block_start": str(block.first), "block_end": str(block.last)}
    )


def decode_producer_id_block(data: bytes) -> ProducerIdsBlock:
    """Raises BadZNode."""
    obj = load(data) or {}
    try:
        first, last = (as_number(obj[key], 0, 2**63 - 1) for key in ("block_start", "block_end"))
        return ProducerIdsBlock(BrokerId(as_int(obj["broker"])), first, last)
    except (KeyError, ValueError) as e:
        raise malformed(PRODUCER_ID_BLOCK, e, data) from None
