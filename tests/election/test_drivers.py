"""One contract for every driver: ZooKeeper, real and in memory, embedded, standalone, and one by entry point (FLT).

Then what is particular to those without ZooKeeper (section 9; FSE, FSH, FEL, FEH).

Covers: kce.election.api, kce.election.embedded, kce.election.standalone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from uuid import UUID, uuid4

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce.election.api import LeaderElectionService, LeaderRetrievalService
from kce.election.config import HighAvailabilityConfig
from kce.election.embedded import EmbeddedLeaderService
from kce.election.errors import ConfigurationError, IllegalElectionState, LeadershipLost
from kce.election.information import DEFAULT_LEADER_ID, LeaderInformation
from kce.election.paths import DISPATCHER, RESOURCE_MANAGER
from kce.election.services import (
    EmbeddedHaServices,
    HighAvailabilityServices,
    StandaloneHaServices,
    create_high_availability_services,
)
from kce.election.standalone import (
    SettableLeaderRetrievalService,
    StandaloneLeaderElectionService,
    StandaloneLeaderRetrievalService,
)
from kce.zookeeper.store import MetadataStore
from kce.zookeeper.store.kazoo import KazooStore
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.election.support import Contender, Listener

ADDRESS = "fixed:1"
JOB, OTHER_JOB = "0" * 31 + "1", "0" * 31 + "2"


class Participants(ABC):
    """Any number of elections and retrievals of one component."""

    #: whether several contend, and the second leads after the first
    elects = True

    @abstractmethod
    async def election(self) -> LeaderElectionService: ...

    @abstractmethod
    async def retrieval(self) -> LeaderRetrievalService: ...


class OfServices(Participants):
    """Each participant is a separate process to the backend."""

    def __init__(self, make: object, *, one_process: bool, elects: bool = True) -> None:
        self._make = make
        self._one = one_process
        self._made: list[HighAvailabilityServices] = []
        self.elects = elects

    async def _services(self) -> HighAvailabilityServices:
        if not (self._one and self._made):
            self._made.append(await self._make())  # type: ignore[operator]
        return self._made[-1]

    async def election(self) -> LeaderElectionService:
        return (await self._services()).leader_election(RESOURCE_MANAGER)

    async def retrieval(self) -> LeaderRetrievalService:
        return (await self._services()).leader_retrieval(RESOURCE_MANAGER)


class Custom:
    """A third party's factory, under the entry point ``our-own``: here on the memory store."""

    server = MemoryZooKeeper()

    async def create_services(self, config: HighAvailabilityConfig, nursery: trio.Nursery) -> HighAvailabilityServices:
        async def connect(config: HighAvailabilityConfig) -> MetadataStore:
            return Custom.server.connect()

        on_twin = HighAvailabilityConfig(mode_text="zookeeper", quorum="twin")
        return await create_high_availability_services(on_twin, nursery, connect=connect)


def zookeeper_config(**more: str) -> HighAvailabilityConfig:
    return HighAvailabilityConfig.from_properties(
        {"high-availability": "zookeeper", "high-availability.zookeeper.quorum": "unused:1", **more}
    )


@pytest.fixture(
    params=[
        "standalone", "embedded", "custom", "memory/1.13", "memory/1.14", "memory/1.18",
        pytest.param("zookeeper", marks=pytest.mark.slow),
    ]
)  # fmt: skip
async def participants(
    request: pytest.FixtureRequest, nursery: trio.Nursery, entry_point: object
) -> AsyncIterator[Participants]:
    kind, _, release = request.param.partition("/")
    stores: list[MetadataStore] = []
    server = MemoryZooKeeper()

    async def connect(config: HighAvailabilityConfig) -> MetadataStore:
        if kind == "memory":
            return server.connect()
        address = f"{request.getfixturevalue('zookeeper')}/drivers-{request.node.name.partition('[')[0]}"
        stores.append(await KazooStore.connect(address, session_timeout_ms=6000, connection_timeout_ms=10_000))
        return stores[-1]

    async def make() -> HighAvailabilityServices:
        config = {
            "standalone": HighAvailabilityConfig(),
            "embedded": HighAvailabilityConfig(),
            "custom": HighAvailabilityConfig(mode_text="our-own"),
        }.get(kind) or zookeeper_config(**({"high-availability.zookeeper.layout": release} if release else {}))
        return await create_high_availability_services(
            config, nursery, single_process=kind == "embedded", addresses={RESOURCE_MANAGER: ADDRESS}, connect=connect
        )

    if kind == "custom":
        Custom.server = MemoryZooKeeper()
        entry_point("our-own", f"{__name__}:Custom")  # type: ignore[operator]
    yield OfServices(make, one_process=kind in ("standalone", "embedded"), elects=kind != "standalone")
    for store in stores:
        await store.aclose()


