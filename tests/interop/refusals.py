"""What real brokers log of control requests that they do not follow, told apart by kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_MATCHES = (
    "INFO [Broker id=N] Ignoring LeaderAndIsr request from controller N with correlation id N epoch N for partition P"
    " since its associated leader epoch N matches the current leader epoch"
)
#: kinds that every controller causes, and why
EXPECTED = {_MATCHES: "said again when a broker comes or goes (rules 9.19, 11.58)"}

_LINE = re.compile(r"\[[^]]*\] (.*) \((?:state\.change\.logger|kafka\.server\.(?:KafkaApis|ReplicaManager))\)")
_REFUSED = re.compile(r"^(?:WARN|ERROR) |ignor|reject|stale|inconsistent|is old|not higher", re.IGNORECASE)
_NAMES = ((re.compile(r"(?<=partition )[\w.-]+-\d+"), "P"), (re.compile(r"-?\d+"), "N"))


def refusals(logs: Iterable[str]) -> Counter[str]:
    """How often each kind occurs; numbers and partitions in the text are replaced by letters."""
    found: Counter[str] = Counter()
    for log in logs:
        for line in _LINE.finditer(log):
            text = line[1]
            if _REFUSED.search(text):
                for pattern, letter in _NAMES:
                    text = pattern.sub(letter, text)
                found[text] += 1
    return found
