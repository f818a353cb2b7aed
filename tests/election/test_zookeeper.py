"""Election and retrieval through ZooKeeper, real and in memory (sections 1, 4, 5, 8; FZE, FZD, FWL, FTC).

Covers: kce.election.zookeeper, kce.election.latch, kce.election.leader_node.
"""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
import trio

from kce.election.errors import IllegalElectionState
from kce.election.information import EMPTY, LeaderInformation
from kce.election.java_stream import decode_leader_node, encode_leader_node
from kce.election.leader_node import WatchedNode
from kce.election.paths import ElectionPaths, PathLayout
from kce.election.service import MultipleComponentLeaderElectionService
from kce.election.session import ElectionSession
from kce.election.zookeeper import (
    ZooKeeperLeaderElectionDriver,
    ZooKeeperLeaderRetrievalDriver,
    election_driver_factory,
    read_leader_node,
    retrieval_driver_factory,
)
from kce.zookeeper.store import Create, Delete, NodeData, NoNode, Op, SetData, StoreError, value
from tests.election.conftest import Backend, Memory
from tests.election.support import (
    COMPONENT,
    PATHS,
    Changing,
    Contender,
    Listener,
    Reported,
    Retrieved,
    contend,
    election,
    latch_of,
    listen,
    retrieval,
)

LATCH, LEADER = PATHS.latch_path(COMPONENT), PATHS.leader_path(COMPONENT)
FOREIGN = LeaderInformation(uuid4(), "elsewhere:1")
FOREIGN_BYTES = encode_leader_node("elsewhere:1", FOREIGN.session_id or uuid4())


async def node(session: ElectionSession, path: str = LEADER) -> NodeData | None:
    (found,) = await session.store.get_data([path])
    return None if isinstance(found, NoNode) else value(found)


async def latch_nodes(session: ElectionSession) -> list[str]:
    (names,) = await session.store.get_children([LATCH])
    return [] if isinstance(names, NoNode) else value(names)


async def write(session: ElectionSession, *ops: Op) -> None:
    for answer in await session.store.write(ops):
        value(answer)


class Node(Changing):
    """Records the reports of a WatchedNode."""

    def __init__(self, session: ElectionSession, path: str = LEADER) -> None:
        super().__init__()
        self.reports: list[bytes | None] = []
        self.errors: list[Exception] = []
        self.watched = WatchedNode(session, path, on_data=self._data, on_error=self.errors.append)
        self.watched.start()

    def _data(self, data: bytes | None) -> None:
        self.reports.append(data)
        self.changed()


def driver_of(
    session: ElectionSession, *, component: str = COMPONENT
) -> tuple[ZooKeeperLeaderElectionDriver, Reported]:
    reported = Reported()
    driver = ZooKeeperLeaderElectionDriver(session, PATHS, component, reported, retry_wait_s=0.2)
    driver.watch(component)
    return driver, reported


async def leading(session: ElectionSession) -> tuple[ZooKeeperLeaderElectionDriver, Reported]:
    driver, reported = driver_of(session)
    await reported.until(lambda: "grant" in reported.events)
    return driver, reported


# FZE: the whole of it


@pytest.mark.flink("FZE-1")
async def test_a_retriever_gets_what_the_leader_published(backend: Backend, nursery: trio.Nursery) -> None:
    session, other = await backend.session(), await backend.session()
    listener = await listen(other, nursery)
    contender = await contend(session, nursery, "leader:1")
    session_id = await contender.lead()
    await listener.until(lambda: listener.reports)
    assert listener.reports == [("leader:1", session_id)]
    found = await node(other)
    assert found is not None
    assert decode_leader_node(found.data) == ("leader:1", session_id)
    assert found.stat.ephemeral_owner == session.session_id  # rule E1.16
    (name,) = await latch_nodes(other)
    assert re.fullmatch(r"_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-latch-\d{10}", name)  # rule E1.7
    latch = await node(other, f"{LATCH}/{name}")
    assert latch is not None
    assert (latch.data, latch.stat.ephemeral_owner) == (b"", session.session_id)


