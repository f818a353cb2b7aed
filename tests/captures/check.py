"""Does what `kce decode --json` printed equal the truth? The rules by which captures of real Kafka are judged."""

from __future__ import annotations

import collections
import re
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

CONTROL = {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown"}
ERRORS = {
    "unknown_server_error": -1, "none": 0, "offset_out_of_range": 1, "unknown_topic_or_partition": 3,
    "not_leader_or_follower": 6, "stale_controller_epoch": 11, "cluster_authorization_failed": 31, "not_controller": 41,
    "kafka_storage_error": 56, "fenced_leader_epoch": 74, "stale_broker_epoch": 77, "inconsistent_topic_id": 103,
}  # fmt: skip


def norm(x: Any, key: str = "") -> Any:
    """Field names without underscores and case, error codes as numbers, the absent topic id as zeros."""
    if isinstance(x, dict):
        pairs = ((re.sub(r"[_ ]", "", k).lower(), v) for k, v in x.items())
        return {k: norm(v, k) for k, v in pairs if k not in ("tags", "taggedfields", "unknowntaggedfields")}
    if isinstance(x, (list, tuple)):
        return [norm(v, key) for v in x]
    if key.endswith("errorcode") and isinstance(x, str):
        return ERRORS.get(x.lower(), x.lower())
    if key == "topicid":
        return str(x).lower() if x else "00000000-0000-0000-0000-000000000000"
    return x


def differences(want: Any, got: Any, path: str = "") -> Iterator[str]:
    """What is in `want` must be in `got`; fields that `got` has besides (those of other versions) are let pass."""
    if isinstance(want, dict) and isinstance(got, dict):
        for k, v in want.items():
            if k not in got:
                yield f"{path}.{k}: missing"
            else:
                yield from differences(v, got[k], f"{path}.{k}")
    elif isinstance(want, list) and isinstance(got, list):
        if len(want) != len(got):
            yield f"{path}: {len(want)} expected, {len(got)} found"
        for i, (x, y) in enumerate(zip(want, got, strict=False)):
            yield from differences(x, y, f"{path}[{i}]")
    elif want != got or isinstance(want, bool) != isinstance(got, bool):
        yield f"{path}: {want!r} expected, {got!r} found"


def multiset(title: str, want: Iterable[Hashable], got: Iterable[Hashable], bad: list[str]) -> None:
    a, b = collections.Counter(want), collections.Counter(got)
    bad += [f"{title} missing: {k} x{n}" for k, n in sorted((a - b).items(), key=str)]
    bad += [f"{title} not in the capture: {k} x{n}" for k, n in sorted((b - a).items(), key=str)]


def compare(truth: dict[str, Any], seen: list[dict[str, Any]]) -> list[str]:
    """Every difference between the truth and the decoded lines; empty if they are equal."""
    bad = [f"unknown kind {m.get('kind')!r}" for m in seen if m.get("kind") not in ("request", "response")]
    requests = [m for m in seen if m.get("kind") == "request"]
    responses = [m for m in seen if m.get("kind") == "response"]
    multiset(
        "request (packet, api, version, correlation id, client id)",
        (tuple(r[:5]) for r in truth["all_requests"]),
        ((m["packet"], m["api"], m["version"], m["correlation_id"], m.get("client_id")) for m in requests),
        bad,
    )
    multiset(
        "response (packet, api, version, correlation id)",
        (tuple(r[:4]) for r in truth["all_responses"]),
        ((m["packet"], m["api"], m["version"], m["correlation_id"]) for m in responses),
        bad,
    )
    by_request = {(m["packet"], m["api"], m["correlation_id"]): m for m in requests if m["api"] in CONTROL}
    by_response = {(m["packet"], m["api"], m["correlation_id"]): m for m in responses if m["api"] in CONTROL}
    for w in truth["control_requests"]:
        at = f"packet {w['request_packet']} {w['api']} v{w['version']} #{w['correlation_id']}"
        g = by_request.get((w["request_packet"], w["api"], w["correlation_id"]))
        if g is None:
            bad.append(f"{at}: not found")
            continue
        if abs(w["request_time"] - float(g["time"])) > 1e-3:
            bad.append(f"{at}: time {w['request_time']} expected, {g['time']} found")
        bad += [f"{at}: {d}" for d in differences(norm(w["body"]), norm(g["body"]))]
        if "response" in w:
            r = by_response.get((w["response_packet"], w["api"], w["correlation_id"]))
            if r is None:
                bad.append(f"{at} response: not found")
            else:
                bad += [f"{at} response: {d}" for d in differences(norm(w["response"]), norm(r["body"]))]
    return bad
