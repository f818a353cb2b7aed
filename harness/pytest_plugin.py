"""pytest plugin, active wherever the package is installed: clusters as fixtures.

    async def test_failover(kafka_cluster):          # a `Cluster`; the test runs in Trio, no setting is needed
        await kafka_cluster.create_topic("orders", partitions=4, replication_factor=3)

    def test_failover_too(kafka_cluster):            # a `SyncCluster`, with the same methods
        kafka_cluster.create_topic("orders", partitions=4, replication_factor=3)

``kafka_cluster`` is new for every test: three nodes in this process with a real ZooKeeper, or in memory with
``world="memory"``. The mark `@pytest.mark.kafka_cluster(brokers=5, world="memory", properties={...})` passes arguments
to it, those of `Cluster`. ``kafka_cluster_module`` and ``kafka_cluster_session`` are `SyncCluster`s that several tests
share; `reset()` makes them as new.

The traffic of every test is recorded. Where a test fails, the recording, a trace, the nodes' log and the seed are kept,
and its report says where they are.

pytest loads this module in every run: it imports nothing of the project but this, until a test wants a cluster.
"""

from __future__ import annotations

import inspect
import logging
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path

import pytest

TYPE_CHECKING = False  # this module is imported in every run of pytest
if TYPE_CHECKING:
    from typing import Any

    from kce.harness.cluster import Cluster
    from kce.harness.sync_cluster import SyncCluster

FIXTURE = "kafka_cluster"
#: shorter than Kafka's, so that a killed node is noticed soon
PROPERTIES = {"zookeeper.session.timeout.ms": "2000"}
_artifacts: pytest.StashKey[Artifacts] = pytest.StashKey()
_failed: pytest.StashKey[bool] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka_cluster", "clusters of kafka-controller-emulator")
    group.addoption(
        "--kafka-world", choices=("real", "memory"), default="real", help="Where clusters run unless a mark says it."
    )
    group.addoption("--kafka-seed", type=int, default=0, metavar="N", help="Seed of clusters in memory (default 0).")
    group.addoption("--kafka-brokers", type=int, default=3, metavar="N", help="Brokers of a cluster (default 3).")
    group.addoption(
        "--kafka-zookeeper", metavar="HOST:PORT[/CHROOT]", help="A ZooKeeper for all real clusters, each in a chroot."
    )
    group.addoption("--kafka-artifacts", metavar="DIR", help="Keep recordings, traces and logs of failed tests here.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kafka_cluster(**arguments): arguments of kce.Cluster for the fixture `kafka_cluster`"
    )


# async tests: ours run in Trio, whatever other plugins for async tests there are


def _is_ours(item: pytest.Item) -> bool:
    """An async test with our fixture that pytest-trio does not run."""
    return (
        isinstance(item, pytest.Function)
        and FIXTURE in item.fixturenames
        and inspect.iscoroutinefunction(item.function)
        and not _is_pytest_trios(item)
    )


def _is_pytest_trios(item: pytest.Item) -> bool:
    if not item.config.pluginmanager.has_plugin("trio"):
        return False
    return item.get_closest_marker("trio") is not None or bool(item.config.getini("trio_mode"))


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Iterator[None]:
    """Make our async tests sync before pytest-asyncio, in its auto mode, takes them."""
    outcome: Any = yield
    items = outcome.get_result()
    for item in items if isinstance(items, list) else [items]:
        if isinstance(item, pytest.Item) and _is_ours(item):
            item.obj = _in_trio(item.obj)  # type: ignore[attr-defined]


def _in_trio(test: Callable[..., Any]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        import trio

        opening: OpenedByTest = arguments.pop(FIXTURE)

        async def main() -> None:
            async with opening.cluster() as cluster:
                await test(**arguments, **{FIXTURE: cluster})

        from kce.harness.errors import HarnessError, plain_error

        try:
            trio.run(main)
        except BaseExceptionGroup as group:
            raise plain_error(group, HarnessError, AssertionError) from None

    return run


class OpenedByTest:
    """The fixture's value in an async test that this plugin runs: the cluster starts in the test's own Trio run."""

    def __init__(self, cluster: Callable[[], Any]) -> None:
        self.cluster = cluster


# fixtures


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | SyncCluster]:
    """A running cluster, a `Cluster` for an async test, else a `SyncCluster`."""
    item = request.node
    with _kept_on_failure(request, item) as artifacts:
        arguments = _arguments(request, item, artifacts)
        if _is_pytest_trios(item) and inspect.iscoroutinefunction(request.function):
            yield _trio_fixture(partial(_opened, arguments, artifacts))
        elif inspect.iscoroutinefunction(inspect.unwrap(request.function)):
            yield OpenedByTest(partial(_managed, arguments, artifacts))  # type: ignore[misc]
        else:
            yield from _synchronous(arguments, artifacts)


