"""The section about traces of docs/interop.md. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.interop.kafka_jars import VERSION
from tests.interop.trace_diff import NOT_DETERMINISTIC, Comparison

_HEAD = f"""## The same traces

Two controllers, ours and that of Kafka {VERSION}, each drive nine brokers that only record and answer. Both get equal
steps: topics, partitions, reassignments, elections and settings that change by request or in ZooKeeper, brokers that
die, come back or bounce, several in one event, ISRs that change by AlterPartition, controlled shutdowns, failovers.
After each step, when the controller has nothing more to do, all that it sent, answered and wrote is compared: of each
request every field, its correlation id included, and its place in the order of its broker; of each znode the JSON value
and the version; of each answer every field but the texts of errors. Topic ids and broker epochs are replaced by numbers
in the order in which they appear, ports by the name of their listener; a timestamp only has to be one.
"""


def section(compared: Mapping[str, Comparison]) -> str:
    """``compared``: by script. The last is Kafka beside Kafka."""
    rows = [
        f"| {name} | {c.steps} | {_of(c.identical, c.requests)} | {_of(c.identical_znodes, c.znodes)} "
        f"| {_of(c.identical_answers, c.answers)} | {sum(c.by_chance.values()):,} |"
        for name, c in compared.items()
    ]
    by_chance = sum((c.by_chance for c in compared.values()), Counter[tuple[str, str]]())
    return "\n".join(
        [
            _HEAD,
            "| script | steps | requests identical | znodes identical | answers identical | requests with an order by"
            " chance |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "What Kafka orders by chance, and is compared as a set:",
            "",
            *(f"- `{name}` of {api} ({by_chance[api, name]:,} times): {why}." for (api, name), why in _reasons()),
            "",
            "What depends on the timing, and the scripts leave out: a DeleteTopics that names several topics. Their"
            " markers are written one after the other, and a controller deletes at first as many as it finds.",
            "",
            *_differences(compared),
        ]
    )


def _of(identical: int, all_of_them: int) -> str:
    return f"{identical:,} of {all_of_them:,}"


def _reasons() -> list[tuple[tuple[str, str], str]]:
    return list(NOT_DETERMINISTIC.items())


def _differences(compared: Mapping[str, Comparison]) -> list[str]:
    lines = [f"- {name}: {difference}" for name, c in compared.items() for difference in c.differences]
    return ["Differences:", "", *lines, ""] if lines else ["There are no other differences.", ""]


def problems(compared: Mapping[str, Comparison]) -> list[str]:
    return [f"traces of {name}: {difference}" for name, c in compared.items() for difference in c.differences]
