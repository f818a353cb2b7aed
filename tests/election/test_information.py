"""Leader information and registers of it (rule E9.16, FIR)."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kce.election.information import DEFAULT_LEADER_ID, EMPTY, LeaderInformation, LeaderInformationRegister

ONE, TWO = (LeaderInformation(uuid4(), f"host-{i}:1") for i in (1, 2))


def test_known_or_empty() -> None:
    assert DEFAULT_LEADER_ID.int == 0  # rule E9.1
    assert str(DEFAULT_LEADER_ID) == "00000000-0000-0000-0000-000000000000"
    assert EMPTY.is_empty
    assert not ONE.is_empty
    assert LeaderInformation(ONE.session_id, ONE.address) == ONE != TWO
    assert (str(EMPTY), str(ONE)) == ("no leader", f"host-1:1 ({ONE.session_id})")
    for half in ({"session_id": uuid4()}, {"address": "host:1"}):
        with pytest.raises(ValueError, match="both a session id and an address"):
            LeaderInformation(**half)  # type: ignore[arg-type]


@pytest.mark.flink("FIR-1")
def test_of_known() -> None:
    register = LeaderInformationRegister({"a": ONE})
    assert (list(register), register["a"]) == (["a"], ONE)


@pytest.mark.flink("FIR-2")
def test_of_empty() -> None:
    assert list(LeaderInformationRegister({"a": EMPTY})) == []


@pytest.mark.flink("FIR-3")
def test_merge() -> None:
    old = LeaderInformationRegister({"a": ONE})
    new = old.merge("b", TWO)
    assert dict(new) == {"a": ONE, "b": TWO}
    assert dict(old) == {"a": ONE}


@pytest.mark.flink("FIR-4")
def test_merge_empty_for_a_new_id() -> None:
    assert dict(LeaderInformationRegister({"a": ONE}).merge("b", EMPTY)) == {"a": ONE}


@pytest.mark.flink("FIR-5")
def test_merge_empty_for_an_existing_id() -> None:
    assert dict(LeaderInformationRegister({"a": ONE, "b": TWO}).merge("a", EMPTY)) == {"b": TWO}


@pytest.mark.flink("FIR-6")
def test_merge_known_for_an_existing_id() -> None:
    assert dict(LeaderInformationRegister({"a": ONE}).merge("a", TWO)) == {"a": TWO}


@pytest.mark.flink("FIR-7")
def test_clear() -> None:
    old = LeaderInformationRegister({"a": ONE, "b": TWO})
    assert dict(old.clear("a")) == {"b": TWO}
    assert dict(old) == {"a": ONE, "b": TWO}


@pytest.mark.flink("FIR-8")
def test_clear_what_is_not_there() -> None:
    assert dict(LeaderInformationRegister({"a": ONE}).clear("b")) == {"a": ONE}


@pytest.mark.flink("FIR-9")
def test_empty_entries_are_dropped() -> None:
    given = {"a": ONE, "b": EMPTY}
    register = LeaderInformationRegister(given)
    given["c"] = TWO
    assert dict(register) == {"a": ONE}


@pytest.mark.flink("FIR-10")
def test_an_empty_register() -> None:
    assert list(LeaderInformationRegister()) == []


@pytest.mark.flink("FIR-11")
def test_get_known() -> None:
    assert LeaderInformationRegister({"a": ONE}).get("a") == ONE


@pytest.mark.flink("FIR-12")
def test_for_component_id_known() -> None:
    assert LeaderInformationRegister({"a": ONE}).for_component_id("a") == ONE


@pytest.mark.flink("FIR-13")
def test_get_of_empty_information() -> None:
    assert LeaderInformationRegister({"a": EMPTY}).get("a") is None


@pytest.mark.flink("FIR-14")
def test_for_component_id_of_empty_information() -> None:
    assert LeaderInformationRegister({"a": EMPTY}).for_component_id("a") == EMPTY


@pytest.mark.flink("FIR-15")
def test_has_information() -> None:
    assert "a" in LeaderInformationRegister({"a": ONE})


@pytest.mark.flink("FIR-16")
def test_has_no_empty_information() -> None:
    assert "a" not in LeaderInformationRegister({"a": EMPTY})


@pytest.mark.flink("FIR-17")
def test_has_nothing() -> None:
    empty = LeaderInformationRegister({"a": EMPTY})
    assert not LeaderInformationRegister()
    assert not empty
    assert empty.merge("a", ONE)
