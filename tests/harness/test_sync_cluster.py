"""A cluster without async: calls from this thread, errors, its end, time in memory."""

from __future__ import annotations

import threading

import pytest
import trio

from kce.harness import Cluster, HarnessError, SyncCluster
from kce.harness.faults import Rule
from kce.harness.world import memory


def test_calls_and_errors() -> None:
    with SyncCluster(2, world=memory(seed=1)) as cluster:
        cluster.create_topic("t", assignment={0: [1, 2]})
        assert cluster.registered() == {1, 2}
        assert [topic.name for topic in cluster.describe_topics()] == ["t"]
        assert cluster.wait_for_event(api="LeaderAndIsr", to=1)
        with pytest.raises(HarnessError, match="The topic 'nope' does not exist"):
            cluster.delete_topic("nope")
        with cluster.faults(Rule(api="LeaderAndIsr", to=2, delay=1)) as fault:
            cluster.create_topic("u", assignment={0: [2]})
            cluster.wait_for_event(lambda m: True, api="LeaderAndIsr", source=2, is_request=False, count=2)
        assert fault.fired == 1
        with pytest.raises(ZeroDivisionError):
            cluster.call(lambda _: fail())
        with pytest.raises(HarnessError, match="running already"):
            cluster.__enter__()
    with pytest.raises(HarnessError, match="the cluster is not running"):
        cluster.registered()
    cluster.close()


def test_a_condition_is_no_async_function() -> None:
    async def never() -> bool:
        return False

    with SyncCluster(1, world=memory(seed=1)) as cluster, pytest.raises(HarnessError, match="that is not async"):
        cluster.wait_until(never, "nothing")  # type: ignore[arg-type]


def test_a_call_in_memory_that_would_not_end_is_given_up() -> None:
    """As after Ctrl-C in a test."""
    cluster = SyncCluster(1, world=memory(seed=1))
    begun = threading.Event()
    ended = []

    async def wait(_: Cluster) -> None:
        begun.set()
        await trio.sleep_forever()

    def call() -> None:
        with pytest.raises(HarnessError, match="the cluster has ended"):
            cluster.call(wait)
        ended.append(True)

    with cluster:
        caller = threading.Thread(target=call)
        caller.start()
        begun.wait()
    caller.join()
    assert ended


async def fail() -> None:
    raise ZeroDivisionError


def test_virtual_time_passes_only_in_calls() -> None:
    with SyncCluster(2, world=memory(seed=1)) as cluster:

        def now() -> float:
            return cluster.call(read_clock)

        began = now()
        assert now() == began
        with pytest.raises(HarnessError, match="timed out after 5 s waiting for a miracle"):
            cluster.wait_until(lambda: False, "a miracle", timeout_s=5)
        assert now() - began >= 5


async def read_clock(_: Cluster) -> float:
    return trio.current_time()


def test_a_cluster_that_cannot_start() -> None:
    cluster = SyncCluster(1, world=memory(), properties={"inter.broker.protocol.version": "7.0"})
    with pytest.raises(HarnessError, match=r"inter\.broker\.protocol\.version"), cluster:
        pass
    with pytest.raises(HarnessError, match="the cluster is not running"):
        cluster.registered()


def test_all_async_methods_are_there() -> None:
    own = {"wait_until"}
    missing = [
        name
        for name, method in vars(Cluster).items()
        if not name.startswith("_") and getattr(method, "__code__", None) and method.__code__.co_flags & 0x80
        and name not in vars(SyncCluster) and name not in own
    ]  # fmt: skip
    assert missing == []


@pytest.mark.slow
def test_a_real_cluster_is_called_from_several_threads(zookeeper: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with SyncCluster(2, zookeeper=f"{zookeeper}/sync") as cluster, ThreadPoolExecutor(4) as pool:
        list(pool.map(cluster.create_topic, ("a", "b", "c", "d")))
        assert {topic.name for topic in cluster.describe_topics()} == {"a", "b", "c", "d"}
        target = cluster.proxy(2, 65000)
        assert cluster.member(2).addresses["DATA"] == "127.0.0.1:65000"
        assert cluster.member(2).bound["DATA"] == target
        cluster.kill(1)
        cluster.reset()
        assert cluster.describe_topics() == []
        assert cluster.registered() == {1, 2}