@pytest.fixture(scope="module")
def kafka_cluster_module(request: pytest.FixtureRequest) -> Iterator[SyncCluster]:
    """One cluster for the tests of a module; call `reset()` where a test needs it as new."""
    yield from _shared(request)


@pytest.fixture(scope="session")
def kafka_cluster_session(request: pytest.FixtureRequest) -> Iterator[SyncCluster]:
    """One cluster for all tests of a run (of an xdist worker); call `reset()` where a test needs it as new."""
    yield from _shared(request)


def _shared(request: pytest.FixtureRequest) -> Iterator[SyncCluster]:
    with _kept_on_failure(request, request.node) as artifacts:
        yield from _synchronous(_arguments(request, request.node, artifacts), artifacts)


def _synchronous(arguments: dict[str, Any], artifacts: Artifacts) -> Iterator[SyncCluster]:
    from kce.harness.sync_cluster import SyncCluster

    cluster = SyncCluster(**arguments)
    with cluster:
        artifacts.started(cluster)
        try:
            yield cluster
        finally:
            artifacts.write(cluster)


def _managed(arguments: dict[str, Any], artifacts: Artifacts) -> Any:
    from contextlib import asynccontextmanager

    return asynccontextmanager(_opened)(arguments, artifacts)


async def _opened(arguments: dict[str, Any], artifacts: Artifacts) -> AsyncIterator[Cluster]:
    from kce.harness.cluster import Cluster

    async with Cluster(**arguments) as cluster:
        artifacts.started(cluster)
        try:
            yield cluster
        finally:
            artifacts.write(cluster)


def _trio_fixture(function: Callable[[], AsyncIterator[Cluster]]) -> Any:
    """Make a pytest-trio fixture of an async function."""
    from pytest_trio.plugin import TrioFixture

    async def kafka_cluster() -> AsyncIterator[Cluster]:
        async for cluster in function():
            yield cluster

    return TrioFixture(f"<fixture {FIXTURE!r}>", kafka_cluster, {})


def _arguments(request: pytest.FixtureRequest, node: Any, artifacts: Artifacts) -> dict[str, Any]:
    """The arguments for `Cluster`: from the mark, the command line, and the plugin."""
    option = request.config.getoption
    mark = node.get_closest_marker("kafka_cluster")
    if mark and mark.args:
        given = ", ".join(map(repr, mark.args))
        pytest.fail(f"@pytest.mark.kafka_cluster({given}): its arguments have names, as in brokers=5", pytrace=False)
    arguments: dict[str, Any] = {"brokers": option("--kafka-brokers"), **(mark.kwargs if mark else {})}
    arguments["properties"] = {**PROPERTIES, **arguments.get("properties", {})}
    seed = arguments.pop("seed", option("--kafka-seed"))
    world = arguments.get("world", option("--kafka-world"))
    if world == "memory":
        from kce.harness.world import memory

        arguments["world"] = memory(seed)
        artifacts.seed = seed
    elif isinstance(world, str) and world != "real":
        pytest.fail(f"@pytest.mark.kafka_cluster(world={world!r}): it is 'real', 'memory' or a world", pytrace=False)
    elif isinstance(world, str):
        arguments.pop("world", None)
        if option("--kafka-zookeeper") and "zookeeper" not in arguments:
            where = option("--kafka-zookeeper").rstrip("/")
            arguments["zookeeper"] = f"{where}{'' if '/' in where else '/kce'}-{artifacts.folder.name}"
        if arguments.get("zookeeper") is None:
            _check_that_zookeeper_runs()
    record = arguments.get("record", True)
    if record is True:
        arguments["record"] = artifacts.recording
        artifacts.is_recorded = True
        artifacts.keep = "record" in arguments and mark is not None and mark.kwargs.get("record") is True
    elif record is False:
        del arguments["record"]
    return arguments