@pytest.mark.flink("FZE-2")
async def test_reelection(backend: Backend, nursery: trio.Nursery) -> None:
    """First come, first served: each of ten leads once, in order, and the retriever gets each."""
    session = await backend.session()
    listener = await listen(await backend.session(), nursery)
    contenders = []
    for i in range(10):
        contenders.append(await contend(session, nursery, f"host-{i}:1"))
        await contenders[-1].until(lambda: len(contenders) > 1 or contenders[0].leads)
        latch = latch_of(contenders[-1])
        with trio.fail_after(60):
            while not latch._node:  # its turn in the queue is fixed with its node
                await trio.lowlevel.checkpoint()
    for i, contender in enumerate(contenders):
        session_id = await contender.lead()
        assert [c.leads for c in contenders] == [c is contender for c in contenders]
        await listener.until(lambda i=i, session_id=session_id: listener.leader == (f"host-{i}:1", session_id))
        assert contender.service is not None
        await contender.service.stop()
    assert [len(c.granted) for c in contenders] == [1] * 10
    assert await latch_nodes(session) == []


@pytest.mark.flink("FZE-3")
async def test_reelection_with_replacement(backend: Backend, nursery: trio.Nursery) -> None:
    session = await backend.session()
    listener = await listen(await backend.session(), nursery)
    contenders = [await contend(session, nursery, f"host-{i}:1") for i in range(3)]
    elected = Changing()
    for turn in range(30):
        for contender in contenders:
            contender.changed = elected.changed  # type: ignore[method-assign]
        await elected.until(lambda: any(c.leads for c in contenders))
        (leader,) = [c for c in contenders if c.leads]
        assert leader.service is not None
        assert leader.service.has_leadership(leader.granted[-1])
        found = (leader.address, leader.granted[-1])
        await listener.until(lambda found=found: listener.leader == found)
        await leader.service.stop()
        contenders[contenders.index(leader)] = await contend(session, nursery, f"host-{turn + 3}:1")
    await elected.until(lambda: True)
    assert len(await latch_nodes(session)) <= 3


@pytest.mark.flink("FZE-4")
async def test_an_overwritten_leader_is_corrected(backend: Backend, nursery: trio.Nursery) -> None:
    """Deleted, and replaced by a node that does not end with any session."""
    session, other = await backend.session(), await backend.session()
    contender = await contend(session, nursery, "leader:1")
    session_id = await contender.lead()
    listener = await listen(other, nursery)
    await listener.until(lambda: listener.reports)
    await other.store.multi([[Delete(LEADER), Create(LEADER, FOREIGN_BYTES)]])
    seen = Node(other)
    await seen.until(lambda: seen.reports and seen.reports[-1] not in (None, FOREIGN_BYTES))
    found = await node(other)
    assert found is not None
    assert (decode_leader_node(found.data), found.stat.ephemeral_owner) == (
        ("leader:1", session_id), session.session_id,
    )  # fmt: skip
    await listener.until(lambda: listener.leader == ("leader:1", session_id))
    assert contender.calls == ["grant"]


@pytest.mark.parametrize("harm", ["deleted", "emptied", "altered", "rubbish", "of a dead id"])
async def test_a_leader_node_that_was_tampered_with(backend: Backend, nursery: trio.Nursery, harm: str) -> None:
    """Rules E5.3, E5.4, E5.7."""
    session, other = await backend.session(), await backend.session()
    contender = await contend(session, nursery, "leader:1")
    session_id = await contender.lead()
    right = encode_leader_node("leader:1", session_id)
    op: Op = {
        "deleted": Delete(LEADER),
        "emptied": SetData(LEADER, b""),
        "altered": SetData(LEADER, FOREIGN_BYTES),
        "rubbish": SetData(LEADER, b"\xac\xed\x00\x05rubbish"),
        "of a dead id": SetData(LEADER, encode_leader_node("leader:1", uuid4())),
    }[harm]
    await write(other, op)
    seen = Node(other)
    await seen.until(lambda: seen.reports and seen.reports[-1] == right)
    found = await node(other)
    assert found is not None
    assert found.stat.ephemeral_owner == session.session_id
    assert contender.calls == ["grant"]
    assert contender.errors == []


