"""The election service with a driver under the test's control (sections 3 to 6, FDE, FLE and FMC)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce.election.errors import IllegalElectionState, LeaderElectionException, LeadershipLost
from kce.election.information import EMPTY, LeaderInformation, LeaderInformationRegister
from kce.election.service import DefaultLeaderElectionService, MultipleComponentLeaderElectionService
from tests.election.support import Contender, ManualBackend, ManualDriver

ID, OTHER_ID = uuid4(), uuid4()
FOREIGN = LeaderInformation(uuid4(), "elsewhere:1")


class World:
    """Elections of components a and b by one driver, each with a contender that confirms."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.backend = ManualBackend()
        self.fallback: list[Exception] = []
        self.service = MultipleComponentLeaderElectionService(
            self.backend, nursery, fallback_error_handler=self.fallback.append
        )
        self.a, self.b = (self.service.create_leader_election(c) for c in "ab")
        self.of_a, self.of_b = Contender(self.a, "host-a:1"), Contender(self.b, "host-b:1")

    async def start(self) -> World:
        await self.a.start(self.of_a)
        await self.b.start(self.of_b)
        return self

    async def leading(self, session_id: UUID = ID) -> World:
        await self.start()
        self.driver.grant(session_id)
        await wait_all_tasks_blocked()
        return self

    @property
    def driver(self) -> ManualDriver:
        return self.backend.driver

    @property
    def stored(self) -> dict[str, LeaderInformation]:
        return dict(self.driver.stored)


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


BOTH = {"a": LeaderInformation(ID, "host-a:1"), "b": LeaderInformation(ID, "host-b:1")}


@pytest.mark.flink("FDE-1")
async def test_grant_and_revoke(world: World) -> None:  # rules E4.1, E4.2, E4.6, E6.1, E6.3
    await world.leading()
    assert world.of_a.granted == world.of_b.granted == [ID]
    assert world.stored == BOTH
    world.driver.revoke()
    await wait_all_tasks_blocked()
    assert world.of_a.calls == world.of_b.calls == ["grant", "revoke"]
    assert world.of_a.session_id is world.of_b.session_id is None
    assert not world.a.has_leadership(ID)
    assert not world.b.has_leadership(ID)
    assert world.stored == BOTH


@pytest.mark.flink("FDE-2")
async def test_a_component_has_one_contender(world: World) -> None:  # rule E3.11
    second, intruder = world.service.create_leader_election("a"), Contender()
    await world.start()
    with pytest.raises(IllegalElectionState, match="component a has a contender already"):
        world.service.create_leader_election("a")
    with pytest.raises(IllegalElectionState, match="component a has a contender already"):
        await second.start(intruder)  # made before the contender came
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    assert (world.of_a.granted, intruder.granted) == ([ID], [])
    await second.stop()
    assert world.a.has_leadership(ID)
    await world.a.stop()
    await second.start(intruder)
    await wait_all_tasks_blocked()
    assert intruder.granted == [ID]


@pytest.mark.flink("FDE-3")
async def test_close_and_grant_do_not_deadlock(world: World) -> None:  # rule E11.10
    """The driver reports while it is being closed, from a task that closing waits for."""
    await world.start()
    await world.b.stop()
    driver = world.driver
    close = driver.aclose

    async def closing() -> None:
        driver.grant(ID)
        await wait_all_tasks_blocked()
        await close()

    driver.aclose = closing  # type: ignore[method-assign]
    with trio.fail_after(60):
        await world.a.stop()
    await wait_all_tasks_blocked()
    assert driver.closed
    assert world.of_a.granted == []


@pytest.mark.flink("FDE-4")
async def test_the_driver_is_made_for_the_first_contender(world: World) -> None:  # rule E3.12
    assert world.backend.drivers == []
    await world.a.start(world.of_a)
    await world.b.start(world.of_b)
    assert len(world.backend.drivers) == 1
    assert world.driver.watched == ["a", "b"]


