"""Paths of the nodes (rules E1.1-E1.6)."""

from __future__ import annotations

import pytest

from kce.election.paths import (
    DISPATCHER,
    REST_SERVER,
    ElectionPaths,
    PathLayout,
    SinglePaths,
    is_job_id,
    zookeeper_path,
)

JOB = "00112233445566778899aabbccddeeff"


@pytest.mark.flink("FZU-1")
@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("/root/namespace",), "/root/namespace"),
        (("/root/", "/namespace/"), "/root/namespace"),
        (("root", "namespace"), "/root/namespace"),
        (("//root", "", "/namespace//"), "/root/namespace"),
        (("///root///", "///namespace///", "a//b"), "/root/namespace/a/b"),
        (("", "namespace"), "/namespace"),
        (("/", "/namespace"), "/namespace"),
        (("", ""), "/"),
        (("",), "/"),
        (("////", "namespace"), "/namespace"),
        (("root", "////"), "/root"),
        (("//a//", "/b/"), "/a/b"),
        (("a", "b", "c", "d"), "/a/b/c/d"),
        ((), "/"),
    ],
)
def test_slashes(parts: tuple[str, ...], path: str) -> None:
    assert zookeeper_path(*parts) == path


@pytest.mark.parametrize(
    ("layout", "component", "latch", "leader"),
    [
        (PathLayout.TWO_DIRECTORIES, DISPATCHER, "leaderlatch/dispatcher_lock", "leader/dispatcher_lock"),  # E1.3
        (PathLayout.TWO_DIRECTORIES, REST_SERVER, "leaderlatch/rest_server_lock", "leader/rest_server_lock"),
        (PathLayout.TWO_DIRECTORIES, JOB, f"leaderlatch/{JOB}/job_manager_lock", f"leader/{JOB}/job_manager_lock"),
        (PathLayout.SIDE_BY_SIDE, DISPATCHER, "leader/dispatcher/latch", "leader/dispatcher/connection_info"),  # E1.5
        (PathLayout.SIDE_BY_SIDE, JOB, f"jobs/{JOB}/leader/latch", f"jobs/{JOB}/leader/connection_info"),
        (PathLayout.ONE_LATCH, DISPATCHER, "leader/latch", "leader/dispatcher/connection_info"),  # E1.6
        (PathLayout.ONE_LATCH, JOB, "leader/latch", f"leader/{JOB}/connection_info"),
    ],
)
def test_layouts(layout: PathLayout, component: str, latch: str, leader: str) -> None:
    paths = ElectionPaths(layout=layout)
    assert paths.latch_path(component) == f"/flink/default/{latch}"
    assert paths.leader_path(component) == f"/flink/default/{leader}"


@pytest.mark.parametrize(
    ("release", "layout"),
    [
        ("1.5", PathLayout.TWO_DIRECTORIES), ("1.9.3", PathLayout.TWO_DIRECTORIES),
        ("1.13.6", PathLayout.TWO_DIRECTORIES),
        ("1.14.6", PathLayout.SIDE_BY_SIDE), ("1.15", PathLayout.ONE_LATCH), ("1.20.0", PathLayout.ONE_LATCH),
        (" 2.0.0 ", PathLayout.ONE_LATCH), ("2.10", PathLayout.ONE_LATCH),
    ],
)  # fmt: skip
def test_layout_of_release(release: str, layout: PathLayout) -> None:
    assert PathLayout.of_release(release) is layout


def test_what_is_no_release_or_job() -> None:
    with pytest.raises(ValueError, match="'new' is no Flink release"):
        PathLayout.of_release("new")
    assert is_job_id(JOB)  # rule E1.4
    assert not is_job_id(JOB.upper())
    assert not is_job_id(DISPATCHER)
    assert not is_job_id(JOB + "\n")


def test_what_is_deleted() -> None:  # rules E6.6, E10.8
    one, side, two = (ElectionPaths(layout=layout) for layout in reversed(PathLayout))
    assert one.owned_path(DISPATCHER) == "/flink/default/leader/dispatcher"
    assert side.owned_path(DISPATCHER) == "/flink/default/leader/dispatcher/connection_info"
    assert two.owned_path(DISPATCHER) == "/flink/default/leader/dispatcher_lock"
    assert one.job_paths(JOB) == side.job_paths(JOB) == [f"/flink/default/jobs/{JOB}"]
    assert two.job_paths(JOB) == [f"/flink/default/leaderlatch/{JOB}", f"/flink/default/leader/{JOB}"]


def test_single_paths_side_by_side() -> None:
    paths = SinglePaths.below("/a/b/")
    assert (paths.latch_path("c"), paths.leader_path("c"), paths.owned_path("c")) == (
        "/a/b/latch",
        "/a/b/connection_info",
        "/a/b/connection_info",
    )