@pytest.mark.flink("FZE-5")
async def test_one_publish_is_one_change(backend: Backend, nursery: trio.Nursery) -> None:  # rules E5.5, E11.9
    session, other = await backend.session(), await backend.session()
    driver, reported = await leading(session)
    await driver.publish_leader_information(COMPONENT, FOREIGN)
    await reported.until(lambda: COMPONENT in reported.information)
    await driver.aclose()
    assert reported.events == ["grant", (COMPONENT, FOREIGN)]
    await write(session, Delete(LEADER))
    seen = Node(other)
    contender = await contend(session, nursery, "leader:1")
    await contender.lead()
    await seen.until(lambda: seen.reports)
    await write(other, Create("/settled"))
    marker = Node(session, "/settled")  # read after the effects of the write's own watch
    await marker.until(lambda: marker.reports)
    found = await node(other)
    assert found is not None
    assert (found.stat.version, len(seen.reports)) == (0, 1)


class Unwritable(StoreError):
    pass


@pytest.mark.flink("FZE-6")
async def test_what_fails_while_publishing_reaches_the_contender(backend: Backend, nursery: trio.Nursery) -> None:
    session = await backend.session()
    create = session.store.write

    async def refuse(ops: list[Op]) -> object:
        if isinstance(ops[0], Create) and ops[0].path == LEADER:
            return [Unwritable("not today")]
        return await create(ops)

    session.store.write = refuse  # type: ignore[assignment,method-assign]
    contender = await contend(session, nursery, "leader:1")
    await contender.until(lambda: contender.errors)
    assert isinstance(contender.errors[0].__cause__, Unwritable)
    assert contender.leads  # rule E4.11


@pytest.mark.flink("FZE-7")
async def test_the_leader_node_goes_with_its_session(backend: Backend, nursery: trio.Nursery) -> None:
    session, other = await backend.session(), await backend.session()
    contender = await contend(session, nursery, "leader:1")
    await contender.lead()
    listener = await listen(other, nursery)
    await listener.until(lambda: listener.reports)
    await session.aclose()
    await listener.until(lambda: listener.leader == (None, None))
    assert await node(other) is None
    assert contender.calls == ["grant"]  # rule E7.14: closing the session revokes nobody


@pytest.mark.flink("FZE-8")
async def test_a_former_leader_does_not_clean_up(backend: Backend, nursery: trio.Nursery) -> None:  # rule E6.3
    session, other = await backend.session(), await backend.session()
    contender = await contend(session, nursery, "leader:1")
    session_id = await contender.lead()
    (name,) = await latch_nodes(other)
    first = await contend(other, nursery, "")  # takes over, and confirms nothing
    await write(other, Delete(f"{LATCH}/{name}"))
    await first.lead()
    await contender.until(lambda: contender.calls == ["grant", "revoke"])
    listener = await listen(await backend.session(), nursery)
    await listener.until(lambda: listener.reports)
    assert listener.reports == [("leader:1", session_id)]


@pytest.mark.flink("FZE-9")
async def test_unexpected_errors_reach_the_fatal_error_handler(backend: Backend) -> None:  # rule E3.15
    session = await backend.session()
    changes = Changing()
    seen: list[Exception] = []

    def fatal(error: Exception) -> None:
        seen.append(error)
        changes.changed()

    session._fatal_error_handler = fatal

    async def fail() -> None:
        raise RuntimeError("in the background")

    session.start_soon(fail)
    await changes.until(lambda: seen)
    assert str(seen[0]) == "in the background"