@pytest.mark.flink("FDE-5")
async def test_a_closed_service_makes_no_elections(world: World) -> None:  # rule E3.13
    await world.service.aclose()
    await world.service.aclose()
    with pytest.raises(IllegalElectionState, match="closed: no election of c"):
        world.service.create_leader_election("c")
    with pytest.raises(IllegalElectionState, match="closed: no election of a"):
        await world.a.start(world.of_a)


@pytest.mark.flink("FDE-6")
async def test_each_cycle_has_a_driver_of_its_own(world: World) -> None:  # rule E3.12
    for _ in range(3):
        cycle = world.service.create_leader_election("a")
        await cycle.start(Contender())
        assert [d.closed for d in world.backend.drivers[:-1]] == [True] * (len(world.backend.drivers) - 1)
        assert not world.driver.closed
        await cycle.stop()
    assert [d.closed for d in world.backend.drivers] == [True] * 3


@pytest.mark.flink("FDE-7")
async def test_a_grant_while_the_driver_is_made(world: World) -> None:  # rules E3.5, E9.15
    world.backend.while_making = lambda listener: listener.on_grant_leadership(ID)
    await world.a.start(world.of_a)
    await world.of_a.until(lambda: world.of_a.granted)
    assert world.of_a.granted == [ID]


@pytest.mark.flink("FDE-8")
async def test_a_queued_grant_reaches_who_registers_before_it_is_processed(world: World) -> None:
    await world.a.start(world.of_a)
    world.of_a.gate = trio.Event()
    world.driver.grant(OTHER_ID)  # holds the queue up
    world.driver.revoke()
    world.driver.grant(ID)
    await world.of_a.entered.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.b.start, world.of_b)
        await wait_all_tasks_blocked()
        world.of_a.gate.set()
    await wait_all_tasks_blocked()
    assert world.of_b.granted[-1] == ID
    assert world.a.has_leadership(ID)
    assert world.b.has_leadership(ID)


@pytest.mark.flink("FDE-9")
async def test_a_queued_grant_does_not_reach_who_has_left(world: World) -> None:  # rule E4.3
    await world.start()
    world.driver.grant(ID)
    await world.b.stop()  # before any task could run
    await wait_all_tasks_blocked()
    assert (world.of_a.granted, world.of_b.calls) == ([ID], [])


@pytest.mark.flink("FDE-10")
async def test_a_queued_revoke_is_not_reported_twice(world: World) -> None:  # rule E6.7
    await world.leading()
    world.driver.revoke()
    assert world.of_a.calls == ["grant"]
    await world.a.stop()
    assert world.of_a.calls == ["grant", "revoke"]
    await wait_all_tasks_blocked()
    assert world.of_a.calls == world.of_b.calls == ["grant", "revoke"]


@pytest.mark.flink("FDE-11")
async def test_a_service_with_contenders_does_not_close(world: World) -> None:  # rule E3.13
    await world.start()
    with pytest.raises(IllegalElectionState, match="contenders are not stopped: a, b"):
        await world.service.aclose()
    assert not world.driver.closed
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    assert world.of_a.leads


@pytest.mark.flink("FDE-12")
async def test_closing_while_leading_leaves_nothing(world: World) -> None:  # rule E6.6
    await world.leading()
    await world.a.stop()
    assert world.of_a.calls == ["grant", "revoke"]
    assert (world.stored, world.driver.deleted, world.driver.closed) == ({"b": BOTH["b"]}, ["a"], False)
    driver = world.driver
    await world.b.stop()
    assert (dict(driver.stored), driver.closed) == ({}, True)
    assert not world.a.has_leadership(ID)


@pytest.mark.flink("FDE-13")
async def test_changed_information_is_corrected(world: World) -> None:  # rules E5.3, E5.4
    await world.leading()
    for wrong in (EMPTY, FOREIGN, LeaderInformation(ID, "elsewhere:1"), LeaderInformation(uuid4(), "host-a:1")):
        world.driver.change("a", wrong)
        await wait_all_tasks_blocked()
        assert world.stored == BOTH
    world.driver.published.clear()
    world.driver.change("a", BOTH["a"])  # the echo (E5.5)
    await wait_all_tasks_blocked()
    assert world.driver.published == []


