"""Work without garbage collection (`kce.garbage`)."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from kce.garbage import let_go, no_collection, thaw


@pytest.mark.parametrize("before", [True, False])
def test_collection_is_as_it_was_afterwards(before: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        with contextlib.suppress(RuntimeError), no_collection():
            assert not gc.isenabled()
            with no_collection():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise RuntimeError
        assert gc.isenabled() is before
    finally:
        (gc.enable if was else gc.disable)()


def test_the_block_that_disabled_it_ends_first() -> None:
    """Tasks may overlap: collection is enabled again with the last."""
    assert gc.isenabled()
    first, second = no_collection(), no_collection()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_what_is_frozen_is_not_scanned_until_it_thaws() -> None:
    with no_collection(freeze=True):
        kept = [[]]
    try:
        assert not any(one is kept for one in gc.get_objects())
    finally:
        thaw()
    assert any(one is kept for one in gc.get_objects())


def test_an_error_lets_go_of_the_calls_that_raised_it() -> None:
    """Also of those that raised the errors behind it."""

    def fails(held: list[weakref.ref[Held]]) -> None:
        here = Held()
        held.append(weakref.ref(here))
        try:
            int("x")
        except ValueError as e:
            error = KeyError()  # known in the call that it refers to
            raise error from e

    held: list[weakref.ref[Held]] = []
    with no_collection():
        try:
            fails(held)
        except KeyError as e:
            assert held[0]() is not None
            let_go(e)
            assert held[0]() is None


class Held: ...
