"""Names below a znode that change one at a time."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce.zookeeper.store import jute
from kce.zookeeper.store.children import Children


def answer(names: list[str]) -> bytes:
    """What a server lists, in the order given."""
    encoded = [name.encode() for name in names]
    return b"?" + struct.pack(">i", len(names)) + b"".join(struct.pack(">i", len(each)) + each for each in encoded)


def names_or_none(read: Callable[[bytes, int], list[str]], buffer: bytes) -> list[str] | None:
    """None if it is refused."""
    try:
        return read(buffer, 1)
    except (ValueError, struct.error):
        return None


#: few letters, so that names have common beginnings and ends
names = st.text("ab\u00e9", min_size=1, max_size=6)


@given(
    st.lists(names, min_size=40, max_size=80, unique=True),
    st.lists(st.tuples(st.sampled_from(["add", "remove", "both", "shuffle", "long"]), names, st.integers(0, 99))),
)
def test_every_change(listed: list[str], changes: list[tuple[str, str, int]]) -> None:
    children = Children()
    assert children.read(answer(listed), 1) == sorted(listed)
    for what, name, where in changes:
        at = where % len(listed)
        if what in ("remove", "both") and len(listed) > 1:
            listed.pop(at)
        if what in ("add", "both") and name not in listed:
            listed.insert(at, name)
        if what == "long" and (longer := name * 60) not in listed:
            listed.insert(at, longer)
        if what == "shuffle":
            random.Random(where).shuffle(listed)
        assert children.read(answer(listed), 1) == sorted(listed)


@pytest.mark.parametrize("at", [0, 1, *range(7, 999, 62), 999, 1000])
def test_one_name_that_comes_and_goes_is_all_that_is_decoded(at: int) -> None:
    listed = [f"topic-{i}" for i in range(1000)]
    with_new = [*listed[:at], "topic-1000", *listed[at:]]
    children = Children()
    children.read(answer(listed), 1)
    with patch.object(jute, "read_names", side_effect=AssertionError):
        assert children.read(answer(with_new), 1) == sorted(with_new)
        assert children.read(answer(with_new), 1) == sorted(with_new)
        assert children.read(answer(listed), 1) == sorted(listed)


def test_a_second_change_is_not_overlooked() -> None:
    listed = [f"topic-{i}" for i in range(100)]
    children = Children()
    children.read(answer(listed), 1)
    changed = [*listed[:20], "topic-100", *listed[20:80], "other-80", *listed[81:]]
    assert children.read(answer(changed), 1) == sorted(changed)
    too_few = bytearray(answer([*changed, "topic-101"]))
    too_few[1:5] = struct.pack(">i", len(changed))
    assert children.read(bytes(too_few), 1) == sorted(changed)


def test_whoever_reads_may_change_the_list() -> None:
    listed = [f"topic-{i}" for i in range(100)]
    children = Children()
    children.read(answer(listed), 1).clear()
    assert children.read(answer(listed), 1) == sorted(listed)


@given(st.binary(max_size=30), st.integers(0, 2000), st.integers(0, 30))
def test_damaged_answers(noise: bytes, at: int, cut: int) -> None:
    """They have the names that `jute.read_names` finds, or are refused as there; the next answer is read well."""
    listed = [f"topic-{i}" for i in range(100)]
    whole = answer(listed)
    damaged = whole[:at] + noise + whole[at + cut :]
    children = Children()
    children.read(whole, 1)
    assert names_or_none(children.read, damaged) == names_or_none(jute.read_names, damaged)
    assert children.read(whole, 1) == sorted(listed)