# FZD: the driver


@pytest.mark.flink("FZD-1")
async def test_a_lone_driver_leads(backend: Backend) -> None:
    driver, reported = await leading(await backend.session())
    assert driver.has_leadership
    assert reported.events == ["grant"]


@pytest.mark.flink("FZD-2")
async def test_a_driver_without_server_does_not_lead(backend: Backend) -> None:  # rule E7.2
    session = await backend.session()
    driver, reported = await leading(session)
    await backend.disconnect(session)
    await reported.until(lambda: reported.events == ["grant", "revoke"])
    assert not driver.has_leadership


@pytest.mark.flink("FZD-3")
async def test_a_published_pair_reaches_a_retriever(backend: Backend, nursery: trio.Nursery) -> None:
    session = await backend.session()
    driver, _ = await leading(session)
    await driver.publish_leader_information(COMPONENT, FOREIGN)
    listener = await listen(session, nursery)
    await listener.until(lambda: listener.reports)
    assert listener.reports == [(FOREIGN.address, FOREIGN.session_id)]


@pytest.mark.flink("FZD-4")
async def test_publishing_empty_is_no_leader(backend: Backend, nursery: trio.Nursery) -> None:  # rule E4.14
    session = await backend.session()
    driver, _ = await leading(session)
    listener = await listen(session, nursery)
    await driver.publish_leader_information(COMPONENT, FOREIGN)
    await listener.until(lambda: listener.reports)
    await driver.publish_leader_information(COMPONENT, EMPTY)
    await listener.until(lambda: listener.leader == (None, None))
    found = await node(session)
    assert found is not None
    assert found.data == b""


@pytest.mark.flink("FZD-5")
async def test_a_driver_names_its_latch(backend: Backend) -> None:
    driver, _ = driver_of(await backend.session())
    assert LATCH in str(driver)


@pytest.mark.flink("FZD-6")
async def test_a_follower_publishes_nothing(backend: Backend) -> None:
    session = await backend.session()
    driver, _ = await leading(session)
    await driver.publish_leader_information(COMPONENT, FOREIGN)
    second, reported = driver_of(session)
    assert not second.has_leadership
    await reported.until(lambda: COMPONENT in reported.information)
    await second.publish_leader_information(COMPONENT, LeaderInformation(uuid4(), "usurper:1"))
    await second.delete_leader_information(COMPONENT)
    found = await node(session)
    assert found is not None
    assert (found.data, found.stat.version) == (FOREIGN_BYTES, 0)
    assert reported.events == [(COMPONENT, FOREIGN)]


@pytest.mark.flink("FZD-7")
async def test_a_change_from_outside_is_reported(backend: Backend) -> None:  # rule E5.8
    session, other = await backend.session(), await backend.session()
    _, reported = await leading(session)
    await other.make_parents(LEADER)
    await write(other, Create(LEADER, FOREIGN_BYTES))
    await reported.until(lambda: COMPONENT in reported.information)
    assert reported.information == {COMPONENT: FOREIGN}


@pytest.mark.flink("FZD-8")
async def test_of_three_drivers_one_leads(backend: Backend) -> None:
    session = await backend.session()
    drivers = [driver_of(session) for _ in range(3)]
    elected = Changing()
    for _, reported in drivers:
        reported.changed = elected.changed  # type: ignore[method-assign]
    while drivers:
        await elected.until(lambda drivers=drivers: any(d.has_leadership for d, _ in drivers))
        (leader,) = [d for d, _ in drivers if d.has_leadership]
        await leader.aclose()
        drivers = [(d, r) for d, r in drivers if d is not leader]
    assert await latch_nodes(session) == []
    with pytest.raises(IllegalElectionState, match="is closed"):  # rule E4.14
        await leader.publish_leader_information(COMPONENT, FOREIGN)


