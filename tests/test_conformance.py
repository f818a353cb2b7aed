"""`make conformance` fails when a case is unaccounted for, and when a mark or a reason contradicts the documents."""

from __future__ import annotations

import pytest

from tests.conformance import Checklist, Document, expand, read_cases

DOCUMENT = """
## 1. Rules
- AA-9 is no case here
## 2. Cases
### 2a. One: AA `a/AaTest`, BB `a/BbTest`
- AA-1 name — asserts (B1.2, CS-9.66)
- AA-2 name, AA-4..6 others; BB-1, 3 more
#### CC — `a/CcTest` — 2 cases; DD — `a/DdTest` — 1 case
- CC-1 name; DD-1 name; CC-1 again
""".splitlines()
CASES = ["AA-1", "AA-2", "AA-4", "AA-5", "AA-6", "BB-1", "BB-3", "CC-1", "DD-1"]


def test_the_cases_of_a_document() -> None:
    assert read_cases(DOCUMENT, 2) == CASES


def test_reasons_name_cases_ranges_and_suites() -> None:
    assert expand({"AA-4..6": "r", "BB-3": "s", "CC": "t"}, CASES) == {
        "AA-4": "r", "AA-5": "r", "AA-6": "r", "BB-3": "s", "CC": "t",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["ZZ"], "ZZ is not in the documents"),
        (["AA-3"], "AA-3 is not in the documents"),
        (["AA-1..3"], "AA-1..3 is not in the documents"),
        (["AA-"], "AA- is not in the documents"),
        (["AA-4..5", "AA-5"], "AA-5 repeats AA-5"),
    ],
)
def test_reasons_for_nothing_are_refused(names: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        expand(dict.fromkeys(names, "why"), CASES)


def checklist(reasons: dict[str, str], in_part: dict[str, str], *, complete: bool = True, **ported: str) -> Checklist:
    """``ported``: AA_1="test other"."""
    made = Checklist(Document("kafka", "document", 2, complete), CASES, reasons, in_part)
    for case, tests in ported.items():
        made.ported[case.replace("_", "-")].update(tests.split())
    return made


def test_a_case_without_test_and_reason_is_missing() -> None:
    made = checklist({"AA": "why", "BB-1": "why"}, {}, complete=False, AA_1="t", DD_1="t")
    assert made.missing() == ["BB-3", "CC-1"]
    assert made.left_out == {"AA-2": "why", "AA-4": "why", "AA-5": "why", "AA-6": "why", "BB-1": "why"}
    assert list(made.mistakes()) == []


@pytest.mark.parametrize(
    ("made", "mistake"),
    [
        (checklist({"AA": "why"}, {}, AA_1="t"), "AA is left out, and AA-1 is ported: name the others"),
        (checklist({"CC": "why"}, {}, complete=False, CC_1="t"), "CC is left out, and all of it has tests"),
        (checklist({"AA-1": "why"}, {}, AA_1="t"), "AA-1 is left out, and all of it has tests"),
        (checklist({}, {}, AA_1="t u"), "AA-1 is on 2 tests: t, u"),
        (checklist({}, {"AA-1": "without"}), "AA-1 is listed as ported in part, but has no test"),
    ],
)
def test_contradictions(made: Checklist, mistake: str) -> None:
    assert list(made.mistakes()) == [mistake]
