"""Log lines of real brokers about control requests that they refuse, by kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_RESENT = "resent when a broker comes or goes (rules 9.19, 11.58)"
_DEPOSED = "from a real broker that has just been deposed"
#: kinds that every controller causes, and why
EXPECTED = {
    **{
        f"INFO [Broker id=N] Ignoring LeaderAndIsr request from controller {who} with correlation id N epoch N for"
        " partition P since its associated leader epoch N matches the current leader epoch": _RESENT
        for who in ("N", "A")
    },
    "WARN [Broker id=N] Ignoring LeaderAndIsr request from controller N with correlation id N since its controller"
    " epoch N is old. Latest known controller epoch is N": _DEPOSED,
    "WARN [Broker id=N] Received update metadata request with correlation id N from an old controller N with epoch N."
    " Latest known controller epoch is N": _DEPOSED,
    **{
        f"ERROR [Broker id=N] Received LeaderAndIsrRequest with correlation id N from controller {who} epoch N for"
        " partition P (last update controller epoch N) but cannot become follower since the new leader NONE is"
        " unavailable.": "a lone replica comes back and gets its state before its election (rule 11.54)"
        for who in ("N", "A")
    },
    "ERROR [KafkaApiN] Unexpected error handling request UPDATE_METADATA from controller N": _DEPOSED,
}

_LINE = re.compile(
    r"\[[^]]*\] (\w+ \[(?:Broker|Kafka|Replica).*)"
    r" \((?:state\.change\.logger|kafka\.server\.(?:KafkaApis|ReplicaManager))\)"
)
_REFUSED = re.compile(r"^(?:WARN|ERROR) |ignor|reject|stale|inconsistent|is old|not higher", re.IGNORECASE)
_NAMES = (
    (re.compile(r"RequestHeader\(apiKey=(\w+),.*?controllerId=(\d+),.*"), r"\1 from controller \2"),
    (re.compile(r"RequestHeader\(apiKey=(\w+),.*"), r"\1"),
    (re.compile(r"(?<=partition )[\w.-]+-\d+"), "P"),
    (re.compile(r"(?<=controller )100\b"), "A"),
    (re.compile(r"(?<=leader )-1\b"), "NONE"),
    (re.compile(r"-?\d+"), "N"),
)


def refusals(logs: Iterable[str]) -> Counter[str]:
    """How often each kind occurs. In its text A is node 100 as controller, N any other number, P a partition."""
    found: Counter[str] = Counter()
    for log in logs:
        for line in _LINE.finditer(log):
            text = line[1]
            if _REFUSED.search(text):
                for pattern, letter in _NAMES:
                    text = pattern.sub(letter, text)
                found[text] += 1
    return found