@pytest.mark.flink("FLT-1")
async def test_has_leadership(participants: Participants) -> None:
    service = await participants.election()
    contender = Contender()
    await service.start(contender)
    session_id = await contender.lead()
    assert service.has_leadership(session_id)
    assert not service.has_leadership(uuid4())
    assert await service.confirm_leadership(session_id, ADDRESS)
    assert service.has_leadership(session_id)
    await service.stop()
    assert not service.has_leadership(session_id)
    assert contender.calls == ["grant", "revoke"]


async def test_a_confirmed_leader_is_retrieved(participants: Participants) -> None:
    service, listener = await participants.election(), Listener()
    await (await participants.retrieval()).start(listener)
    contender = Contender(service, ADDRESS)
    await service.start(contender)
    session_id = await contender.lead()
    await listener.until(lambda: listener.reports)
    assert listener.reports == [(ADDRESS, session_id)]


async def first_leader(contenders: Mapping[int, Contender]) -> tuple[int, UUID]:
    """Wait until one of them leads: its number and its session id."""
    found: list[tuple[int, UUID]] = []
    async with trio.open_nursery() as nursery:

        async def wait_for(number: int, contender: Contender) -> None:
            found.append((number, await contender.lead()))
            nursery.cancel_scope.cancel()

        for number, contender in contenders.items():
            nursery.start_soon(wait_for, number, contender)
    return found[0]


async def test_the_next_leads_when_the_first_leaves(participants: Participants) -> None:
    if not participants.elects:
        return  # every contender leads at once: nobody waits
    services = [await participants.election() for _ in range(3)]
    contenders = [Contender(service, f"host-{i}:1") for i, service in enumerate(services)]
    listener = Listener()
    await (await participants.retrieval()).start(listener)
    await services[0].start(contenders[0])
    await contenders[0].lead()
    for service, contender in zip(services[1:], contenders[1:], strict=True):
        await service.start(contender)
    waiting = dict(enumerate(contenders))
    ids = set()
    while waiting:
        leading, session_id = await first_leader(waiting)
        ids.add(session_id)
        assert [c.leads for c in contenders] == [i == leading for i in range(3)]
        await listener.until(lambda i=leading, s=session_id: listener.leader == (f"host-{i}:1", s))
        del waiting[leading]  # before it leaves: its successor may lead by the time that `stop` returns
        await services[leading].stop()
    await listener.until(lambda: listener.leader == (None, None))
    assert len(ids) == 3
    assert all(c.calls == ["grant", "revoke"] for c in contenders)


async def test_other_ids_are_refused(participants: Participants, caplog: pytest.LogCaptureFixture) -> None:
    service, listener = await participants.election(), Listener()
    contender = Contender()
    await service.start(contender)
    session_id = await contender.lead()
    caplog.set_level("INFO")
    assert not await service.confirm_leadership(uuid4(), "impostor:1")
    assert "is refused" in caplog.text
    assert service.has_leadership(session_id)
    assert await service.confirm_leadership(session_id, ADDRESS)
    await (await participants.retrieval()).start(listener)
    await listener.until(lambda: listener.reports)
    assert listener.reports == [(ADDRESS, session_id)]


