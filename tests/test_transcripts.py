"""A transcript is compared line by line, and a recorded session notes what is asked of it.

Covers: tests/transcripts.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kce.zookeeper.store import Check, Create, Delete, MultiFailed, SetData
from tests import transcripts
from tests.transcripts import RecordedZooKeeper


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["# one", "b", "c"], "t.txt:2, after ['# one']:\nnow      b\nexpected a"),
        (["# one", "a", "c", "d"], "t.txt:4, after ['# one']:\nnow      d\nexpected None"),
        (["# one", "a"], "t.txt:3, after ['# one']:\nnow      None\nexpected c"),
    ],
)
def test_the_first_other_line_is_told(lines: list[str], found: str, tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_text("# one\na\nc\n", encoding="utf-8")
    transcripts.check(file, ["# one", "a", "c"])
    with pytest.raises(AssertionError, match=re.escape(found)):
        transcripts.check(file, lines)


async def test_a_session_notes_what_is_asked_of_it() -> None:
    store = RecordedZooKeeper().connect()
    await store.write([Create("/unnoted")])
    store.lines = []
    await store.write([Create("/a", b"x", ephemeral=True, sequential=True), Delete("/b", 3)])
    with pytest.raises(MultiFailed):
        await store.write([SetData("/unnoted", b"\0")], fence=Check("/unnoted", 7))
    await store.multi([[Check("/unnoted", 0)], [SetData("/unnoted", b"y")]])
    await store.get_data(["/a", "/unnoted"], watch=[False, True])
    await store.exists(["/b"], watch=True)
    await store.get_children([])
    assert store.lines == [
        "zk write: create ephemeral sequential /a x; delete /b at 3 !! 1: NoNode: /b",
        "zk write if /unnoted is 7: set /unnoted b'\\x00' at -1 !! 0: operation 0 of a multi: BadVersion: /unnoted",
        "zk multi: check /unnoted at 0 || multi: set /unnoted y at -1",
        "zk read /a /unnoted*",
        "zk exists /b*",
    ]
