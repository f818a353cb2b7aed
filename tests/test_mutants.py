"""The tool behind `make mutants`: its list of equivalents is true, and it chooses tests that can notice.

Covers: tests/mutants.py, tests/callers.py.
"""

from __future__ import annotations

import tomllib

import pytest

from kce.election.paths import SinglePaths
from tests.callers import ROOT, Callers, named
from tests.mutants import mutants

EQUIVALENT = tomllib.loads((ROOT / "tests/mutants_equivalent.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", EQUIVALENT)
def test_listed_equivalents_exist(module: str) -> None:
    assert EQUIVALENT[module].keys() - {mutant.name for mutant in mutants(ROOT / module)} == set()


def test_code_is_named_by_module_and_function() -> None:
    def outer() -> object:
        return next(iter([lambda: 5]))

    here = "test_code_is_named_by_module_and_function.outer"
    inner = outer()
    assert named(outer.__code__) == named(inner.__code__) == ("tests/test_mutants.py", here)  # type: ignore[attr-defined]
    assert named(SinglePaths.latch_path.__code__) == ("election/paths.py", "SinglePaths.latch_path")


def test_specific_and_quick_tests_are_chosen_within_the_budget() -> None:
    f, g = ("m.py", "f"), ("m.py", "g")
    others = {("m.py", str(i)) for i in range(9)}
    by = Callers(
        calls={"specific": {f}, "quick": {f, *others}, "slow": {f, *others}, "of g": {g}},
        seconds={"specific": 2.0, "quick": 0.1, "slow": 50.0, "of g": 0.1},
    )
    assert by.tests("m.py", "f", 3.0) == ["quick", "specific"]
    assert by.tests("m.py", "f", 99.0) == ["quick", "specific", "slow"]
    assert by.tests("m.py", "f", 0.0) == ["specific"]
    assert by.tests("m.py", "Class", 99.0) == ["of g", "quick", "specific", "slow"]  # nothing calls it
    assert by.tests("other.py", "f", 99.0) == []