@pytest.mark.flink("FDE-14")
async def test_only_what_is_missing_is_restored(world: World) -> None:
    await world.leading()
    world.driver.published.clear()
    world.driver.stored = world.driver.stored.clear("a")
    world.driver.listener.on_all_leader_information_change(world.driver.stored)
    await wait_all_tasks_blocked()
    assert (world.stored, world.driver.published) == (BOTH, ["a"])


@pytest.mark.flink("FDE-15")
async def test_unknown_components_are_left_alone(world: World) -> None:  # rule E5.9
    await world.leading()
    world.driver.published.clear()
    world.driver.stored = world.driver.stored.merge("nobody", FOREIGN)
    world.driver.listener.on_all_leader_information_change(world.driver.stored)
    world.driver.change("nobody-2", FOREIGN)
    await wait_all_tasks_blocked()
    assert world.driver.published == world.driver.deleted == []
    assert world.stored == {**BOTH, "nobody": FOREIGN, "nobody-2": FOREIGN}


@pytest.mark.flink("FDE-16")
async def test_no_leadership_before_the_grant_was_reported(world: World) -> None:  # rule E4.5
    await world.start()
    world.driver.grant(ID)
    assert leaderships(world) == [False] * 4


def leaderships(world: World) -> list[bool]:
    """Leadership of a and of b, under the issued id and under another."""
    return [election.has_leadership(session_id) for election in (world.a, world.b) for session_id in (ID, OTHER_ID)]


@pytest.mark.flink("FDE-17")
async def test_leadership_under_the_issued_id_only(world: World) -> None:  # rule E4.4
    await world.start()
    world.of_a.address = ""  # it does not confirm
    world.driver.grant(ID)
    assert world.of_a.session_id is world.of_b.session_id is None
    await wait_all_tasks_blocked()
    assert world.of_a.session_id == world.of_b.session_id == ID
    assert leaderships(world) == [True, False] * 2
    with pytest.raises(ValueError, match="without a session id"):
        world.a.has_leadership(None)  # type: ignore[arg-type]


@pytest.mark.flink("FDE-18")
async def test_no_leadership_once_the_backend_lost_it(world: World) -> None:  # rule E4.5
    await world.leading()
    world.driver.revoke()
    assert leaderships(world) == [False] * 4
    world.driver.grant(OTHER_ID)  # won again, before the contenders were called
    assert leaderships(world) == [False] * 4


@pytest.mark.flink("FDE-19")
async def test_no_leadership_after_the_revocation(world: World) -> None:
    await world.leading()
    world.driver.revoke()
    await wait_all_tasks_blocked()
    assert leaderships(world) == [False] * 4


@pytest.mark.flink("FDE-20")
async def test_no_leadership_after_stop(world: World) -> None:
    await world.leading()
    await world.a.stop()
    assert leaderships(world) == [False, False, True, False]
    await world.b.stop()
    assert leaderships(world) == [False] * 4


@pytest.mark.flink("FDE-21")
async def test_a_follower_corrects_nothing(world: World) -> None:  # rule E5.1
    await world.start()
    world.driver.change("a", FOREIGN)  # it never led
    await wait_all_tasks_blocked()
    assert (world.driver.published, world.stored) == ([], {"a": FOREIGN})
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    world.driver.revoke()
    world.driver.published.clear()
    world.driver.change("a", FOREIGN)
    await wait_all_tasks_blocked()
    assert (world.driver.published, world.stored["a"]) == ([], FOREIGN)


@pytest.mark.flink("FDE-22")
async def test_grants_after_stop_are_ignored(world: World) -> None:  # rule E3.8
    await world.start()
    await world.a.stop()
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    assert (world.of_a.calls, world.of_b.calls) == ([], ["grant"])
    await world.b.stop()
    world.backend.drivers[0].grant(OTHER_ID)
    await wait_all_tasks_blocked()
    assert world.of_b.granted == [ID]


