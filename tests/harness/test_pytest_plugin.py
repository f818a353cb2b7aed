"""The pytest plugin as projects use it: with and without other plugins for async tests, in memory and for real."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
README_TEST = re.search(r"## In a test\n\n```python\n(.*?)```", README, re.DOTALL)[1]  # type: ignore[index]
README_RULE = re.search(r"```python\n(async with kafka_cluster\.faults.*?)```", README, re.DOTALL)[1]  # type: ignore[index]

#: a project without pytest-trio
PLAIN = ("-p", "no:trio", "-p", "no:randomly", "-p", "no:cacheprovider")

BOTH_KINDS = """
import unittest
import pytest
from kce import Cluster, SyncCluster, HarnessError

@pytest.mark.kafka_cluster(brokers=2, racks=["a", "b"])
async def test_async(kafka_cluster, tmp_path):
    assert isinstance(kafka_cluster, Cluster)
    assert tmp_path.exists()
    await kafka_cluster.create_topic("t", replication_factor=2)
    assert {b.rack for b, _ in (await kafka_cluster.zk.get_brokers(watch=False)).values()} == {"a", "b"}

def test_sync(kafka_cluster):
    assert isinstance(kafka_cluster, SyncCluster)
    kafka_cluster.create_topic("t", partitions=2, replication_factor=3)
    old = kafka_cluster.wait_for_controller()
    kafka_cluster.kill(old.id)
    new = kafka_cluster.wait_for_controller(other_than=old)
    assert new.epoch == old.epoch + 1
    kafka_cluster.wait_until(lambda: kafka_cluster.registered() == {1, 2, 3} - {old.id}, "the death")
    with pytest.raises(HarnessError, match="there is no node 9"):
        kafka_cluster.kill(9)
    assert kafka_cluster.history.events(api="LeaderAndIsr")

class TestMethods:
    async def test_async_method(self, kafka_cluster):
        assert await kafka_cluster.registered() == {1, 2, 3}

class Case(unittest.TestCase):
    def test_case(self):
        with SyncCluster(brokers=1, world=__import__("kce").memory()) as cluster:
            self.assertEqual(cluster.registered(), {1})

def test_shared_one(kafka_cluster_module):
    kafka_cluster_module.create_topic("left")
    kafka_cluster_module.kill(2)

def test_shared_two(kafka_cluster_module):
    kafka_cluster_module.reset()
    assert kafka_cluster_module.registered() == {1, 2, 3}
    assert kafka_cluster_module.describe_topics() == []
"""


def test_async_and_sync_tests_without_any_setting(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(BOTH_KINDS)
    result = pytester.runpytest_subprocess(*PLAIN, "--kafka-world=memory", "--strict-markers")
    result.assert_outcomes(passed=6)


def test_beside_pytest_trio_in_both_modes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(BOTH_KINDS)
    options = ("--kafka-world=memory", "-p", "no:randomly")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=6)
    pytester.makepyfile(
        "async def test_fixtures_of_trio(kafka_cluster, nursery): nursery.start_soon(kafka_cluster.kill, 1)"
    )
    pytester.makeini("[pytest]\ntrio_mode = true\n")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1)


def test_beside_a_plugin_that_takes_every_async_test(pytester: pytest.Pytester) -> None:
    """The plugin replaces the items of coroutine functions, as pytest-asyncio does in its auto mode."""
    pytester.makeconftest(
        """
import asyncio, inspect, pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_pycollect_makeitem(collector, name, obj):
    outcome = yield
    for item in outcome.get_result() or []:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            test = item.obj
            item.obj = lambda **kwargs: asyncio.run(test(**kwargs))
"""
    )
    pytester.makepyfile(
        """
import asyncio, sniffio, trio

async def test_theirs():
    await asyncio.sleep(0)

async def test_ours(kafka_cluster):
    await trio.lowlevel.checkpoint()
    assert await kafka_cluster.registered() == {1, 2, 3}