async def test_start_twice_and_without_contender(participants: Participants) -> None:
    service = await participants.election()
    with pytest.raises(ValueError, match="needs a contender"):
        await service.start(None)  # type: ignore[arg-type]
    await service.start(Contender())
    with pytest.raises(IllegalElectionState):
        await service.start(Contender())
    with pytest.raises(ValueError, match="without a session id"):
        service.has_leadership(None)  # type: ignore[arg-type]


async def test_run_if_leader(participants: Participants) -> None:
    service, contender = await participants.election(), Contender()
    runs: list[int] = []

    async def work() -> None:
        runs.append(1)

    await service.run_if_leader(uuid4(), work)  # not started
    await service.start(contender)
    session_id = await contender.lead()
    await service.run_if_leader(session_id, work)
    with pytest.raises(LeadershipLost):
        await service.run_if_leader(uuid4(), work)
    await service.stop()
    await service.run_if_leader(session_id, work)
    assert runs == [1]


async def test_stop_is_idempotent(participants: Participants) -> None:
    service = await participants.election()
    await service.stop()
    contender = Contender(service, ADDRESS)
    await service.start(contender)
    session_id = await contender.lead()
    await service.stop()
    await service.stop()
    assert contender.calls == ["grant", "revoke"]
    assert not await service.confirm_leadership(session_id, ADDRESS)


# standalone


@pytest.mark.flink("FSE-1")
async def test_standalone_election_and_retrieval() -> None:
    for ids in ((), (uuid4(),)):
        election, retrieval = StandaloneLeaderElectionService(*ids), StandaloneLeaderRetrievalService(ADDRESS, *ids)
        contender, listener = Contender(election, ADDRESS), Listener()
        await election.start(contender)
        await retrieval.start(listener)
        assert contender.leads
        (expected,) = ids or (DEFAULT_LEADER_ID,)
        assert contender.granted == [expected]
        assert listener.reports == [(ADDRESS, expected)]


@pytest.mark.flink("FSE-2")
async def test_standalone_grants_before_start_returns() -> None:  # rule E9.2
    session_id = uuid4()
    contender = Contender()
    await StandaloneLeaderElectionService(session_id).start(contender)
    assert contender.granted == [session_id]


@pytest.mark.flink("FSE-3")
async def test_standalone_leadership_with_contender() -> None:
    election = StandaloneLeaderElectionService()
    await election.start(Contender())
    assert election.has_leadership(DEFAULT_LEADER_ID)
    assert not election.has_leadership(uuid4())


@pytest.mark.flink("FSE-4")
async def test_standalone_leadership_without_contender() -> None:
    election = StandaloneLeaderElectionService()
    assert not election.has_leadership(DEFAULT_LEADER_ID)
    assert not election.has_leadership(uuid4())


@pytest.mark.flink("FSE-5")
async def test_standalone_stop_revokes_and_may_start_again() -> None:
    election, contender = StandaloneLeaderElectionService(), Contender()
    await election.start(contender)
    await election.stop()
    await election.start(contender)
    assert contender.calls == ["grant", "revoke", "grant"]


async def test_standalone_retrieval_may_start_again() -> None:  # rule E9.3
    retrieval, listener = StandaloneLeaderRetrievalService(ADDRESS), Listener()
    await retrieval.start(listener)
    with pytest.raises(IllegalElectionState):
        await retrieval.start(listener)
    await retrieval.stop()
    await retrieval.start(listener)
    assert len(listener.reports) == 2


async def test_a_contender_that_fails_in_a_standalone_grant_is_reported() -> None:
    class Failing(Contender):
        async def grant_leadership(self, session_id: UUID) -> None:
            raise RuntimeError("no")

    contender = Failing()
    await StandaloneLeaderElectionService().start(contender)
    assert [str(e) for e in contender.errors] == ["no"]