@pytest.mark.flink("FDE-23")
async def test_changes_after_stop_are_ignored(world: World) -> None:
    driver = (await world.leading()).driver
    await world.a.stop()
    driver.published.clear()
    driver.change("a", FOREIGN)
    driver.change("b", EMPTY)
    await wait_all_tasks_blocked()
    assert driver.published == ["b"]
    await world.b.stop()
    driver.change("b", FOREIGN)
    await wait_all_tasks_blocked()
    assert driver.published == ["b"]


@pytest.mark.flink("FDE-24")
async def test_a_register_after_stop_is_ignored(world: World) -> None:
    driver = (await world.leading()).driver
    await world.a.stop()
    driver.published.clear()
    driver.stored = LeaderInformationRegister({"nobody": FOREIGN})
    driver.listener.on_all_leader_information_change(driver.stored)
    await wait_all_tasks_blocked()
    assert (driver.published, world.stored) == (["b"], {"b": BOTH["b"], "nobody": FOREIGN})
    await world.b.stop()
    left = driver.stored
    driver.listener.on_all_leader_information_change(left)
    await wait_all_tasks_blocked()
    assert driver.stored is left
    assert dict(left) == {"nobody": FOREIGN}


@pytest.mark.flink("FDE-25")
async def test_stop_revokes(world: World) -> None:  # rules E3.10, E11.13
    await world.leading()
    await world.a.stop()
    await world.a.stop()
    assert world.of_a.calls == ["grant", "revoke"]
    assert world.of_b.calls == ["grant"]
    await world.b.stop()
    assert world.of_b.calls == ["grant", "revoke"]
    assert world.of_a.session_id is world.of_b.session_id is None


@pytest.mark.flink("FDE-26")
async def test_an_old_confirmation_changes_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:  # rule E4.7
    await world.leading()
    caplog.set_level(logging.INFO)
    world.driver.published.clear()
    for election, address in ((world.a, "late:1"), (world.b, "host-b:1")):
        assert not await election.confirm_leadership(OTHER_ID, address)
    assert (world.driver.published, world.stored) == ([], BOTH)
    assert leaderships(world) == [True, False] * 2
    assert f"confirmation of {OTHER_ID} is refused" in caplog.text


@pytest.mark.flink("FDE-27")
async def test_a_confirmation_after_the_loss_is_ignored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start()
    world.of_a.address = ""
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    world.driver.revoke()
    assert not await world.a.confirm_leadership(ID, "late:1")  # before the contender was called
    await wait_all_tasks_blocked()
    assert not await world.a.confirm_leadership(ID, "late:1")
    assert "a" not in world.driver.published
    assert "refused: it does not lead" in caplog.text


@pytest.mark.flink("FDE-28")
async def test_errors_reach_every_contender(world: World) -> None:  # rule E3.14
    await world.start()
    cause = OSError("the backend is on fire")
    world.driver.listener.on_error(cause)
    ready = LeaderElectionException("as it is")
    world.driver.listener.on_error(ready)
    await wait_all_tasks_blocked()
    for contender in (world.of_a, world.of_b):
        assert [type(e) for e in contender.errors] == [LeaderElectionException] * 2
        assert contender.errors[0].__cause__ is cause
        assert contender.errors[1] is ready
    assert world.fallback == []


@pytest.mark.flink("FDE-29")
async def test_errors_after_stop_go_to_the_fallback(world: World) -> None:
    await world.start()
    listener = world.driver.listener
    await world.a.stop()
    await world.b.stop()
    late = OSError("late")
    listener.on_error(late)
    await wait_all_tasks_blocked()
    assert world.of_a.errors == world.of_b.errors == []
    assert world.fallback == [late]  # as it is


async def _b_blocks_its_grant(world: World) -> None:
    """a has confirmed, b is being granted and does not return."""
    world.of_b.gate = trio.Event()
    await world.leading()
    assert world.of_b.entered.is_set()
    assert world.stored == {"a": BOTH["a"]}


@pytest.mark.flink("FDE-30")
async def test_a_pending_grant_does_not_delay_a_correction(world: World) -> None:  # rules E5.2, E5.10, E11.12
    await _b_blocks_its_grant(world)
    world.driver.change("a", FOREIGN)
    world.driver.change("b", FOREIGN)  # granted, not confirmed: never erased
    await wait_all_tasks_blocked()
    assert world.stored == {"a": BOTH["a"], "b": FOREIGN}
    world.of_b.gate.set()
    await wait_all_tasks_blocked()
    assert world.stored == BOTH


