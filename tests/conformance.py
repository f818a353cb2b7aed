"""`make conformance`: which upstream test cases have a test here.

Compares the marks `@pytest.mark.kafka(id)` and `@pytest.mark.flink(id)` with the checklists that end the rule
documents. conformance_left_out.toml says which cases have no test here, and which are ported in part, with reasons.
Exits with 1 if a case is neither ported nor left out, or if anything contradicts: a mark without such a case, a reason
for a case that has a test or for a part of one that has none, one id on two tests, or two ids on one test.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: a suite in a headline: `#### SS — `, `: FZE `, and others after it
SUITE = re.compile(r"(?:^#+ |[;:,] )(?P<suite>[A-Z]{2,6}) (?:— |`)")
#: a case in a list, and others of its suite behind it: `SS-4`, `LVT-5..7`, `LVT-39, 40`
CASES = re.compile(r"\b(?P<suite>[A-Z]{2,6})-(?P<numbers>\d+(?:(?:\.\.|, )\d+(?!\w))*)")
#: a case, a range or a suite, as conformance_left_out.toml names them
NAMED = re.compile(r"(?P<suite>[A-Z]{2,6})(?:-(?P<first>\d+)(?:\.\.(?P<last>\d+))?)?")


@dataclass(frozen=True)
class Document:
    """``section`` lists the cases of ``project``. ``complete``: each case has one test, which is for that case only."""

    project: str
    path: str
    section: int
    complete: bool


DOCUMENTS = (
    Document("kafka", "docs/controller-semantics.md", 14, complete=True),
    Document("kafka", "docs/broker-semantics.md", 12, complete=False),
    Document("kafka", "docs/group-semantics.md", 14, complete=False),
    Document("kafka", "docs/transaction-semantics.md", 16, complete=False),
    Document("flink", "docs/election-semantics.md", 13, complete=True),
)


@dataclass
class Checklist:
    """The cases of one document, and what became of each."""

    document: Document
    #: ids in document order
    cases: list[str]
    #: id or suite -> why there is no test; a suite's reason is for those of its cases that have none
    reasons: dict[str, str] = field(default_factory=dict)
    #: id -> what its test does not check, and why
    in_part: dict[str, str] = field(default_factory=dict)
    #: id -> the tests marked with it
    ported: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def left_out(self) -> dict[str, str]:
        """Case -> why it has no test."""
        return {
            case: reason
            for case in self.cases
            if case not in self.ported and (reason := self.reasons.get(case) or self.reasons.get(suite(case)))
        }

    def missing(self) -> list[str]:
        left_out = self.left_out
        return [case for case in self.cases if case not in self.ported and case not in left_out]

    def mistakes(self) -> Iterator[str]:
        for case, tests in self.ported.items():
            if suite(case) in self.reasons and self.document.complete:
                yield f"{suite(case)} is left out, and {case} is ported: name the others"
            if len(tests) > 1 and self.document.complete:
                yield f"{case} is on {len(tests)} tests: {', '.join(sorted(tests))}"
        for name in self.reasons:
            if all(case in self.ported for case in self.cases if suite(case) == name or case == name):
                yield f"{name} is left out, and all of it has tests"
        for case in self.in_part:
            if case not in self.ported:
                yield f"{case} is listed as ported in part, but has no test"

    def report(self) -> None:
        print(f"{self.document.project}: {self.document.path}, section {self.document.section}")
        all_left_out = self.left_out
        print(f"  {'suite':<8}{'ported':>8}{'in part':>9}{'left out':>10}{'missing':>9}{'total':>8}")
        by_suite: defaultdict[str, list[str]] = defaultdict(list)
        for case in self.cases:
            by_suite[suite(case)].append(case)
        for name, cases in [*by_suite.items(), ("all", self.cases)]:
            in_part = sum(case in self.in_part for case in cases)
            ported = sum(case in self.ported for case in cases) - in_part
            left_out = sum(case in all_left_out for case in cases)
            missing = len(cases) - ported - in_part - left_out
            print(f"  {name:<8}{ported:>8}{in_part or '':>9}{left_out or '':>10}{missing or '':>9}{len(cases):>8}")
        for word, reasons in (("in part", self.in_part), ("left out", all_left_out)):
            for reason, group in by_reason(reasons):
                print(f"  {word:<10}{', '.join(self._spans(group))}: {reason}")
        if missing := self.missing():
            print(f"  missing   {', '.join(self._spans(missing))}")
        print()

    def _spans(self, cases: Iterable[str]) -> Iterator[str]:
        """The cases as in conformance_left_out.toml: whole suites, ranges, cases."""
        of_suites: defaultdict[str, list[int]] = defaultdict(list)
        for case in cases:
            of_suites[suite(case)].append(int(case.rpartition("-")[2]))
        for name, of_suite in of_suites.items():
            if len(of_suite) == sum(suite(case) == name for case in self.cases):
                yield name
                continue
            for _, group in groupby(enumerate(sorted(of_suite)), lambda item: item[1] - item[0]):
                span = [number for _, number in group]
                yield f"{name}-{span[0]}" + (f"..{span[-1]}" if len(span) > 1 else "")


def suite(case: str) -> str:
    return case.rpartition("-")[0]


def by_reason(reasons: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for case, reason in reasons.items():
        groups[reason].append(case)
    yield from groups.items()


def read_cases(lines: Iterable[str], section: int) -> list[str]:
    """The ids in a section: those of its headlines' suites, each once."""
    suites: set[str] = set()
    cases: dict[str, None] = {}
    inside = False
    for line in lines:
        if line.startswith("## "):
            inside = line.startswith(f"## {section}.")
        elif inside and line.startswith("#"):
            suites.update(found["suite"] for found in SUITE.finditer(line))
        elif inside and line.startswith("- "):
            for found in CASES.finditer(line):
                if found["suite"] in suites:
                    cases.update((f"{found['suite']}-{number}", None) for number in numbers(found["numbers"]))
    return list(cases)