@pytest.mark.flink("FSH-1")
async def test_standalone_services_grant_the_default_id() -> None:
    services = StandaloneHaServices({RESOURCE_MANAGER: ADDRESS})
    for component in (JOB, RESOURCE_MANAGER):
        contender = Contender()
        await services.leader_election(component).start(contender)
        assert contender.granted == [DEFAULT_LEADER_ID]


async def reports_of(retrieval: LeaderRetrievalService) -> list[tuple[str | None, UUID | None]]:
    listener = Listener()
    await retrieval.start(listener)
    return listener.reports


@pytest.mark.flink("FSH-2")
async def test_standalone_retrieval_without_default_address() -> None:  # rule E9.4
    services = StandaloneHaServices({RESOURCE_MANAGER: ADDRESS})
    for job in (JOB, OTHER_JOB):
        assert await reports_of(services.leader_retrieval(job)) == [("UNKNOWN", DEFAULT_LEADER_ID)]
    assert await reports_of(services.leader_retrieval(RESOURCE_MANAGER)) == [(ADDRESS, DEFAULT_LEADER_ID)]
    with pytest.raises(ConfigurationError, match="the address of dispatcher must be given"):
        services.leader_retrieval(DISPATCHER)


@pytest.mark.flink("FSH-3")
async def test_standalone_retrieval_with_default_address() -> None:
    services = StandaloneHaServices({})
    for job, address in ((JOB, "job:1"), (OTHER_JOB, "job:2")):
        assert await reports_of(services.leader_retrieval(job, address)) == [(address, DEFAULT_LEADER_ID)]


# embedded


@pytest.mark.flink("FEL-1")
async def test_embedded_grant_and_shutdown_at_once(nursery: trio.Nursery) -> None:  # rule E9.12
    service = EmbeddedLeaderService(nursery)
    election, contender = service.create_leader_election_service(), Contender()
    await election.start(contender)
    await election.stop()  # before the grant could run
    await wait_all_tasks_blocked()
    assert contender.calls == []
    await service.create_leader_election_service().start(contender)
    await wait_all_tasks_blocked()
    assert contender.calls == ["grant"]
    late = Contender()
    other = EmbeddedLeaderService(nursery)
    await other.create_leader_election_service().start(late)
    await other.shutdown()
    await wait_all_tasks_blocked()  # the grant is processed after the shutdown
    assert "grant" not in late.calls
    assert late.errors == []


@pytest.mark.flink("FEL-2")
async def test_embedded_revoke_and_shutdown_at_once(nursery: trio.Nursery) -> None:
    service = EmbeddedLeaderService(nursery)
    election, contender = service.create_leader_election_service(), Contender()
    await election.start(contender)
    await contender.lead()
    service.revoke_leadership()
    await election.stop()
    await wait_all_tasks_blocked()
    assert contender.calls == ["grant", "revoke"]
    await service.create_leader_election_service().start(contender)
    await wait_all_tasks_blocked()
    assert contender.leads
    service.revoke_leadership()
    await service.shutdown()
    await wait_all_tasks_blocked()  # the revocation is processed after the shutdown
    assert contender.calls == ["grant", "revoke"] * 2
    assert contender.errors == []


async def _two_contend(services: EmbeddedHaServices, component: str) -> tuple[Contender, Contender]:
    first, second = (
        Contender(e, f"{i}:1") for i, e in enumerate(services.leader_election(component) for _ in range(2))
    )
    for contender in (first, second):
        assert contender.service is not None
        await contender.service.start(contender)
    await wait_all_tasks_blocked()
    return first, second


@pytest.mark.flink("FEH-1")
async def test_embedded_job_election(nursery: trio.Nursery) -> None:  # rules E9.5, E9.6
    services = EmbeddedHaServices(nursery)
    first, second = await _two_contend(services, JOB)
    other, _ = await _two_contend(services, OTHER_JOB)
    assert (first.leads, second.leads, other.leads) == (True, False, True)
    assert first.session_id != other.session_id


@pytest.mark.flink("FEH-2")
async def test_embedded_resource_manager_election(nursery: trio.Nursery) -> None:
    first, second = await _two_contend(EmbeddedHaServices(nursery), RESOURCE_MANAGER)
    assert (first.leads, second.leads) == (True, False)