@pytest.mark.flink("FZD-9")
async def test_a_removed_node_is_reported_as_empty(backend: Backend) -> None:
    session, other = await backend.session(), await backend.session()
    driver, reported = await leading(session)
    await driver.publish_leader_information(COMPONENT, FOREIGN)
    await reported.until(lambda: COMPONENT in reported.information)
    await write(other, Delete(LEADER))
    await reported.until(lambda: reported.information[COMPONENT].is_empty)
    assert reported.events == ["grant", (COMPONENT, FOREIGN), (COMPONENT, EMPTY)]


# FTC: the watched node


@pytest.mark.flink("FTC-1")
async def test_reports_creation(backend: Backend) -> None:
    session, other = await backend.session(), await backend.session()
    seen = Node(session, "/node")
    await write(other, Create("/node", b"1"))
    await seen.until(lambda: seen.reports)
    assert seen.reports == [b"1"]


@pytest.mark.flink("FTC-2")
async def test_reports_modification(backend: Backend) -> None:
    session, other = await backend.session(), await backend.session()
    await write(other, Create("/node", b"1"))
    seen = Node(session, "/node")
    await seen.until(lambda: seen.reports)
    await write(other, SetData("/node", b"2"))
    await seen.until(lambda: len(seen.reports) == 2)
    assert seen.reports == [b"1", b"2"]


@pytest.mark.flink("FTC-3")
async def test_reports_deletion(backend: Backend) -> None:
    session, other = await backend.session(), await backend.session()
    await write(other, Create("/node", b"1"))
    seen = Node(session, "/node")
    await seen.until(lambda: seen.reports)
    await write(other, Delete("/node"))
    await seen.until(lambda: len(seen.reports) == 2)
    assert seen.reports == [b"1", None]


async def _does_not_report(backend: Backend, path: str, *ops: Op) -> None:
    """A watcher of ``path`` does not report ``ops``, but reports a change of the node afterwards."""
    session, other = await backend.session(), await backend.session()
    seen = Node(session, path)
    await write(other, *ops)
    exists = (await other.store.exists([path]))[0] is not None
    await write(other, SetData(path, b"last") if exists else Create(path, b"last"))
    await seen.until(lambda: seen.reports and seen.reports[-1] == b"last")
    assert seen.reports in ([b"last"], [b"", b"last"])
    assert len(seen.reports) == 1 or exists


@pytest.mark.flink("FTC-4")
async def test_does_not_report_parents(backend: Backend) -> None:
    await _does_not_report(backend, "/a/b/node", Create("/a"), Create("/a/b"))


@pytest.mark.flink("FTC-5")
async def test_does_not_report_children(backend: Backend) -> None:
    await _does_not_report(backend, "/node", Create("/node"), Create("/node/child"), SetData("/node/child", b"x"))


@pytest.mark.flink("FTC-6")
async def test_does_not_report_similar_paths(backend: Backend) -> None:
    await _does_not_report(backend, "/node", Create("/nod"), Create("/node-2"), Create("/nodes"))


@pytest.mark.flink("FTC-7")
async def test_does_not_report_connections(backend: Backend) -> None:
    session, other = await backend.session(), await backend.session()
    seen = Node(session, "/node")
    states = Changing()
    session.subscribe(lambda state: states.changed())
    for change in (backend.disconnect, backend.reconnect):
        was = session.state
        await change(session)
        await states.until(lambda was=was: session.state is not was)
    await write(other, Create("/node", b"1"))
    await seen.until(lambda: seen.reports)
    assert seen.reports == [b"1"]


# FWL: writing and reading


@pytest.mark.flink("FWL-1")
async def test_a_written_pair_reads_back(backend: Backend) -> None:
    session = await backend.session()
    driver, _ = await leading(session)
    await driver.publish_leader_information(COMPONENT, FOREIGN)
    found = await node(session)
    assert found is not None
    assert read_leader_node(found.data) == FOREIGN