@pytest.mark.flink("FDE-31")
async def test_a_pending_grant_does_not_delay_a_register(world: World) -> None:
    await _b_blocks_its_grant(world)
    world.driver.stored = LeaderInformationRegister({"b": FOREIGN})
    world.driver.listener.on_all_leader_information_change(world.driver.stored)
    await wait_all_tasks_blocked()
    assert world.stored == {"a": BOTH["a"], "b": FOREIGN}


@pytest.mark.flink("FDE-32")
async def test_reporting_a_grant_does_not_wait_for_the_contender(world: World) -> None:  # rule E3.18
    await world.start()
    world.of_a.gate = trio.Event()
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    world.driver.revoke()
    assert world.of_a.entered.is_set()
    assert world.of_a.calls == world.of_b.calls == []
    world.of_a.gate.set()
    await wait_all_tasks_blocked()
    assert world.of_a.calls == world.of_b.calls == ["grant", "revoke"]


@pytest.mark.flink("FDE-33")
async def test_reporting_a_revoke_does_not_wait_for_the_contender(world: World) -> None:
    await world.leading()
    proceed = trio.Event()
    revoke = world.of_a.revoke_leadership

    async def slowly() -> None:
        await proceed.wait()
        await revoke()

    world.of_a.revoke_leadership = slowly  # type: ignore[method-assign]
    world.driver.revoke()
    await wait_all_tasks_blocked()
    world.driver.grant(OTHER_ID)
    await wait_all_tasks_blocked()
    assert world.of_b.calls == ["grant"]
    proceed.set()
    await wait_all_tasks_blocked()
    assert world.of_a.calls == world.of_b.calls == ["grant", "revoke", "grant"]


class Work:
    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self) -> None:
        self.runs += 1


@pytest.mark.flink("FDE-34")
async def test_run_if_leader(world: World) -> None:  # rules E3.17, E11.15
    await world.leading()
    work = Work()
    await world.a.run_if_leader(ID, work)
    assert work.runs == 1


@pytest.mark.flink("FDE-35")
async def test_run_if_leader_raises_what_the_work_raises(world: World) -> None:
    await world.leading()

    async def fail() -> None:
        raise RuntimeError("work")

    with pytest.raises(RuntimeError, match="work"):
        await world.a.run_if_leader(ID, fail)
    assert world.of_a.errors == []


@pytest.mark.flink("FDE-36")
async def test_run_if_leader_under_an_old_id(world: World) -> None:
    await world.leading()
    work = Work()
    with pytest.raises(LeadershipLost, match=str(OTHER_ID)):
        await world.a.run_if_leader(OTHER_ID, work)
    assert work.runs == 0


@pytest.mark.flink("FDE-37")
async def test_run_if_leader_without_leadership(world: World) -> None:
    await world.leading()
    work = Work()
    world.driver.revoke()
    with pytest.raises(LeadershipLost):
        await world.a.run_if_leader(ID, work)
    assert work.runs == 0


@pytest.mark.flink("FDE-38")
async def test_run_if_leader_of_a_component_that_left(world: World) -> None:
    await world.leading()
    await world.a.stop()
    work = Work()
    await world.a.run_if_leader(ID, work)
    assert work.runs == 0


async def _queued_work(world: World, nursery: trio.Nursery, end: Callable[[], Awaitable[None]]) -> Work:
    """Work of b waits behind a grant that blocks; then ``end`` is done."""
    await world.leading()
    late, of_late = world.service.create_leader_election("late"), Contender()
    of_late.gate = trio.Event()
    await late.start(of_late)
    await of_late.entered.wait()
    work, done = Work(), trio.Event()

    async def ask() -> None:
        await world.b.run_if_leader(ID, work)
        done.set()

    nursery.start_soon(ask)
    await wait_all_tasks_blocked()
    nursery.start_soon(end)
    await wait_all_tasks_blocked()
    assert not done.is_set()
    of_late.gate.set()
    with trio.fail_after(60):
        await done.wait()
    return work