@pytest.mark.flink("FEH-3")
async def test_embedded_job_retrieval(nursery: trio.Nursery) -> None:  # rule E9.7
    services = EmbeddedHaServices(nursery)
    early, late = Listener(), Listener()
    await services.leader_retrieval(JOB).start(early)
    first, _ = await _two_contend(services, JOB)
    await early.until(lambda: early.reports)
    assert early.reports == [("0:1", first.session_id)]
    await services.leader_retrieval(JOB).start(late)
    assert late.reports == []  # asynchronously (E9.9)
    await late.until(lambda: late.reports)
    assert late.reports == early.reports


@pytest.mark.flink("FEH-4")
async def test_embedded_resource_manager_retrieval(nursery: trio.Nursery) -> None:
    services = EmbeddedHaServices(nursery)
    listener = Listener()
    await services.leader_retrieval(RESOURCE_MANAGER).start(listener)
    first, _ = await _two_contend(services, RESOURCE_MANAGER)
    await listener.until(lambda: listener.reports)
    assert listener.reports == [("0:1", first.session_id)]


@pytest.mark.flink("FEH-5")
async def test_embedded_confirmation_with_an_old_id(nursery: trio.Nursery) -> None:  # rules E9.7, E9.11
    services = EmbeddedHaServices(nursery)
    leader_service, election, contender = (
        services.leader_service(DISPATCHER),
        services.leader_election(DISPATCHER),
        Contender(),
    )
    listener = Listener()
    await services.leader_retrieval(DISPATCHER).start(listener)
    await election.start(contender)
    old = await contender.lead()
    assert election.has_leadership(old)
    leader_service.revoke_leadership()
    assert not election.has_leadership(old)
    leader_service.grant_leadership()
    await contender.until(lambda: len(contender.granted) == 2)
    new = contender.granted[1]
    assert election.has_leadership(new)
    assert not await election.confirm_leadership(old, "old:1")
    assert election.has_leadership(new)
    assert not election.has_leadership(old)
    assert await election.confirm_leadership(new, "new:1")
    assert not await election.confirm_leadership(new, "again:1")
    assert election.has_leadership(new)
    assert contender.errors == []
    await wait_all_tasks_blocked()
    assert listener.reports == [(None, None), ("new:1", new)]


async def test_embedded_listeners_hear_only_the_next_confirmation(nursery: trio.Nursery) -> None:  # rule E9.10
    services = EmbeddedHaServices(nursery)
    listener = Listener()
    await services.leader_retrieval(JOB).start(listener)
    first, second = await _two_contend(services, JOB)
    assert first.service is not None
    assert second.service is not None
    await first.service.stop()
    await wait_all_tasks_blocked()
    await second.service.stop()
    await wait_all_tasks_blocked()
    assert [address for address, _ in listener.reports] == ["0:1", "1:1", None]


async def test_embedded_shutdown(nursery: trio.Nursery) -> None:  # rules E9.12, E9.14
    services = EmbeddedHaServices(nursery)
    leader_service = services.leader_service(DISPATCHER)
    first, second = await _two_contend(services, DISPATCHER)
    listener = Listener()
    retrieval = services.leader_retrieval(DISPATCHER)
    await retrieval.start(listener)
    unstarted = services.leader_election(DISPATCHER)
    unstarted_retrieval = leader_service.create_leader_retrieval_service()
    await wait_all_tasks_blocked()
    await services.aclose()
    await services.aclose()
    await wait_all_tasks_blocked()
    assert (first.calls, second.calls, len(listener.reports)) == (["grant", "revoke"], ["revoke"], 1)
    assert first.service is not None
    assert not await first.service.confirm_leadership(first.granted[0], "late:1")
    for refused in (
        leader_service.revoke_leadership, leader_service.grant_leadership,
        leader_service.create_leader_election_service,
        leader_service.create_leader_retrieval_service, lambda: services.leader_election(DISPATCHER),
    ):  # fmt: skip
        with pytest.raises(IllegalElectionState):
            refused()
    with pytest.raises(IllegalElectionState):
        await unstarted.start(Contender())
    with pytest.raises(IllegalElectionState, match="shut down"):
        await unstarted_retrieval.start(Listener())
    await first.service.stop()
    await retrieval.stop()
    assert first.calls == ["grant", "revoke"]


