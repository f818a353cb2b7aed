"""What the services pass on to drivers and to ZooKeeper's client, and what refuses to be used once closed.

Covers: election/zookeeper.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import trio
from trio.testing import MockClock

from kce.election import services as module
from kce.election import zookeeper as drivers
from kce.election.config import AclMode, HighAvailabilityConfig
from kce.election.errors import ConfigurationError, IllegalElectionState
from kce.election.paths import ElectionPaths, PathLayout
from kce.election.services import EmbeddedHaServices, StandaloneHaServices, ZooKeeperHaServices, connect_to_zookeeper
from kce.zookeeper.store import CREATOR_ALL_ACL, Create, NoAuth, StoreUnavailable
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper
from tests.election.support import Listener

CONFIG = HighAvailabilityConfig(
    mode_text="zookeeper", quorum="q:1", root="/r", cluster_id="/c", session_timeout_ms=7, connection_timeout_ms=8,
    retry_wait_ms=9000, max_retry_attempts=2, tolerate_suspended_connections=True, authorization=(("digest", "a:b"),),
)  # fmt: skip
JOB = "0123456789abcdef0123456789abcdef"


async def test_settings_reach_the_client(monkeypatch: pytest.MonkeyPatch) -> None:  # rule E1.17
    calls: list[tuple[Any, ...]] = []

    async def connect(*values: Any, **more: Any) -> MemoryStore:
        calls.append((values, more))
        return MemoryZooKeeper().connect()

    monkeypatch.setattr(module.KazooStore, "connect", connect)
    await connect_to_zookeeper(CONFIG)
    timeouts = {"session_timeout_ms": 7, "connection_timeout_ms": 8, "auth": (("digest", "a:b"),)}
    assert calls == [(("q:1",), {**timeouts, "acls_of": None})]
    calls.clear()
    await connect_to_zookeeper(HighAvailabilityConfig(quorum="q:1", acl=AclMode.CREATOR))
    assert calls[0][1]["acls_of"]("/any") == CREATOR_ALL_ACL


async def test_how_often_and_when_it_is_tried(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    times: list[float] = []

    async def connect(*values: Any, **more: Any) -> MemoryStore:
        times.append(trio.current_time())
        raise StoreUnavailable(f"attempt {len(times)}")

    monkeypatch.setattr(module.KazooStore, "connect", connect)
    with pytest.raises(StoreUnavailable, match="attempt 3"):
        await connect_to_zookeeper(CONFIG)
    assert times == pytest.approx([0, 9, 27])  # rule E10.15
    assert trio.current_time() == pytest.approx(27)


@pytest.mark.parametrize("layout", [PathLayout.ONE_LATCH, PathLayout.SIDE_BY_SIDE])
async def test_settings_reach_the_drivers(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, layout: PathLayout
) -> None:
    config = HighAvailabilityConfig(**{**_fields(CONFIG), "layout": layout})
    made: list[tuple[Any, ...]] = []

    class Service:
        def __init__(self, factory: Any, within: trio.Nursery) -> None:
            assert within is nursery
            made.append(factory)

        def create_leader_election(self, component_id: str) -> str:
            return component_id

    def factory(kind: str) -> Any:
        return lambda *values, **more: (kind, values, more)

    monkeypatch.setattr(module, "election_driver_factory", factory("election"))
    monkeypatch.setattr(module, "retrieval_driver_factory", factory("retrieval"))
    monkeypatch.setattr(module, "MultipleComponentLeaderElectionService", Service)
    monkeypatch.setattr(module, "DefaultLeaderRetrievalService", Service)
    services = ZooKeeperHaServices(config, MemoryZooKeeper().connect(), nursery)
    paths: ElectionPaths = config.paths  # type: ignore[assignment]
    more = {"tolerate_suspended_connections": True, "retry_wait_s": 9}
    elections = [
        ("election", (services.session, paths, component), more)
        for component in (("a",) if layout.shares_latch else ("a", "b"))
    ]
    assert [services.leader_election(component) for component in ("a", "b")] == ["a", "b"]
    assert made == elections
    services.leader_retrieval("a")
    assert made == [*elections, ("retrieval", (services.session, paths.leader_path("a")), more)]


def _fields(config: HighAvailabilityConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in HighAvailabilityConfig.__dataclass_fields__}


async def test_closed_services_serve_nobody(nursery: trio.Nursery) -> None:
    store = MemoryZooKeeper().connect()
    for services in (
        StandaloneHaServices({"a": "x:1"}), EmbeddedHaServices(nursery), ZooKeeperHaServices(CONFIG, store, nursery),
    ):  # fmt: skip
        services.leader_election("a")
        services.leader_retrieval("a")
        await services.aclose()
        for serve in (services.leader_election, services.leader_retrieval):
            with pytest.raises(IllegalElectionState, match="the high-availability services are closed"):
                serve("a")
        with pytest.raises(ValueError, match="'a' is not a job id: 32 lowercase hex digits"):
            await services.clean_up_job_data("a")


async def test_fixed_addresses() -> None:  # rule E9.4
    services = StandaloneHaServices({"a": "x:1"})
    addresses = [
        services.leader_retrieval("a"), services.leader_retrieval("a", "y:2"),
        services.leader_retrieval(JOB), services.leader_retrieval(JOB, "y:2"),
    ]  # fmt: skip
    found = []
    for retrieval in addresses:
        listener = Listener()
        await retrieval.start(listener)
        found += [address for address, _ in listener.reports]
    assert found == ["x:1", "x:1", "UNKNOWN", "y:2"]
    with pytest.raises(ConfigurationError, match="without election, the address of b must be given"):
        services.leader_retrieval("b", "y:2")


async def test_a_clean_up_that_is_refused(nursery: trio.Nursery) -> None:  # rule E10.6
    class Refusing(MemoryStore):
        async def write(self, ops: Any, *, fence: Any = None) -> Any:
            if any(op.path == "/r" and not isinstance(op, Create) for op in ops):
                return [NoAuth("/r")]
            return await super().write(ops, fence=fence)

    store = Refusing(MemoryZooKeeper(), 77)
    services = ZooKeeperHaServices(CONFIG, store, nursery)
    await services.session.make_parents("/r/c/leader/x")
    with pytest.raises(NoAuth):
        await services.clean_up_all_data()
    assert await store.get_children(["/r"]) == [[]]


async def test_settings_reach_latches_and_nodes(monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> None:
    made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def part(kind: str) -> Any:
        class Part:
            def __init__(self, *values: Any, **more: Any) -> None:
                made.append((kind, values, more))

            def start(self) -> None:
                made.append((f"{kind} starts", (), {}))

        return Part

    monkeypatch.setattr(drivers, "LeaderLatch", part("latch"))
    monkeypatch.setattr(drivers, "WatchedNode", part("node"))
    services = ZooKeeperHaServices(CONFIG, MemoryZooKeeper().connect(), nursery)
    session, paths, reports = services.session, CONFIG.paths, MagicMock()
    settings: dict[str, Any] = {"tolerate_suspended_connections": True, "retry_wait_s": 9}
    driver: Any = await drivers.election_driver_factory(session, paths, "c", **settings)(reports)
    for _ in range(2):
        driver.watch("d")
    node = made[2][2]
    assert made == [
        (
            "latch",
            (session, paths.latch_path("c")),
            {"on_change": driver._leadership_changed, "on_error": reports.on_error, **settings},
        ),
        ("latch starts", (), {}),
        (
            "node",
            (session, paths.leader_path("d")),
            {"on_data": node["on_data"], "on_error": reports.on_error, "retry_wait_s": 9},
        ),
        ("node starts", (), {}),
    ]
    made.clear()
    retrieval: Any = await drivers.retrieval_driver_factory(session, "/path", **settings)(reports)
    assert made == [
        (
            "node",
            (session, "/path"),
            {"on_data": retrieval._changed, "on_error": reports.on_error, "retry_wait_s": 9},
        ),
        ("node starts", (), {}),
    ]
    assert retrieval._tolerate


@pytest.mark.slow
def test_the_program_of_the_page(zookeeper: str) -> None:
    """docs/elections.md, but for the address."""
    page = (Path(__file__).parents[2] / "docs" / "elections.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    assert program.count("zk:2181") == 1
    program = program.replace("zk:2181", f"{zookeeper}/program-of-the-page")
    with subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "leader: host:8081\n" in iter(process.stdout.readline, "")
        process.kill()