@pytest.mark.flink("FDE-39")
async def test_work_is_queued_and_its_component_leaves(world: World, nursery: trio.Nursery) -> None:
    work = await _queued_work(world, nursery, world.b.stop)
    assert work.runs == 0


@pytest.mark.flink("FDE-40")
async def test_work_is_queued_and_the_service_ends(world: World, nursery: trio.Nursery) -> None:
    work = await _queued_work(world, nursery, world.service.terminate)
    assert work.runs == 0


@pytest.mark.flink("FDE-41")
async def test_work_after_the_service_was_closed(world: World) -> None:
    await world.leading()
    await world.a.stop()
    await world.b.stop()
    await world.service.aclose()
    work = Work()
    await world.b.run_if_leader(ID, work)
    assert work.runs == 0


async def test_work_from_within_a_callback_does_not_deadlock(world: World) -> None:  # rule E3.7
    work = Work()

    class Busy(Contender):
        async def grant_leadership(self, session_id: UUID) -> None:
            await world.a.run_if_leader(session_id, work)
            await super().grant_leadership(session_id)

    contender = Busy(world.a, "host-a:1")
    await world.a.start(contender)
    world.driver.grant(ID)
    with trio.fail_after(60):
        await contender.lead()
    assert work.runs == 1


async def test_stop_from_within_a_callback_does_not_deadlock(world: World) -> None:
    class Shy(Contender):
        async def grant_leadership(self, session_id: UUID) -> None:
            await super().grant_leadership(session_id)
            await world.a.stop()

    contender = Shy(world.a, "host-a:1")
    await world.a.start(contender)
    driver = world.driver
    driver.grant(ID)
    await wait_all_tasks_blocked()
    assert contender.calls == ["grant", "revoke"]
    assert (driver.closed, driver.deleted) == (True, ["a"])


async def test_a_second_confirmation_is_an_error_and_changes_nothing(world: World) -> None:  # rule E4.8
    await world.leading()
    with pytest.raises(IllegalElectionState, match="confirmed already, at host-a:1"):
        await world.a.confirm_leadership(ID, "other:1")
    assert world.stored == BOTH


async def test_arguments_of_a_confirmation(world: World) -> None:
    assert not await world.a.confirm_leadership(ID, "early:1")
    for arguments in ((None, "x"), (ID, None)):
        with pytest.raises(ValueError, match="needs a session id and an address"):
            await world.a.confirm_leadership(*arguments)  # type: ignore[arg-type]


async def test_a_write_that_fails_reaches_the_contender_and_leadership_stays(world: World) -> None:  # rule E4.11
    await world.start()
    world.driver.failure = OSError("disk full")
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    assert isinstance(world.of_a.errors[0].__cause__, OSError)
    assert world.a.has_leadership(ID)
    world.driver.failure = None
    world.driver.change("a", EMPTY)
    await wait_all_tasks_blocked()
    assert world.stored["a"] == BOTH["a"]  # what was confirmed stays


async def test_a_contender_that_fails_is_reported_and_stays(world: World) -> None:  # rule E3.16
    class Failing(Contender):
        async def grant_leadership(self, session_id: UUID) -> None:
            raise RuntimeError("cannot lead today")

    failing = Failing()
    await world.a.start(failing)
    await world.b.start(world.of_b)
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    assert "cannot lead today" in str(failing.errors[0])
    assert world.of_b.granted == [ID]
    assert world.a.has_leadership(ID)


async def test_errors_of_a_driver_are_reported(world: World) -> None:  # rule E6.8
    await world.leading()
    world.driver.grant(OTHER_ID)
    await wait_all_tasks_blocked()
    world.driver.revoke()
    world.driver.revoke()
    await wait_all_tasks_blocked()
    assert [str(e) for e in world.of_a.errors] == [
        f"leader election failed: {OTHER_ID} is won while {ID} is issued",
        "leader election failed: leadership is lost that was not issued",
    ]


