"""The retrieval service with a driver under the test's control, and the search for a leader (FDR, FSR, FZR)."""

from __future__ import annotations

from uuid import uuid4

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce.election.api import LeaderRetrievalDriver, LeaderRetrievalEventHandler
from kce.election.errors import LeaderRetrievalException
from kce.election.information import EMPTY, LeaderInformation
from kce.election.retrieval import DefaultLeaderRetrievalService, find_connecting_address, wait_for_leader
from kce.election.standalone import SettableLeaderRetrievalService
from kce.harness.embedded_zookeeper import free_port
from tests.election.conftest import Backend
from tests.election.support import Listener, contend, retrieval

ONE, TWO = (LeaderInformation(uuid4(), f"host-{i}:1") for i in (1, 2))


class World:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.service = DefaultLeaderRetrievalService(self._make, nursery)
        self.listener = Listener()

    async def _make(self, handler: LeaderRetrievalEventHandler) -> LeaderRetrievalDriver:
        self.reports, self.closed = handler, 0
        world = self

        class Driver(LeaderRetrievalDriver):
            async def aclose(self) -> None:
                world.closed += 1

        return Driver()

    async def start(self) -> World:
        await self.service.start(self.listener)
        return self


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    return await World(nursery).start()


@pytest.mark.flink("FDR-1")
async def test_a_known_pair_is_reported(world: World) -> None:
    world.reports.on_leader_information(ONE)
    await wait_all_tasks_blocked()
    assert world.listener.reports == [(ONE.address, ONE.session_id)]


@pytest.mark.flink("FDR-2")
async def test_emptiness_is_reported(world: World) -> None:  # rule E8.2
    world.reports.on_leader_information(ONE)
    world.reports.on_leader_information(EMPTY)
    await wait_all_tasks_blocked()
    assert world.listener.reports == [(ONE.address, ONE.session_id), (None, None)]


@pytest.mark.flink("FDR-3")
async def test_errors_are_reported_with_their_cause(world: World) -> None:  # rule E8.9
    cause, ready = OSError("unreadable"), LeaderRetrievalException("as it is")
    world.reports.on_error(cause)
    world.reports.on_error(ready)
    await wait_all_tasks_blocked()
    assert [type(e) for e in world.listener.errors] == [LeaderRetrievalException] * 2
    assert world.listener.errors[0].__cause__ is cause
    assert world.listener.errors[1] is ready


@pytest.mark.flink("FDR-4")
async def test_nothing_is_reported_after_stop(world: World) -> None:  # rule E8.1
    world.reports.on_leader_information(ONE)  # queued, and too late
    await world.service.stop()
    world.reports.on_error(OSError("late"))
    world.reports.on_leader_information(TWO)
    await wait_all_tasks_blocked()
    assert world.listener.errors == world.listener.reports == []
    assert world.closed == 1


@pytest.mark.flink("FDR-5")
async def test_equal_pairs_are_reported_once(world: World) -> None:  # rules E8.3, E8.4
    same_id = LeaderInformation(ONE.session_id, "elsewhere:1")
    same_address = LeaderInformation(TWO.session_id, "elsewhere:1")
    for information in (EMPTY, ONE, ONE, same_id, same_id, same_address):
        world.reports.on_leader_information(information)
    await wait_all_tasks_blocked()
    assert world.listener.reports == [(i.address, i.session_id) for i in (ONE, same_id, same_address)]


async def test_start_needs_a_listener(nursery: trio.Nursery) -> None:
    with pytest.raises(ValueError, match="needs a listener"):
        await World(nursery).service.start(None)  # type: ignore[arg-type]


async def test_a_listener_that_fails_is_reported(nursery: trio.Nursery) -> None:
    class Failing(Listener):
        async def notify_leader_address(self, address: str | None, session_id: object) -> None:
            raise RuntimeError("I cannot hear this")

    world = World(nursery)
    world.listener = Failing()
    await world.start()
    world.reports.on_leader_information(ONE)
    await wait_all_tasks_blocked()
    assert "I cannot hear this" in str(world.listener.errors[0])


async def test_stop_from_within_a_callback(nursery: trio.Nursery) -> None:
    world = World(nursery)

    class Content(Listener):
        async def notify_leader_address(self, address: str | None, session_id: object) -> None:
            await super().notify_leader_address(address, None)
            await world.service.stop()

    world.listener = Content()
    world.service.on_leader_information(ONE)  # too early: nobody listens
    world.service.on_error(OSError())
    await world.start()
    world.reports.on_leader_information(ONE)
    world.reports.on_leader_information(TWO)
    await wait_all_tasks_blocked()
    assert (len(world.listener.reports), world.closed) == (1, 1)


@pytest.mark.flink("FSR-1")
async def test_a_value_set_before_start_is_reported_at_start() -> None:
    service, listener = SettableLeaderRetrievalService(), Listener()
    await service.set_leader(ONE)
    assert listener.reports == []
    await service.start(listener)
    assert listener.reports == [(ONE.address, ONE.session_id)]


@pytest.mark.flink("FSR-2")
async def test_a_value_set_after_start_is_reported_at_once() -> None:
    service, listener = SettableLeaderRetrievalService(), Listener()
    await service.start(listener)
    assert listener.reports == []
    await service.set_leader(ONE)
    assert listener.reports == [(ONE.address, ONE.session_id)]
    await service.stop()
    await service.set_leader(TWO)
    assert len(listener.reports) == 1


async def test_waiting_for_a_leader_ignores_leaders_without_address(nursery: trio.Nursery) -> None:  # rule E8.12
    service = SettableLeaderRetrievalService()
    found: list[LeaderInformation] = []

    async def wait() -> None:
        found.append(await wait_for_leader(service))

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    for information in (EMPTY, LeaderInformation(uuid4(), "")):
        await service.set_leader(information)
        await wait_all_tasks_blocked()
        assert found == []
    await service.set_leader(ONE)
    await wait_all_tasks_blocked()
    assert found == [ONE]
    await service.start(Listener())  # it was stopped


@pytest.mark.flink("FZR-1")
async def test_an_unreachable_leader_is_skipped(backend: Backend, nursery: trio.Nursery) -> None:
    session, other = await backend.session(), await backend.session()
    old = await contend(other, nursery, f"127.0.0.1:{free_port()}")
    await old.lead()
    found: list[str] = []

    async def find() -> None:
        found.append(await find_connecting_address(retrieval(session, nursery), timeout_s=20))

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, trio.open_nursery() as finding:
        finding.start_soon(find)
        await trio.sleep(0.3)  # it has tried the old one
        assert found == []
        assert old.service is not None
        await old.service.stop()
        await contend(other, nursery, f"127.0.0.1:{listener.socket.getsockname()[1]}")
    assert found == ["127.0.0.1"]


@pytest.mark.flink("FZR-2")
async def test_without_leader_the_search_ends_at_its_timeout(backend: Backend, nursery: trio.Nursery) -> None:
    service = retrieval(await backend.session(), nursery)
    with trio.fail_after(60):
        address = await find_connecting_address(service, timeout_s=0.05)
    with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as probe:
        await probe.bind((address, 0))  # it is ours


async def test_a_driver_that_comes_after_the_stop_is_closed(nursery: trio.Nursery) -> None:
    world = World(nursery)
    make = world._make

    async def late(handler: LeaderRetrievalEventHandler) -> LeaderRetrievalDriver:
        await world.service.stop()
        return await make(handler)

    service = world.service = DefaultLeaderRetrievalService(late, nursery)
    await service.start(world.listener)
    assert world.closed == 1