@pytest.mark.flink("FWL-2")
async def test_written_emptiness_reads_back(backend: Backend) -> None:
    session = await backend.session()
    driver, _ = await leading(session)
    await driver.publish_leader_information(COMPONENT, EMPTY)
    found = await node(session)
    assert found is not None
    assert read_leader_node(found.data) == EMPTY


@pytest.mark.flink("FWL-3")
async def test_a_tree_is_deleted(backend: Backend) -> None:
    session = await backend.session()
    await write(session, *(Create(path) for path in ("/t", "/t/a", "/t/a/b", "/t/c")))
    await session.delete_tree("/t")
    await session.delete_tree("/t")
    assert await node(session, "/t") is None


# rules without an upstream test


async def test_an_unexpected_foreign_node_with_children_is_reported(backend: Backend, nursery: trio.Nursery) -> None:
    """Rule E4.11: NOTEMPTY ends the write with an error, and leadership goes on."""
    session, other = await backend.session(), await backend.session()
    await other.make_parents(f"{LEADER}/child")
    await write(other, Create(f"{LEADER}/child"))
    contender = await contend(session, nursery, "leader:1")
    await contender.until(lambda: contender.errors)
    assert contender.leads
    assert "NotEmpty" in str(contender.errors[0])


async def test_stop_while_leading_removes_both_nodes(backend: Backend, nursery: trio.Nursery) -> None:  # rule E6.6
    session = await backend.session()
    contender = await contend(session, nursery, "leader:1")
    await contender.lead()
    assert contender.service is not None
    await contender.service.stop()
    assert contender.calls == ["grant", "revoke"]
    assert await node(session) is None
    assert await node(session, "/flink/default/leader/dispatcher") is None
    assert await latch_nodes(session) == []


@pytest.mark.parametrize("layout", list(PathLayout))
async def test_each_layout_elects(backend: Backend, nursery: trio.Nursery, layout: PathLayout) -> None:
    paths = ElectionPaths(layout=layout)
    session = await backend.session()
    contender = await contend(session, nursery, "leader:1", paths=paths)
    session_id = await contender.lead()
    found = await node(session, paths.leader_path(COMPONENT))
    assert found is not None
    assert decode_leader_node(found.data) == ("leader:1", session_id)
    (names,) = await session.store.get_children([paths.latch_path(COMPONENT)])
    assert len(value(names)) == 1


async def test_retrieval_creates_nothing(backend: Backend, nursery: trio.Nursery) -> None:  # rules E1.15, E8.12
    session = await backend.session()
    listener = await listen(session, nursery)
    seen = Node(session)
    await session.store.exists([LEADER])
    assert (await session.store.get_children(["/"]))[0] in ([], ["zookeeper"])
    assert listener.reports == seen.reports == []


async def test_undecodable_content_is_reported_and_the_leader_stays(backend: Backend, nursery: trio.Nursery) -> None:
    """Rules E8.7, E8.8."""
    session, other = await backend.session(), await backend.session()
    await other.make_parents(LEADER)
    await write(other, Create(LEADER, FOREIGN_BYTES))
    listener = await listen(session, nursery)
    await listener.until(lambda: listener.reports)
    await write(other, SetData(LEADER, b"rubbish"))
    await listener.until(lambda: listener.errors)
    await write(other, SetData(LEADER, bytes.fromhex("aced000577050003666f6f70")))
    await listener.until(lambda: len(listener.errors) == 2)
    assert [str(e.__cause__) for e in listener.errors] == [
        "leader node, offset 0: stream header is 72756262, not aced0005",
        "leader node, offset 12: no session id beside the address 'foo'",
    ]
    await write(other, SetData(LEADER, encode_leader_node("next:1", FOREIGN.session_id or uuid4())))
    await listener.until(lambda: len(listener.reports) == 2)
    assert listener.reports == [("elsewhere:1", FOREIGN.session_id), ("next:1", FOREIGN.session_id)]