"""
    )
    result = pytester.runpytest_subprocess(*PLAIN, "--kafka-world=memory")
    result.assert_outcomes(passed=2)


def test_a_failed_test_keeps_what_explains_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import pytest

@pytest.mark.kafka_cluster(seed=42)
async def test_fails(kafka_cluster):
    await kafka_cluster.create_topic("t")
    assert not kafka_cluster.history.events(api="LeaderAndIsr")

def test_passes(kafka_cluster):
    pass

def test_fails_too(kafka_cluster):
    assert False
"""
    )
    result = pytester.runpytest_subprocess(*PLAIN, "--kafka-world=memory", "--kafka-artifacts=kept")
    result.assert_outcomes(passed=1, failed=2)
    kept = sorted(path.name for path in (pytester.path / "kept").iterdir())
    assert [name.rpartition("-")[2] for name in kept] == ["test_fails", "test_fails_too"]
    folder = pytester.path / "kept" / kept[0]
    assert {path.name for path in folder.iterdir()} == {"traffic.pcapng", "trace.jsonl", "server.log"}
    text = result.stdout.str()
    assert f"kce decode {folder}/traffic.pcapng" in text
    assert "--kafka-seed 42 repeats the run" in text
    decoded = subprocess.run(
        [sys.executable, "-m", "kce.harness", "decode", folder / "traffic.pcapng"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "LeaderAndIsr" in decoded.stdout
    assert '"api":"LeaderAndIsr"' in (folder / "trace.jsonl").read_text()
    assert "is elected controller" in (folder / "server.log").read_text()


def test_a_failed_test_is_told_only_of_files_that_are_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import pytest

@pytest.fixture
def broken():
    raise ValueError

def test_before(broken, kafka_cluster):
    pass

def test_after(kafka_cluster, broken):
    pass

@pytest.mark.kafka_cluster(properties={"num.io.threads": "none"})
def test_sync(kafka_cluster):
    pass

@pytest.mark.kafka_cluster(properties={"num.io.threads": "none"})
async def test_async(kafka_cluster):
    pass

@pytest.mark.kafka_cluster(record=False)
async def test_unrecorded(kafka_cluster):
    assert False
"""
    )
    result = pytester.runpytest_subprocess(*PLAIN, "--kafka-world=memory", "--kafka-artifacts=kept")
    result.assert_outcomes(errors=3, failed=2)
    told = re.findall(r"^(?:recording|trace|log) +(\S+)", result.stdout.str(), re.MULTILINE)
    there = [str(path) for path in pytester.path.glob("kept/*/*")]
    assert sorted(told) == sorted(there)
    names = [name.rpartition("test_")[2] for name in there]
    assert sorted(names) == [
        "after/server.log", "after/trace.jsonl", "after/traffic.pcapng",
        "unrecorded/server.log", "unrecorded/trace.jsonl",
    ]  # fmt: skip


def test_a_failed_test_is_not_told_of_a_cluster_that_it_does_not_use(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
def test_shared(kafka_cluster_module):
    pass

def test_without():
    assert False

async def test_own(kafka_cluster):
    assert False

def test_late(request):
    request.getfixturevalue("kafka_cluster_session")
    assert False
"""
    )
    result = pytester.runpytest_subprocess(*PLAIN, "--kafka-world=memory", "--kafka-artifacts=kept")
    result.assert_outcomes(passed=1, failed=3)
    told = re.findall(r"^recording +(\S+)", result.stdout.str(), re.MULTILINE)
    assert sorted(name.split("/")[-2].rpartition("test_")[2] for name in told) == ["own", "session"]


@pytest.mark.slow
def test_a_failed_test_keeps_the_logs_of_nodes_in_processes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import pytest

@pytest.mark.kafka_cluster(brokers=1, processes=True)
def test_fails(kafka_cluster):
    kafka_cluster.history.assert_none(api="StopReplica")
"""
    )
    result = pytester.runpytest_subprocess(*PLAIN, "--kafka-artifacts=kept")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*HarnessError: no history is kept: with history=True*"])
    told = re.findall(r"^(recording|trace|logs?) +(\S+)", result.stdout.str(), re.MULTILINE)
    assert [name for name, _ in told] == ["recording", "logs"]
    assert all(Path(path).exists() for _, path in told)
    assert "node 1 is up" in Path(told[1][1], "node-1", "server.log").read_text()


@pytest.mark.slow
def test_the_readme(pytester: pytest.Pytester) -> None:
    """Pasted into a new project, with a real ZooKeeper, also in parallel and in random order."""
    pytester.makepyfile(README_TEST)
    pytester.runpytest_subprocess(*PLAIN).assert_outcomes(passed=3)
    result = pytester.runpytest_subprocess("-p", "no:trio", "-p", "randomly", "-p", "xdist", "-n", "4")
    result.assert_outcomes(passed=3)


def test_the_rule_of_the_readme(pytester: pytest.Pytester) -> None:
    test = f"async def test_rule(kafka_cluster):\n{textwrap.indent(README_RULE, '    ')}"
    pytester.makepyfile(f"import kce\n\n{test}")
    pytester.runpytest_subprocess(*PLAIN, "--kafka-world=memory").assert_outcomes(passed=1)


def test_a_mark_that_would_be_ignored_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import pytest

@pytest.mark.kafka_cluster(5)
def test_five(kafka_cluster):
    pass

@pytest.mark.kafka_cluster(world="moon")
def test_moon(kafka_cluster):
    pass

@pytest.mark.kafka_cluster(world="memory")
def test_memory(kafka_cluster):
    pass
"""
    )
    result = pytester.runpytest_subprocess(*PLAIN, "--kafka-world=memory")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(
        ["*kafka_cluster(5): its arguments have names, as in brokers=5*", "*world='moon'): it is 'real', 'memory' *"]
    )


def test_the_plugin_imports_next_to_nothing() -> None:
    """Without a test that uses it, it imports neither Trio nor any other module of the project."""
    code = "before = set(sys.modules); import kce.harness.pytest_plugin; print(*set(sys.modules) - before)"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys, pytest; {code}"], capture_output=True, text=True, check=True
    )
    assert set(ran.stdout.split()) <= {"kce", "kce.harness", "kce.harness.pytest_plugin"}


def test_a_lack_of_java_is_one_line(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same is said where the extra `spark` lacks."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    pytester.makepyfile(
        """
        async def test_async(kafka_cluster): ...
        def test_sync(kafka_cluster): ...
        def test_shared(kafka_cluster_module): ...
        """
    )
    result = pytester.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(errors=3)
    said = [line for line in result.outlines if line.startswith("Java 17 or later is needed and JAVA_HOME is /nowhere")]
    assert len(said) == 3
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*harness/*.py*")