def numbers(text: str) -> Iterator[int]:
    """`5..7, 9`: 5, 6, 7 and 9."""
    for part in text.split(", "):
        first, _, last = part.partition("..")
        yield from range(int(first), int(last or first) + 1)


def expand(named: Mapping[str, str], cases: Iterable[str]) -> dict[str, str]:
    """Reasons by case, range or suite -> by case or suite. Raises ValueError for a name that is unknown or repeated."""
    known = list(cases)
    of_suites = set(map(suite, known))
    found: dict[str, str] = {}
    for name, reason in named.items():
        match = NAMED.fullmatch(name)
        if match is None or match["suite"] not in of_suites:
            raise ValueError(f"{name} is not in the documents")
        these = [name]
        if match["first"] is not None:
            span = range(int(match["first"]), int(match["last"] or match["first"]) + 1)
            these = [f"{match['suite']}-{number}" for number in span]
            if set(these) - set(known):
                raise ValueError(f"{name} is not in the documents")
        if twice := found.keys() & set(these):
            raise ValueError(f"{name} repeats {', '.join(sorted(twice))}")
        found.update((case, reason) for case in these)
    return found


def read_checklists(reasons: Mapping[str, Mapping[str, Mapping[str, str]]]) -> list[Checklist]:
    """``reasons``: project -> "left_out" or "in_part" -> reasons by name. Raises ValueError."""
    checklists = []
    for document in DOCUMENTS:
        lines = (ROOT / document.path).read_text(encoding="utf-8").splitlines()
        checklists.append(Checklist(document, read_cases(lines, document.section)))
    for project, kinds in reasons.items():
        of_project = [checklist for checklist in checklists if checklist.document.project == project]
        every_case = [case for checklist in of_project for case in checklist.cases]
        for kind, named in kinds.items():
            for name, reason in expand(named, every_case).items():
                checklist = next(c for c in of_project if name in c.cases or name in map(suite, c.cases))
                {"left_out": checklist.reasons, "in_part": checklist.in_part}[kind][name] = reason
    return checklists


class Marks:
    """A pytest plugin that reads the marks of collected tests."""

    def __init__(self, checklists: list[Checklist]) -> None:
        self._checklist = {(c.document.project, case): c for c in checklists for case in c.cases}
        self.mistakes: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if not (item.get_closest_marker("skip") or item.get_closest_marker("xfail")):  # it never runs
                self._read(item)

    def _read(self, item: pytest.Item) -> None:
        test = item.nodeid.partition("[")[0]
        alone = []
        for project in ("kafka", "flink"):
            for case in [str(mark.args[0]) for mark in item.iter_markers(project)]:
                checklist = self._checklist.get((project, case))
                if checklist is None:
                    self.mistakes.add(f"{test} is marked {case}, which no document has")
                    continue
                checklist.ported[case].add(test)
                if checklist.document.complete:
                    alone.append(case)
        if len(alone) > 1:
            self.mistakes.add(f"{item.nodeid} has several ids: {', '.join(sorted(alone))}")


def main() -> int:
    try:
        checklists = read_checklists(
            tomllib.loads((ROOT / "tests/conformance_left_out.toml").read_text(encoding="utf-8"))
        )
    except ValueError as e:
        print(f"tests/conformance_left_out.toml: {e}", file=sys.stderr)
        return 1
    marks = Marks(checklists)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main(["--collect-only", "-q", "--rootdir", str(ROOT), str(ROOT / "tests")], plugins=[marks])
    if status != 0:
        print(output.getvalue(), end="")
        return int(status)
    for checklist in checklists:
        checklist.report()
    mistakes = sorted(marks.mistakes.union(*(checklist.mistakes() for checklist in checklists)))
    for mistake in mistakes:
        print(f"mistake   {mistake}")
    return 1 if mistakes or any(checklist.missing() for checklist in checklists) else 0


if __name__ == "__main__":
    sys.exit(main())
