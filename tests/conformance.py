"""`make conformance`: which upstream test cases have a test here.

Compares `@pytest.mark.kafka(id)` with section 14 of docs/controller-semantics.md and `@pytest.mark.flink(id)` with
section 13 of docs/election-semantics.md. conformance_left_out.toml lists cases and suites that are not ported, with
reasons. Exits with 1 if a case is neither ported nor listed there, or if a mark is wrong: an unknown id, a case that is
both ported and listed and, in suites that are ported completely, one id on two tests or two ids on one test.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CASE = re.compile(r"^- (?P<suite>[A-Z]+)-(?P<number>\d+) (?P<name>.*)$")


@dataclass
class Checklist:
    """The cases of one project: ``cases`` is id -> name, in document order."""

    project: str
    document: str
    section: int
    cases: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    #: id -> the tests marked with it
    ported: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def read(self, left_out: dict[str, str]) -> None:
        """Read the cases from the document. Raises ValueError if ``left_out`` has an unknown case or suite."""
        inside = False
        for line in (ROOT / self.document).read_text(encoding="utf-8").splitlines():
            if line.startswith("## "):
                inside = line.startswith(f"## {self.section}.")
            elif inside and (found := CASE.match(line)):
                self.cases[f"{found['suite']}-{found['number']}"] = found["name"]
        suites = {suite(case) for case in self.cases}
        if unknown := sorted(left_out.keys() - self.cases.keys() - suites):
            raise ValueError(
                f"conformance_left_out.toml, [{self.project}]: no such case or suite: {', '.join(unknown)}"
            )
        self.left_out = left_out

    def reason(self, case: str) -> str | None:
        """Why a case is left out: its own reason, else its suite's."""
        return self.left_out.get(case) or self.left_out.get(suite(case))

    def wants_one_test_each(self, case: str) -> bool:
        return case in self.cases and suite(case) not in self.left_out

    def mistakes(self) -> list[str]:
        suites = {suite(case) for case in self.cases}
        found = []
        for case, tests in sorted(self.ported.items()):
            if case not in self.cases:
                if suite(case) in suites:  # otherwise the suite belongs to another document
                    found.append(f"{case} is not in {self.document}: {', '.join(sorted(tests))}")
                continue
            if len(tests) > 1 and self.wants_one_test_each(case):
                found.append(f"{case} is on {len(tests)} tests: {', '.join(sorted(tests))}")
            if case in self.left_out:
                found.append(f"{case} is left out and ported: {', '.join(sorted(tests))}")
        return found

    def report(self) -> bool:
        """Print the report. True if every case is ported or left out, and no mark is wrong."""
        by_suite: defaultdict[str, list[str]] = defaultdict(list)
        for case in self.cases:
            by_suite[suite(case)].append(case)
        missing = [c for c in self.cases if c not in self.ported and self.reason(c) is None]
        left_out = [c for c in self.cases if c not in self.ported and self.reason(c) is not None]
        print(f"{self.project}: {self.document}, section {self.section}")
        print(f"  {'suite':<8}{'ported':>8}{'total':>8}{'left out':>10}{'missing':>9}")
        for name, cases in by_suite.items():
            counts = [sum(c in of for c in cases) for of in (self.ported, left_out, missing)]
            print(f"  {name:<8}{counts[0]:>8}{len(cases):>8}{counts[1] or '':>10}{counts[2] or '':>9}")
        done = len(self.cases) - len(left_out) - len(missing)
        print(f"  {'all':<8}{done:>8}{len(self.cases):>8}{len(left_out) or '':>10}{len(missing) or '':>9}")
        for case in missing:
            print(f"  missing   {case} {self.cases[case]}")
        reasons: defaultdict[str, list[str]] = defaultdict(list)
        for case in left_out:
            reasons[str(self.reason(case))].append(case)
        for reason, cases in reasons.items():
            print(f"  left out  {', '.join(cases)}: {reason}")
        mistakes = self.mistakes()
        for mistake in mistakes:
            print(f"  mistake   {mistake}")
        print()
        return not missing and not mistakes


def suite(case: str) -> str:
    return case.rpartition("-")[0]


class Marks:
    """A pytest plugin that reads the marks of collected tests."""

    def __init__(self, checklists: list[Checklist]) -> None:
        self._checklists = checklists
        #: tests with several ids, in collection order
        self.shared: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if item.get_closest_marker("skip") or item.get_closest_marker("xfail"):
                continue  # a case that never runs is not ported
            test = item.nodeid.partition("[")[0]
            for checklist in self._checklists:
                ids = [str(mark.args[0]) for mark in item.iter_markers(checklist.project)]
                if len(alone := [i for i in ids if checklist.wants_one_test_each(i)]) > 1:
                    self.shared[test] = alone
                for i in ids:
                    checklist.ported[i].add(test)


def main() -> int:
    left_out = tomllib.loads((ROOT / "tests/conformance_left_out.toml").read_text(encoding="utf-8"))
    checklists = [
        Checklist("kafka", "docs/controller-semantics.md", 14),
        Checklist("flink", "docs/election-semantics.md", 13),
    ]
    for checklist in checklists:
        checklist.read(left_out.get(checklist.project, {}))
    marks = Marks(checklists)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main(["--collect-only", "-q", "--rootdir", str(ROOT), str(ROOT / "tests")], plugins=[marks])
    if status != 0:
        print(output.getvalue(), end="")
        return int(status)
    complete = [checklist.report() for checklist in checklists]
    for test, ids in marks.shared.items():
        print(f"mistake   {test} has several ids: {', '.join(ids)}")
    return 0 if all(complete) and not marks.shared else 1


if __name__ == "__main__":
    sys.exit(main())