async def test_an_embedded_shutdown_that_fails_is_complete(nursery: trio.Nursery) -> None:  # rule E9.12
    """It revokes the others, raises the first error, and has nothing left to do."""

    class Failing(Contender):
        async def revoke_leadership(self) -> None:
            await super().revoke_leadership()
            raise RuntimeError("revoked")

    service = EmbeddedLeaderService(nursery)
    contenders = [Failing(), Contender()]
    for contender in contenders:
        await service.create_leader_election_service().start(contender)
    await contenders[0].lead()
    with pytest.raises(RuntimeError, match="revoked"):
        await service.shutdown()
    assert [contender.calls for contender in contenders] == [["grant", "revoke"], ["revoke"]]
    await service.shutdown()


async def test_an_embedded_listener_that_is_stopped_is_forgotten(nursery: trio.Nursery) -> None:
    service = EmbeddedLeaderService(nursery)
    retrieval = service.create_leader_retrieval_service()
    await retrieval.start(Listener())
    assert len(service._listeners) == 1
    await retrieval.stop()
    assert service._listeners == []


async def test_an_embedded_election_that_fails_to_start_is_shut_down_with_the_others(nursery: trio.Nursery) -> None:
    service = EmbeddedLeaderService(nursery)
    election, contender = service.create_leader_election_service(), Contender()
    contender.gate = trio.Event()  # its grant is under way
    await election.start(contender)
    await contender.entered.wait()
    assert len(service._running) == 1
    contender.gate.set()
    await service.shutdown()
    assert contender.calls == ["grant", "revoke"]


async def test_embedded_participants_may_start_again(nursery: trio.Nursery) -> None:  # rule E9.13
    service = EmbeddedLeaderService(nursery)
    election, contender = service.create_leader_election_service(), Contender()
    retrieval, listener = service.create_leader_retrieval_service(), Listener()
    for _ in range(2):
        await retrieval.start(listener)
        with pytest.raises(IllegalElectionState):
            await retrieval.start(listener)
        await election.start(contender)
        await contender.lead()
        assert contender.session_id is not None
        await election.confirm_leadership(contender.session_id, ADDRESS)
        await wait_all_tasks_blocked()
        await retrieval.stop()
        await election.stop()
    assert contender.calls == ["grant", "revoke"] * 2
    assert [address for address, _ in listener.reports] == [ADDRESS] * 2


async def test_a_leader_that_is_set_by_hand() -> None:
    retrieval, listener, session_id = SettableLeaderRetrievalService(), Listener(), uuid4()
    with pytest.raises(ValueError, match="needs a listener"):
        await retrieval.start(None)  # type: ignore[arg-type]
    await retrieval.start(listener)
    assert listener.reports == []
    await retrieval.set_leader(LeaderInformation(session_id, ADDRESS))
    assert listener.reports == [(ADDRESS, session_id)]
    with pytest.raises(IllegalElectionState, match="was started before"):
        await retrieval.start(Listener())
    known = SettableLeaderRetrievalService(LeaderInformation(session_id, ADDRESS))
    await known.set_leader(LeaderInformation(session_id, "elsewhere"))
    late = Listener()
    await known.start(late)
    assert late.reports == [("elsewhere", session_id)]


async def test_closed_embedded_services_make_nothing(nursery: trio.Nursery) -> None:
    services = EmbeddedHaServices(nursery)
    await services.aclose()
    for make in (services.leader_election, services.leader_retrieval):
        with pytest.raises(IllegalElectionState, match="services are closed"):
            make("new")