async def test_a_late_component_is_granted_what_was_issued_unless_it_is_gone(world: World) -> None:  # rule E4.3
    await world.leading()
    late, contender = world.service.create_leader_election("late"), Contender()
    await late.start(contender)
    world.driver.revoke()
    await wait_all_tasks_blocked()
    assert contender.calls in ([], ["grant", "revoke"])
    world.driver.grant(OTHER_ID)
    await wait_all_tasks_blocked()
    assert contender.granted[-1] == OTHER_ID
    assert len(contender.granted) <= 2


async def test_stop_goes_on_after_a_failure(world: World) -> None:  # rule E3.9
    class Stubborn(Contender):
        async def revoke_leadership(self) -> None:
            raise RuntimeError("I stay")

    stubborn = Stubborn(world.a, "x:1")
    await world.a.start(stubborn)
    driver = world.driver
    driver.grant(ID)
    await wait_all_tasks_blocked()

    async def refuse() -> None:
        driver.closed = True
        raise OSError("and I do not close")

    driver.aclose = refuse  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="I stay") as raised:
        await world.a.stop()
    assert raised.value.__notes__ == ["also: OSError('and I do not close')"]
    assert (driver.deleted, driver.closed) == (["a"], True)


# FLE: one component's election only passes on


@pytest.mark.flink("FLE-1")
async def test_start_registers_component_and_contender(world: World) -> None:
    await world.a.start(world.of_a)
    assert world.service._contenders["a"].contender is world.of_a
    assert world.of_a.description == "LeaderContender: Contender"  # rule E3.1


@pytest.mark.flink("FLE-2")
async def test_start_without_contender(world: World) -> None:  # rule E3.3
    with pytest.raises(ValueError, match="needs a contender"):
        await world.a.start(None)  # type: ignore[arg-type]
    assert world.backend.drivers == []


@pytest.mark.flink("FLE-3")
async def test_what_fails_while_starting_reaches_the_caller(nursery: trio.Nursery) -> None:
    async def broken(listener: object) -> ManualDriver:
        raise OSError("no backend")

    service = MultipleComponentLeaderElectionService(broken, nursery)
    with pytest.raises(OSError, match="no backend"):
        await service.create_leader_election("a").start(Contender())
    await service.aclose()


@pytest.mark.flink("FLE-4")
async def test_confirm_passes_component_id_and_address(world: World) -> None:
    world.of_a.address = ""
    await world.leading()
    assert await world.a.confirm_leadership(ID, "mine:1")
    assert world.stored["a"] == LeaderInformation(ID, "mine:1")


@pytest.mark.flink("FLE-5")
async def test_stop_deregisters(world: World) -> None:
    await world.start()
    await world.a.stop()
    assert set(world.service._contenders) == {"b"}
    with pytest.raises(IllegalElectionState, match="started before"):  # E3.3: after stop as well
        await world.a.start(world.of_a)


@pytest.mark.flink("FLE-6")
async def test_stop_without_start(world: World) -> None:  # rule E3.9
    await world.a.stop()
    await world.a.start(world.of_a)


class Answering(MultipleComponentLeaderElectionService):
    answer = False
    requested: tuple[str, UUID] | None = None

    def has_leadership(self, registration: object, session_id: UUID) -> bool:
        self.requested = (registration.component_id, session_id)  # type: ignore[attr-defined]
        return self.answer


async def _answering(nursery: trio.Nursery, answer: bool) -> tuple[Answering, DefaultLeaderElectionService]:
    service = Answering(ManualBackend(), nursery)
    service.answer = answer
    election = service.create_leader_election("a")
    await election.start(Contender())
    return service, election


@pytest.mark.flink("FLE-7")
async def test_has_leadership_is_passed_on_true(nursery: trio.Nursery) -> None:
    service, election = await _answering(nursery, True)
    assert election.has_leadership(ID)
    assert service.requested == ("a", ID)


@pytest.mark.flink("FLE-8")
async def test_has_leadership_is_passed_on_false(nursery: trio.Nursery) -> None:
    service, election = await _answering(nursery, False)
    assert not election.has_leadership(ID)
    assert service.requested == ("a", ID)


# FMC: many components


