"""Watches are known until an event uses them up, and are set again in requests of bounded size."""

from __future__ import annotations

import pytest

from kce.zookeeper.store import WatchType
from kce.zookeeper.store.armed_watches import ArmedWatches, Watch, in_parts


@pytest.mark.parametrize(
    ("event", "left"),
    [
        (WatchType.CREATED, {Watch.DATA, Watch.CHILD}),
        (WatchType.CHANGED, {Watch.EXIST, Watch.CHILD}),
        (WatchType.DELETED, {Watch.EXIST}),
        (WatchType.CHILDREN, {Watch.DATA, Watch.EXIST}),
    ],
)
def test_an_event_uses_up_the_watches_of_its_kind(event: WatchType, left: set[Watch]) -> None:
    armed = ArmedWatches()
    for kind in Watch:
        armed.add(kind, ["/a", "/b"])
    assert armed.use_up(event, "/a")
    assert not armed.use_up(event, "/a")
    parts = {kind: list(paths) for part in armed.parts() for kind, paths in part.items()}
    assert parts == {kind: ["/a", "/b"] if kind in left else ["/b"] for kind in Watch}


def test_watches_are_set_again_in_sorted_order() -> None:
    armed = ArmedWatches()
    armed.add(Watch.CHILD, ["/c", "/a"])
    armed.add(Watch.DATA, ["/b"])
    armed.add(Watch.CHILD, ["/b"])
    assert armed.parts() == [{Watch.DATA: ["/b"]}, {Watch.CHILD: ["/a", "/b", "/c"]}]
    armed.clear()
    assert armed.parts() == []


def test_a_request_names_at_most_a_thousand_paths() -> None:
    paths = [f"/{i}" for i in range(2001)]
    parts = list(in_parts({Watch.DATA: paths, Watch.CHILD: ["/x"]}))
    assert [(kind, len(some)) for part in parts for kind, some in part.items()] == [
        (Watch.DATA, 1000), (Watch.DATA, 1000), (Watch.DATA, 1), (Watch.CHILD, 1),
    ]  # fmt: skip
    assert [path for part in parts[:3] for path in part[Watch.DATA]] == paths
