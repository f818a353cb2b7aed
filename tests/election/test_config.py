"""Settings, and the services that they configure (section 10; FHM, FHU, FZU, FZH, FAH).

Covers: kce.election.config, kce.election.services.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Callable

import pytest
import trio

from kce.election.config import AclMode, HighAvailabilityConfig, HighAvailabilityMode
from kce.election.errors import ConfigurationError, IllegalElectionState
from kce.election.paths import DISPATCHER, REST_SERVER, ElectionPaths, PathLayout
from kce.election.services import (
    ClientHighAvailabilityServices,
    HighAvailabilityServices,
    StandaloneHaServices,
    ZooKeeperHaServices,
    connect_to_zookeeper,
    create_client_high_availability_services,
    create_high_availability_services,
)
from kce.harness.embedded_zookeeper import free_port
from kce.zookeeper.store import Create, MetadataStore, StoreUnavailable, value
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.election.support import Contender

HA, ZK = "high-availability", "high-availability.zookeeper"
JOB = "0" * 31 + "1"
_paths = itertools.count()


def of(properties: dict[str, str]) -> HighAvailabilityConfig:
    return HighAvailabilityConfig.from_properties(properties)


NONE, ZOOKEEPER, FACTORY = HighAvailabilityMode


@pytest.mark.flink("FHM-1")
def test_mode() -> None:  # rule E10.1
    modes = {"": NONE, "none": NONE, "NONE": NONE, "zookeeper": ZOOKEEPER, "ZooKeeper": ZOOKEEPER, "our-own": FACTORY}
    assert of({}).mode is NONE
    for key in (HA, f"{HA}.type"):
        assert {word: of({key: word, f"{ZK}.quorum": "a:1"}).mode for word in modes} == modes


@pytest.mark.flink("FHM-2")
def test_deprecated_mode() -> None:  # rule E10.9
    assert of({"recovery.mode": "standalone"}).mode is NONE
    assert of({"recovery.mode": "zookeeper", "recovery.zookeeper.quorum": "a:1"}).mode is ZOOKEEPER
    assert of({"recovery.mode": "zookeeper", HA: "NONE"}).mode is NONE
    assert of({HA: "zookeeper", f"{HA}.type": "NONE"}).mode is NONE


@pytest.mark.flink("FHM-3")
def test_whether_high_availability_is_active() -> None:
    assert not of({}).mode.is_active
    assert not of({HA: "none"}).mode.is_active
    assert of({HA: "zookeeper", f"{ZK}.quorum": "a:1"}).mode.is_active
    assert of({HA: "our-own"}).mode.is_active


@pytest.mark.flink("FZU-2")
def test_the_quorum_has_no_whitespace() -> None:  # rule E10.11
    for text in ("localhost:2891", " localhost:2891 ", "localhost :2891"):
        assert of({f"{ZK}.quorum": text}).quorum == "localhost:2891"
    assert (
        of({f"{ZK}.quorum": " host-1:2181 , host-2 :2181,\thost-3:2181 "}).quorum
        == "host-1:2181,host-2:2181,host-3:2181"
    )


def test_defaults() -> None:  # rules E10.9-E10.18
    assert of({}) == HighAvailabilityConfig(
        mode_text="NONE", cluster_id="/default", quorum="", root="/flink", latch_path="/leaderlatch",
        leader_path="/leader",
        session_timeout_ms=60_000, connection_timeout_ms=15_000, retry_wait_ms=5000, max_retry_attempts=3,
        acl=AclMode.OPEN, tolerate_suspended_connections=False, authorization=(), layout=PathLayout.ONE_LATCH,
        remarks=(),
    )  # fmt: skip


def test_every_key_and_alias_is_read() -> None:  # rule E10.19
    texts = {
        "cluster-id": ("cluster_id", "/c", "/c"),
        "zookeeper.path.root": ("root", "/r", "/r"),
        "zookeeper.path.latch": ("latch_path", "/la", "/la"),
        "zookeeper.path.leader": ("leader_path", "/le", "/le"),
        "zookeeper.client.session-timeout": ("session_timeout_ms", "30 s", 30_000),
        "zookeeper.client.connection-timeout": ("connection_timeout_ms", "1 min", 60_000),
        "zookeeper.client.retry-wait": ("retry_wait_ms", "250", 250),
        "zookeeper.client.max-retry-attempts": ("max_retry_attempts", "7", 7),
        "zookeeper.client.acl": ("acl", "OPEN", AclMode.OPEN),
        "zookeeper.client.tolerate-suspended-connections": ("tolerate_suspended_connections", "True", True),
        "zookeeper.client.authorization": ("authorization", "digest:u:p, x:y", (("digest", "u:p"), ("x", "y"))),
        "zookeeper.layout": ("layout", "1.13", PathLayout.TWO_DIRECTORIES),
    }
    for key, (field, text, read) in texts.items():
        assert getattr(of({f"{HA}.{key}": text}), field) == read
    aliases = {
        "recovery.zookeeper.path.namespace": "cluster_id", f"{ZK}.path.namespace": "cluster_id",
        "recovery.zookeeper.path.root": "root", "recovery.zookeeper.path.latch": "latch_path",
        "recovery.zookeeper.path.leader": "leader_path", "recovery.zookeeper.quorum": "quorum",
    }  # fmt: skip
    for alias, field in aliases.items():
        assert getattr(of({alias: "/old"}), field) == "/old"
    assert of({f"{HA}.cluster-id": "/new", f"{ZK}.path.namespace": "/old"}).cluster_id == "/new"


def test_layout_and_paths() -> None:
    assert of({f"{HA}.use-old-ha-services": "true"}).layout is PathLayout.SIDE_BY_SIDE
    assert of({f"{HA}.use-old-ha-services": "false"}).layout is PathLayout.ONE_LATCH
    paths = of(
        {f"{HA}.cluster-id": "//c/", f"{ZK}.path.root": "r/", f"{ZK}.layout": "1.9", f"{ZK}.path.latch": "l"}
    ).paths
    assert paths == ElectionPaths(root="/r/c", layout=PathLayout.TWO_DIRECTORIES, latch="l", leader="/leader")
    assert paths.latch_path(DISPATCHER) == "/r/c/l/dispatcher_lock"


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({HA: "zookeeper"}, f"{ZK}.quorum is missing"),
        ({HA: "zookeeper", f"{ZK}.quorum": "  "}, f"{ZK}.quorum is missing"),
        ({HA: "kubernetes"}, "kubernetes is not among"),
        ({f"{ZK}.client.session-timeout": "soon"}, f"{ZK}.client.session-timeout is 'soon': no duration"),
        ({f"{ZK}.client.session-timeout": "3 weeks"}, "no duration"),
        ({f"{ZK}.client.max-retry-attempts": "x"}, "max-retry-attempts is 'x'"),
        ({f"{ZK}.client.acl": "closed"}, f"{ZK}.client.acl is 'closed': neither open nor creator"),
        ({f"{ZK}.client.acl": "Creator"}, f"say who that is with {ZK}.client.authorization"),
        ({f"{ZK}.client.acl": "creator", "zookeeper.sasl.disable": "true"}, "zookeeper.sasl.disable is true"),
        ({f"{ZK}.client.tolerate-suspended-connections": "yes"}, "neither true nor false"),
        ({f"{ZK}.client.authorization": "digest"}, "not SCHEME:CREDENTIAL"),
        ({f"{ZK}.layout": "old"}, f"{ZK}.layout is 'old'"),
    ],
)
def test_errors_name_the_setting(properties: dict[str, str], problem: str) -> None:  # rules E1.17, E10.11
    with pytest.raises(ConfigurationError, match=problem):
        of(properties)


def test_settings_out_of_scope_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:  # rules E10.19, E10.20
    named = [
        f"{HA}.storageDir", f"{HA}.jobmanager.port", f"{HA}.job.delay", f"{ZK}.path.jobgraphs",
        f"{ZK}.path.checkpoints",
        f"{ZK}.path.execution-plans", f"{ZK}.path.checkpoint-counter", f"{ZK}.path.running-registry",
        f"{ZK}.path.mesos-workers", "yarn.application-attempts", "yarn.reallocate-failed",
        "yarn.maximum-failed-containers",
        f"{ZK}.client.ensemble-tracker",
    ]  # fmt: skip
    made = of({**dict.fromkeys(named, "x"), f"{HA}.frobnicate": "1", "state.backend": "rocksdb"})
    assert [remark.partition(" ")[0] for remark in made.remarks] == [*named, f"{HA}.frobnicate"]
    assert made.remarks[-1] == f"{HA}.frobnicate is not known, and ignored"
    assert made.remarks[0] == f"{HA}.storageDir is ignored: nothing is stored beside the election"
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == list(made.remarks)


# services


class Factory:
    """An entry point that creates standalone services, and records the calls."""

    requested: list[tuple[str, str]] = []  # noqa: RUF012 - of the class, which is instantiated for each call
    services = StandaloneHaServices({DISPATCHER: "custom:1"})
    client_services = StandaloneHaServices({REST_SERVER: "custom:2"})

    async def create_services(self, config: HighAvailabilityConfig, nursery: trio.Nursery) -> HighAvailabilityServices:
        self.requested.append(("services", config.mode_text))
        return self.services

    async def create_client_services(
        self, config: HighAvailabilityConfig, nursery: trio.Nursery
    ) -> ClientHighAvailabilityServices:
        self.requested.append(("client services", config.mode_text))
        return self.client_services


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("this one does not even start")


Install = Callable[[str, str], None]


@pytest.mark.flink("FHU-1")
async def test_custom_services(entry_point: Install, nursery: trio.Nursery) -> None:  # rule E10.2
    entry_point("mine", f"{__name__}:Factory")
    for single_process in (False, True):
        Factory.requested.clear()
        services = await create_high_availability_services(of({HA: "mine"}), nursery, single_process=single_process)
        assert services is Factory.services
        assert Factory.requested == [("services", "mine")]


@pytest.mark.flink("FHU-2")
async def test_custom_client_services(entry_point: Install, nursery: trio.Nursery) -> None:  # rule E10.3
    entry_point("mine-too", f"{__name__}:Factory")
    Factory.requested.clear()
    services = await create_client_high_availability_services(of({HA: "mine-too"}), nursery)
    assert services is Factory.client_services
    assert Factory.requested == [("client services", "mine-too")]


@pytest.mark.flink("FHU-3")
async def test_missing_custom_services(entry_point: Install, nursery: trio.Nursery) -> None:
    entry_point("broken", f"{__name__}:Broken")
    for create in (create_high_availability_services, create_client_high_availability_services):
        with pytest.raises(ConfigurationError, match="there is no entry point 'factory_class' in the group"):
            await create(of({HA: "factory_class"}), nursery)  # type: ignore[operator]
        with pytest.raises(ConfigurationError, match="'broken' cannot be had: this one does not even start"):
            await create(of({HA: "broken"}), nursery)  # type: ignore[operator]


async def test_client_services_without_high_availability(nursery: trio.Nursery) -> None:
    services = await create_client_high_availability_services(of({}), nursery, rest_address="rest:1")
    services.leader_retrieval(REST_SERVER)
    with pytest.raises(ConfigurationError, match="address of dispatcher"):
        services.leader_retrieval(DISPATCHER)
    await services.aclose()
    with pytest.raises(IllegalElectionState, match="closed"):
        services.leader_retrieval(REST_SERVER)


@pytest.mark.flink("FZU-3")
async def test_an_unreachable_quorum_reaches_the_fatal_error_handler(nursery: trio.Nursery) -> None:
    fatal: list[Exception] = []
    properties = {
        HA: "zookeeper", f"{ZK}.quorum": f"127.0.0.1:{free_port()}", f"{ZK}.client.connection-timeout": "100",
        f"{ZK}.client.max-retry-attempts": "1", f"{ZK}.client.retry-wait": "1",
    }  # fmt: skip
    with pytest.raises(StoreUnavailable, match="no ZooKeeper answers"):
        await create_high_availability_services(of(properties), nursery, fatal_error_handler=fatal.append)
    assert [type(e) for e in fatal] == [StoreUnavailable]


async def test_connecting_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:  # rule E10.15
    times: list[float] = []

    async def connect(quorum: str, **options: object) -> MetadataStore:
        times.append(trio.current_time())
        if len(times) < 3:
            raise StoreUnavailable("not yet")
        return MemoryZooKeeper().connect()

    monkeypatch.setattr("kce.election.services.KazooStore.connect", connect)
    await connect_to_zookeeper(HighAvailabilityConfig(quorum="q", retry_wait_ms=1000))
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([1, 2])


class World:
    """ZooKeeper services of clusters below one root, on the store of a test."""

    def __init__(self, connect: Callable[[HighAvailabilityConfig], object], nursery: trio.Nursery) -> None:
        self._connect = connect
        self._nursery = nursery
        self.root = f"/root-{next(_paths)}"

    async def services(self, cluster: str = "/cluster", layout: str = "1.18") -> ZooKeeperHaServices:
        properties = {
            HA: "zookeeper", f"{ZK}.quorum": "q", f"{ZK}.path.root": self.root, f"{HA}.cluster-id": cluster,
            f"{ZK}.layout": layout,
        }  # fmt: skip
        made = await create_high_availability_services(of(properties), self._nursery, connect=self._connect)  # type: ignore[arg-type]
        assert isinstance(made, ZooKeeperHaServices)
        return made


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.slow)])
async def world(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[World]:
    server = MemoryZooKeeper()
    made: list[MetadataStore] = []

    async def connect(config: HighAvailabilityConfig) -> MetadataStore:
        if request.param == "memory":
            made.append(server.connect())
        else:
            quorum = HighAvailabilityConfig(quorum=request.getfixturevalue("zookeeper"), session_timeout_ms=6000)
            made.append(await connect_to_zookeeper(quorum))
        return made[-1]

    yield World(connect, nursery)
    for store in made:
        await store.aclose()


async def led(services: ZooKeeperHaServices, component: str = DISPATCHER) -> Contender:
    election = services.leader_election(component)
    contender = Contender(election, "x:1")
    await election.start(contender)
    await contender.lead()
    await services.session.store.exists(["/"])
    return contender


async def children(services: ZooKeeperHaServices, path: str) -> list[str]:
    return value((await services.session.store.get_children([path]))[0])


@pytest.mark.flink("FZH-1")
async def test_close_keeps_the_nodes(world: World) -> None:  # rule E10.5
    services, observer = await world.services(), await world.services()
    contender = await led(services)
    assert contender.service is not None
    await contender.service.stop()
    await services.aclose()
    await services.aclose()
    assert await children(observer, f"{world.root}/cluster/leader") == ["latch"]
    with pytest.raises(IllegalElectionState, match="closed"):
        services.leader_election(DISPATCHER)


@pytest.mark.flink("FZH-2")
async def test_clean_up_leaves_the_root_as_it_was(world: World) -> None:  # rules E10.6, E10.7
    services = await world.services()
    before = await children(services, "/")
    contender = await led(services)
    assert world.root[1:] in await children(services, "/")
    assert contender.service is not None
    await contender.service.stop()
    await services.clean_up_all_data()
    assert await children(services, "/") == before
    await services.aclose()


@pytest.mark.flink("FZH-3")
async def test_clean_up_spares_uncle_and_sibling(world: World) -> None:
    services = await world.services("/deep/cluster")
    store = services.session.store
    contender = await led(services)
    assert contender.service is not None
    await contender.service.stop()
    await store.write([Create(f"{world.root}/uncle"), Create(f"{world.root}/deep/sibling")])
    await services.clean_up_all_data()
    assert await children(services, f"{world.root}/deep") == ["sibling"]
    await services.session.delete_tree(f"{world.root}/deep/sibling")
    await services.clean_up_all_data()
    assert await children(services, world.root) == ["uncle"]


@pytest.mark.flink("FZH-4")
@pytest.mark.parametrize("layout", ["1.14", "1.18"])
async def test_clean_up_of_a_job(world: World, layout: str) -> None:  # rule E10.8
    services = await world.services(layout=layout)
    jobs = f"{world.root}/cluster/jobs"
    await services.session.make_parents(f"{jobs}/{JOB}/leader/latch/x")
    await services.session.make_parents(f"{jobs}/other/x")
    await services.clean_up_job_data(JOB)
    assert await children(services, jobs) == ["other"]
    with pytest.raises(ValueError, match="'other' is not a job id"):
        await services.clean_up_job_data("other")


async def test_clean_up_of_a_job_in_two_directories(world: World) -> None:  # rule E10.8
    services = await world.services(layout="1.13")
    contender = await led(services, JOB)
    assert contender.service is not None
    await contender.service.stop()
    await services.clean_up_job_data(JOB)
    for directory in ("leaderlatch", "leader"):
        assert await children(services, f"{world.root}/cluster/{directory}") == []


@pytest.mark.flink("FAH-3")
async def test_a_job_is_cleaned_up_by_its_backend(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    services = await world.services()
    requested: list[str] = []

    async def delete_tree(path: str) -> None:
        requested.append(path)

    monkeypatch.setattr(services.session, "delete_tree", delete_tree)
    await services.clean_up_job_data(JOB)
    assert requested == [f"{world.root}/cluster/jobs/{JOB}"]


async def test_closing_goes_on_after_a_failure(world: World) -> None:  # rules E3.13, E10.5
    services = await world.services(layout="1.13")
    await led(services, DISPATCHER)
    await led(services, REST_SERVER)
    closed: list[bool] = []
    close = services.session.aclose

    async def aclose() -> None:
        closed.append(True)
        await close()

    services.session.aclose = aclose  # type: ignore[method-assign]
    with pytest.raises(IllegalElectionState, match="contenders are not stopped: dispatcher") as raised:
        await services.aclose()
    assert "rest_server" in raised.value.__notes__[0]
    assert closed == [True]
