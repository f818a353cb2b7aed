"""What differs between two captures: counts, order, latencies, findings. Plain values, and their four forms."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kce.captures.exchanges.render import printable
from kce.captures.spark.analyses.analysis import Finding
from kce.captures.spark.analyses.outages import is_outage
from kce.captures.spark.analyses.words import duration
from kce.captures.spark.findings import Findings

#: Latencies are compared where both captures have as many answers, and shown if they differ by this factor.
_MIN_ANSWERS = 5
_FACTOR = 1.25


class Difference(NamedTuple):
    """One row: a quantity before and after, as text. None where it does not exist."""

    what: str
    before: str | None
    after: str | None


class Part(NamedTuple):
    """Differences of one kind; ``same`` says what is shown if there are none."""

    heading: str
    same: str
    rows: tuple[Difference, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """``gone`` are findings of the first capture only, ``new`` of the second only, ``kept`` how many both have."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    parts: tuple[Part, ...]
    gone: tuple[Finding, ...]
    new: tuple[Finding, ...]
    kept: int
    sound: bool


def compare(before: Findings, after: Findings) -> Comparison:
    parts = (
        Part("Counts", "All counts are equal.", tuple(_changed(_counts(before), _counts(after)))),
        Part("Versions", "All APIs were used in the same versions.", tuple(_versions(before, after))),
        Part("Order of leader changes", "Leaders changed in the same order.", tuple(_order(before, after))),
        Part("Latencies", f"No latency differs by {_FACTOR:g} times or more.", tuple(_latencies(before, after))),
    )
    first, second = _by_meaning(before), _by_meaning(after)
    return Comparison(
        before=before.files,
        after=after.files,
        parts=parts,
        gone=tuple(finding for key, finding in first.items() if key not in second),
        new=tuple(finding for key, finding in second.items() if key not in first),
        kept=len(first.keys() & second.keys()),
        sound=before.quality.sound and after.quality.sound,
    )


def _counts(found: Findings) -> Counter[str]:
    quality = found.quality
    counts = Counter({
        "requests": quality.requests, "responses": quality.responses, "Kafka connections": quality.connections,
        "requests without an answer": quality.unanswered, "controller epochs": len(found.controllers),
        "leader changes": sum(row.from_leader is not None for row in found.leadership),
        "ISR changes": len(found.isr_changes), "brokers that came back": len(found.bounces),
        "partitions without a leader":
            sum(is_outage(row, found.thresholds.outage_ms) for row in found.outages),
    })  # fmt: skip
    for row in found.requests:
        counts[f"{row.api} requests"] += row.requests
    for row in found.errors:
        counts[f"{row.api}: {row.error}"] += row.count
    return counts


def _changed(before: Counter[str], after: Counter[str]) -> Iterator[Difference]:
    for what in dict.fromkeys((*before, *after)):
        if before[what] != after[what]:
            yield Difference(what, f"{before[what]:,}", f"{after[what]:,}")


def _versions(before: Findings, after: Findings) -> Iterator[Difference]:
    first, second = _versions_of(before), _versions_of(after)
    for api in sorted(first.keys() | second.keys()):
        if first.get(api) != second.get(api):
            yield Difference(api, first.get(api), second.get(api))


def _versions_of(found: Findings) -> dict[str, str]:
    versions: dict[str, list[int]] = {}
    for row in found.requests:
        versions.setdefault(row.api, []).append(row.version)
    return {api: ", ".join(map(str, sorted(of_it))) for api, of_it in versions.items()}