@pytest.mark.flink("FMC-1")
async def test_a_win_reaches_all(world: World) -> None:
    await world.start()
    assert world.of_a.calls == world.of_b.calls == []
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    assert world.of_a.leads
    assert world.of_b.leads


@pytest.mark.flink("FMC-2")
async def test_a_loss_reaches_all(world: World) -> None:
    await world.leading()
    world.driver.revoke()
    await wait_all_tasks_blocked()
    assert not world.of_a.leads
    assert not world.of_b.leads


@pytest.mark.flink("FMC-3")
async def test_no_grant_after_leaving(world: World) -> None:
    await world.start()
    await world.a.stop()
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    assert world.of_a.calls == []


@pytest.mark.flink("FMC-4")
async def test_a_contender_that_joins_a_leading_service_is_granted(world: World) -> None:  # rule E4.3
    await world.a.start(world.of_a)
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    await world.b.start(world.of_b)
    assert world.of_b.granted == []  # asynchronously
    await wait_all_tasks_blocked()
    assert world.of_b.leads


@pytest.mark.flink("FMC-5")
async def test_early_and_late_components_share_the_id(world: World) -> None:  # rule E4.2
    await world.a.start(world.of_a)
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    await world.b.start(world.of_b)
    await wait_all_tasks_blocked()
    assert world.of_a.granted == world.of_b.granted == [ID]


@pytest.mark.flink("FMC-6")
async def test_a_register_is_dealt_out_to_components(world: World) -> None:
    """Known components get their pair, missing ones get empty: each corrects accordingly."""
    await world.leading()
    world.driver.published.clear()
    world.driver.listener.on_all_leader_information_change(LeaderInformationRegister({"a": FOREIGN}))
    await wait_all_tasks_blocked()
    assert sorted(world.driver.published) == ["a", "b"]
    world.driver.published.clear()
    world.driver.listener.on_all_leader_information_change(LeaderInformationRegister(BOTH))
    await wait_all_tasks_blocked()
    assert world.driver.published == []


@pytest.mark.flink("FMC-7")
async def test_reporting_a_register_does_not_wait(world: World) -> None:
    await world.leading()
    blocked = trio.Event()
    publish = world.driver.publish_leader_information

    async def slowly(component_id: str, information: LeaderInformation) -> None:
        await blocked.wait()
        await publish(component_id, information)

    world.driver.publish_leader_information = slowly  # type: ignore[method-assign]
    world.driver.published.clear()
    world.driver.stored = LeaderInformationRegister()
    for _ in range(3):
        world.driver.listener.on_all_leader_information_change(world.driver.stored)
    await wait_all_tasks_blocked()
    assert world.driver.published == []
    blocked.set()
    await wait_all_tasks_blocked()
    assert world.stored == BOTH


async def test_changes_before_a_correction_are_corrected_once(world: World) -> None:  # rule E5.4
    await world.leading()
    world.driver.published.clear()
    for wrong in (EMPTY, FOREIGN, EMPTY):
        world.driver.change("a", wrong)
    await wait_all_tasks_blocked()
    assert (world.stored, world.driver.published) == (BOTH, ["a"])
    world.driver.change("a", FOREIGN)
    await wait_all_tasks_blocked()
    assert (world.stored, world.driver.published) == (BOTH, ["a", "a"])


async def test_who_does_not_lead_deletes_nothing_when_it_leaves(world: World) -> None:  # rule E6.6
    await world.start()
    await world.a.stop()
    assert (world.driver.deleted, world.of_a.calls) == ([], [])
    world.driver.grant(ID)
    await wait_all_tasks_blocked()
    await world.b.stop()
    assert world.backend.driver.deleted == ["b"]


async def test_an_election_is_started_once(world: World) -> None:
    await world.a.start(world.of_a)
    await world.a.stop()
    with pytest.raises(IllegalElectionState, match="started before"):
        await world.a.start(world.of_a)


async def test_a_terminated_service_makes_no_elections(world: World) -> None:  # rule E9.12
    await world.start()
    await world.service.terminate()
    with pytest.raises(IllegalElectionState, match="closed"):
        world.service.create_leader_election("c")