async def test_a_retriever_reports_nothing_twice(backend: Backend, nursery: trio.Nursery) -> None:  # rules E8.3-E8.6
    session, other = await backend.session(), await backend.session()
    listener = await listen(session, nursery)
    await other.make_parents(LEADER)
    await write(other, Create(LEADER))
    same = Node(session)
    await same.until(lambda: same.reports)
    assert listener.reports == []
    await write(other, SetData(LEADER, FOREIGN_BYTES))
    await listener.until(lambda: listener.reports)
    await write(other, SetData(LEADER, FOREIGN_BYTES))
    await write(other, SetData(LEADER, b""))
    await listener.until(lambda: listener.leader == (None, None))
    assert listener.reports == [(FOREIGN.address, FOREIGN.session_id), (None, None)]


async def test_a_stopped_retriever_is_silent(backend: Backend, nursery: trio.Nursery) -> None:  # rule E8.1
    session, other = await backend.session(), await backend.session()
    service, listener = retrieval(session, nursery), Listener()
    await service.stop()
    await service.start(listener)
    with pytest.raises(IllegalElectionState, match="started before"):
        await service.start(listener)
    await service.stop()
    await service.stop()
    with pytest.raises(IllegalElectionState, match="started before"):
        await service.start(listener)
    await other.make_parents(LEADER)
    seen = Node(session)
    await write(other, Create(LEADER, FOREIGN_BYTES))
    await seen.until(lambda: seen.reports)
    assert listener.reports == []


async def test_contenders_of_two_components_share_a_latch(backend: Backend, nursery: trio.Nursery) -> None:
    """Rule E1.6: one latch per process; the id is the same, the nodes are not (E4.2)."""
    session, other = await backend.session(), await backend.session()
    service = MultipleComponentLeaderElectionService(election_driver_factory(session, PATHS, "any"), nursery)
    elections = {c: service.create_leader_election(c) for c in ("dispatcher", "rest_server")}
    contenders = {c: Contender(e, f"{c}:1") for c, e in elections.items()}
    for component, contender in contenders.items():
        await elections[component].start(contender)
        await contender.lead()
    assert len(await latch_nodes(other)) == 1
    ids = {c.session_id for c in contenders.values()}
    assert len(ids) == 1
    for component in elections:
        found = await node(other, PATHS.leader_path(component))
        assert found is not None
        assert decode_leader_node(found.data) == (f"{component}:1", *ids)
    await elections["dispatcher"].stop()
    assert len(await latch_nodes(other)) == 1
    assert contenders["rest_server"].leads
    await elections["rest_server"].stop()
    assert await latch_nodes(other) == []


async def test_a_retrieval_driver_names_its_node(backend: Backend) -> None:
    driver = ZooKeeperLeaderRetrievalDriver(await backend.session(), LEADER, Retrieved())
    assert LEADER in str(driver)
    await driver.aclose()


async def test_an_address_that_cannot_be_written_is_reported(backend: Backend, nursery: trio.Nursery) -> None:
    session = await backend.session()
    service = election(session, nursery)
    contender = Contender(service, "x" * 70_000)
    await service.start(contender)
    await contender.until(lambda: contender.errors)
    assert "more than the 65535" in str(contender.errors[0])
    assert await node(session) is None


async def test_other_formats_of_the_leader_node(memory: Memory, nursery: trio.Nursery) -> None:
    """A retrieval driver reads the format that its factory was given."""
    session, session_id = await memory.session(), uuid4()
    factory = retrieval_driver_factory(session, LEADER, decode=lambda data: (data.decode(), session_id))
    retrieved = Retrieved()
    driver = await factory(retrieved)  # type: ignore[arg-type]
    await session.make_parents(LEADER)
    await write(session, Create(LEADER, b"elsewhere:1"))
    await retrieved.until(lambda: LeaderInformation(session_id, "elsewhere:1") in retrieved.events)
    await driver.aclose()
