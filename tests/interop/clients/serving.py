"""What a driver in Python has in common with the others: it reads requests, calls the client, and answers.

The protocol, JSON lines: `{"do": "fetch", "topic": "t", "partition": 0, "offset": 7, "count": 2}` on standard input,
the answer on standard output. A driver that fails ends, with the reason on standard error. Requests and answers:

- create(topic, partitions, replicas), delete(topic), delete_records(topic, partition, offset): {}
- topics(): {"topics": [name, ...]}
- produce(topic, codec, records): {} when all are acknowledged by all replicas. A record is [partition, value,
  timestamp in ms]; its key is "k", its header h is "1". Codecs have Kafka's names. Idempotent if the client can be.
- fetch(topic, partition, offset, count): {"records": [[offset, value, timestamp, key, header h], ...]}
- offset_at(topic, partition, timestamp_ms): {"offset": number}
- bounds(topic, partition): {"earliest": number, "latest": number}
"""

from __future__ import annotations

import json
import sys
from typing import Any

#: of one request, in seconds: leaders move meanwhile
LIMIT_S = 120
KEY = b"k"
HEADERS = [("h", b"1")]


def serve(client: Any) -> None:
    """Until standard input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(client, request.pop("do"))(**request)
        print(json.dumps(answer or {}), flush=True)


def described(
    offset: int, value: bytes, timestamp_ms: int | None, key: bytes | None, headers: list[tuple[str, bytes]]
) -> list[object]:
    """A record of an answer."""
    header = next((content.decode() for name, content in headers if name == "h"), None)
    return [offset, value.decode(), timestamp_ms, key.decode() if key else None, header]