def _check_that_zookeeper_runs() -> None:
    """Where something is not installed, each test says so in a line."""
    from kce.extras import MissingExtra
    from kce.harness.embedded_zookeeper import spark_jars
    from kce.java import JavaMissing, find_java

    missing = None
    try:
        spark_jars()
        find_java()
    except (MissingExtra, JavaMissing) as e:
        missing = str(e)
    if missing is not None:  # here, so that pytest shows no exception that this one comes from
        pytest.fail(missing, pytrace=False)


# what is kept of a failed test


class Artifacts:
    """The folder of a test. It is removed unless the test fails."""

    def __init__(self, fixture: str, folder: Path) -> None:
        self.fixture = fixture
        self.folder = folder
        self.recording = folder / "traffic.pcapng"
        self.trace = folder / "trace.jsonl"
        self.log = folder / "server.log"
        self.seed: int | None = None
        self.keep = False
        #: a cluster that has started writes its recording and its trace when it ends, which is after the report
        self.has_started = False
        self.is_traced = False
        #: nodes in processes write logs of their own
        self.logs: Path | None = None
        self.is_recorded = False

    def started(self, cluster: Cluster | SyncCluster) -> None:
        self.has_started = True
        self.is_traced = cluster.history.is_kept
        if _logs(cluster) is not None:
            self.logs = self.folder / "logs"

    def write(self, cluster: Cluster | SyncCluster) -> None:
        """What goes with the cluster when it ends."""
        if self.is_traced:
            cluster.history.write(self.trace)
        logs = _logs(cluster)
        if self.logs is not None and logs is not None:
            shutil.copytree(logs, self.logs, dirs_exist_ok=True)

    def report(self) -> str:
        """Without what is not there: of a cluster that could not start, or that records elsewhere."""
        lines = []
        if self.is_recorded and (self.has_started or self.recording.exists()):
            lines.append(f"recording  {self.recording}    (kce decode {self.recording}; kce analyze {self.recording})")
        if self.is_traced:
            lines.append(f"trace      {self.trace}    (each request and response as JSON)")
        if self.logs is not None:
            lines.append(f"logs       {self.logs}    (of each node)")
        if self.log.exists():
            lines.append(f"log        {self.log}")
        if self.seed is not None:
            lines.append(f"seed       {self.seed}    (--kafka-seed {self.seed} repeats the run)")
        return "\n".join(lines)


def _logs(cluster: Cluster | SyncCluster) -> Path | None:
    from kce.harness.sync_cluster import SyncCluster

    return (cluster.cluster if isinstance(cluster, SyncCluster) else cluster).logs


@contextmanager
def _kept_on_failure(request: pytest.FixtureRequest, node: Any) -> Iterator[Artifacts]:
    given = request.config.getoption("--kafka-artifacts")
    name = re.sub(r"[^\w.-]+", "-", node.nodeid or "session").strip("-")[-80:]
    if given:
        folder = Path(given).absolute() / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    else:
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        folder = factory.mktemp(name)
    artifacts = node.stash[_artifacts] = Artifacts(request.fixturename or FIXTURE, folder)
    failed_before = request.session.testsfailed
    with _log_to(artifacts.log):
        yield artifacts
    failed = node.stash.get(_failed, False) or request.session.testsfailed > failed_before
    if not failed and not artifacts.keep:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """The log of the nodes, which run in this process."""
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(levelname)s %(message)s (%(name)s)"))
    loggers = [logging.getLogger(name) for name in ("kce", "state.change.logger")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        if logger.getEffectiveLevel() > logging.INFO:
            logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
        handler.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add to the report of a failed test where to look."""
    outcome: Any = yield
    report = outcome.get_result()
    if not report.failed:
        return
    for node in item.listchain():
        artifacts = node.stash.get(_artifacts, None)
        if artifacts is not None and artifacts.fixture in _fixtures_of(item):
            node.stash[_failed] = True
            if text := artifacts.report():
                report.sections.append(("kafka_cluster", text))


def _fixtures_of(item: pytest.Item) -> list[str]:
    """Also those that it takes with ``getfixturevalue``: its module may have a cluster that it does not use."""
    request = getattr(item, "_request", None)
    return getattr(item, "fixturenames", []) if request is None else request.fixturenames