def _order(before: Findings, after: Findings) -> Iterator[Difference]:
    """Where the sequences of leader changes part."""
    first, second = _changes(before), _changes(after)
    matcher = difflib.SequenceMatcher(a=first, b=second, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            behind = f"after {first[a - 1]}" if a else "at the beginning"
            yield Difference(behind, _listed(first[a:b]), _listed(second[c:d]))


def _changes(found: Findings) -> list[str]:
    def name(leader: int) -> str:
        return "none" if leader == -1 else "deleted" if leader == -2 else str(leader)

    return [
        f"{row.topic}-{row.partition} {name(row.from_leader)} → {name(row.to_leader)}"
        for row in found.leadership
        if row.from_leader is not None
    ]


def _listed(changes: list[str]) -> str | None:
    more = f" and {len(changes) - 8} more" if len(changes) > 8 else ""
    return ", ".join(changes[:8]) + more or None


def _latencies(before: Findings, after: Findings) -> Iterator[Difference]:
    """Medians, 99th percentiles and maxima by API and listener, the largest difference first."""
    first, second = _measured(before), _measured(after)
    factors = {what: max(second[what], 1e-3) / max(first[what], 1e-3) for what in first if what in second}
    for what in sorted(factors, key=lambda each: -max(factors[each], 1 / factors[each])):
        if max(factors[what], 1 / factors[what]) >= _FACTOR:
            yield Difference(what, duration(first[what]), f"{duration(second[what])} ({factors[what]:.2g} times)")


def _measured(found: Findings) -> dict[str, float]:
    """Of several versions of an API, the one with the most answers counts."""
    values: dict[str, float] = {}
    for row in sorted(found.latency, key=lambda row: row.requests):
        if row.requests >= _MIN_ANSWERS:
            for name, value in (("median", row.p50_ms), ("99 %", row.p99_ms), ("longest", row.max_ms)):
                values[f"{row.api} at {row.listener}, {name}"] = value
    return values


#: What differs between two runs of the same story: times, packets, durations, numbers, addresses.
_INCIDENTAL = re.compile(
    r" \(packets? [^)]*\)|\d\d:\d\d:\d\d(\.\d+)?|\d+(\.\d+){3}:\d+|[\d,.]+ (s|ms|bytes)\b|\b[\d,]+(?= \w)|\b\d+\b"
)


def _by_meaning(found: Findings) -> dict[tuple[str, str, str], Finding]:
    """Findings by analysis, severity and their text without what is incidental."""
    return {
        (finding.analysis, finding.severity, _INCIDENTAL.sub("", finding.text)): finding for finding in found.findings()
    }


# forms


def to_text(compared: Comparison) -> str:
    """Columns two spaces apart."""
    lines = [f"before: {', '.join(compared.before)}", f"after: {', '.join(compared.after)}"]
    for part in compared.parts:
        lines += ["", f"# {part.heading}"]
        cells = [("", "before", "after"), *((row.what, row.before or "-", row.after or "-") for row in part.rows)]
        widths = [max(len(printable(row[column])) for row in cells) for column in range(2)]
        lines += (
            [f"{printable(a):<{widths[0]}}  {printable(b):<{widths[1]}}  {printable(c)}".rstrip() for a, b, c in cells]
            if part.rows
            else [part.same]
        )
    for heading, findings in (("Findings only before", compared.gone), ("Findings only after", compared.new)):
        lines += ["", f"# {heading}", *(_said(finding) for finding in findings)] if findings else []
    return "\n".join([*lines, "", f"{compared.kept} findings are the same in both."]) + "\n"


def _said(finding: Finding) -> str:
    return printable(("" if finding.severity == "note" else f"{finding.severity}: ") + finding.text)


def to_markdown(compared: Comparison) -> str:
    def cell(text: str | None) -> str:
        return "–" if text is None else "".join("\\" + c if c in "\\`*_[]<>|#" else c for c in printable(text))

    lines = ["# Control plane comparison", ""]
    lines += [f"- before: {cell(', '.join(compared.before))}", f"- after: {cell(', '.join(compared.after))}"]
    for part in compared.parts:
        lines += ["", f"## {part.heading}", ""]
        lines += ["| | before | after |", "|---|---|---|"] if part.rows else [part.same]
        lines += [f"| {cell(row.what)} | {cell(row.before)} | {cell(row.after)} |" for row in part.rows]
    for heading, findings in (("Findings only before", compared.gone), ("Findings only after", compared.new)):
        lines += ["", f"## {heading}", "", *(f"- {cell(_said(finding))}" for finding in findings)] if findings else []
    return "\n".join([*lines, "", f"{compared.kept} findings are the same in both."]) + "\n"


def to_json(compared: Comparison) -> str:
    def plain(findings: Iterable[Finding]) -> list[dict[str, str]]:
        return [{"analysis": f.analysis, "severity": f.severity, "text": f.text} for f in findings]

    whole = {
        "before": compared.before,
        "after": compared.after,
        "differences": {part.heading: [row._asdict() for row in part.rows] for part in compared.parts},
        "only_before": plain(compared.gone),
        "only_after": plain(compared.new),
        "same_findings": compared.kept,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def to_html(compared: Comparison) -> str:
    from kce.captures.spark.report import environment, escaped

    names = [Path(name).name for name in (*compared.before, *compared.after)]
    return escaped(environment().get_template("compare.html.j2").render(c=compared, names=names))


FORMS: dict[str, Callable[[Comparison], str]] = {
    "text": to_text, "html": to_html, "json": to_json, "markdown": to_markdown,
}  # fmt: skip
