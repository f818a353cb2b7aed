"""Kafka's iteration orders, against Scala and Java themselves, and where the controller uses them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
from trio.testing import MockClock

from kce.controller.iteration_order import (
    HashedSet,
    HashTable,
    by_topic,
    hash_code,
    java_order,
    small_order,
    table_order,
    trie_order,
)
from kce.harness.embedded_zookeeper import spark_jars
from kce.java import find_java
from kce.wire import LeaderAndIsrRequest
from kce.zookeeper.model import TopicPartition
from tests.controller import requests
from tests.controller.conformance.cluster import event_thread_blocked
from tests.controller.support import world


def test_known_orders() -> None:
    assert trie_order(range(1, 10)) == [5, 1, 6, 9, 2, 7, 3, 8, 4]  # as traces of Kafka 3.9.1 show
    assert trie_order([3, 2, 1]) == [1, 2, 3]
    assert small_order([3, 1, 2, 1]) == [3, 1, 2]
    assert small_order([9, 8, 7, 6, 5]) == trie_order([5, 6, 7, 8, 9])
    assert table_order([17, 1, 16]) == [16, 1, 17]
    assert trie_order(range(1000, 1024)) == [
        1005, 1001, 1013, 1020, 1021, 1012, 1016, 1002, 1007, 1011, 1022, 1018,
        1003, 1010, 1017, 1006, 1015, 1000, 1023, 1008, 1019, 1004, 1009, 1014,
    ]  # fmt: skip
    assert trie_order([2**31 - 1, -1, -(2**31), 0, 7]) == [7, 0, -(2**31), 2**31 - 1, -1]
    names = [f"t{i}" for i in range(14)]
    assert table_order(names) == [names[i] for i in (4, 5, 6, 7, 8, 9, 10, 12, 11, 13, 0, 1, 2, 3)]
    assert (hash_code("a"), hash_code("ab"), hash_code(-1)) == (97, 31 * 97 + 98, 2**32 - 1)
    assert hash_code(TopicPartition("a", 2)) == 31 * (31 + 2) + 97


async def test_several_brokers_that_die_in_one_event(autojump_clock: MockClock) -> None:  # rules 6.21, 7.18, 11.57
    """Replicas go offline by Kafka's order of broker ids, 5 before 2: the last one, 2, stays in the ISR."""
    async with world(brokers=(2, 5)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 5]})
        async with event_thread_blocked(w, controller):
            await w.stop_broker(2)
            await w.stop_broker(5)
        await w.settle()
        assert (await w.state("t"))[2] == (2,)


async def test_reassignments_are_started_in_the_order_of_a_table(autojump_clock: MockClock) -> None:  # rule 11.28
    partitions = [TopicPartition("t", p) for p in range(6)]
    async with world(brokers=(2, 3)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {p: [1] for p in range(6)})
        w.take()
        requests.alter_partition_reassignments(controller, dict.fromkeys(partitions, (2,)), lambda _: None)
        await w.settle()
        started = [
            TopicPartition("t", p.partition_index)
            for sent in w.take()
            if sent.broker == 1 and isinstance(sent.message, LeaderAndIsrRequest)
            for topic in sent.message.topic_states
            for p in topic.partition_states
        ]
        assert list(dict.fromkeys(started)) == table_order(partitions) != partitions


def _orders(keys: list[Any]) -> dict[str, list[Any] | None]:
    """By name: as IterationOrder.java prints them."""
    table: HashTable[Any, None] = HashTable()
    hashed: HashedSet[Any] = HashedSet()
    for key in [*keys, *keys[:1]]:
        table.put(key, None)
        hashed.add(key)
    assert set(hashed.order()) == set(keys)
    assert [hash_code(key) for key in table.order()] == [hash_code(key) for key in hashed.order()]
    java = java_again = None
    if all(isinstance(key, str) for key in keys):
        java, java_again = java_order(keys), java_order(keys, last_is_new=not keys)
    return {
        "trie": trie_order(keys),
        "small": small_order(keys),
        "table": table_order(keys),
        "table, a key again": table.order(),
        "java": java,
        "java, a key again": java_again,
    }


def test_a_table_grows_before_a_key_is_put_and_never_shrinks() -> None:
    keys = list(range(16, 16 + 11))
    table = HashTable.of(dict.fromkeys(keys))
    assert (table.buckets, table.order()) == (16, table_order(keys))
    table.put(16, None)
    assert table.buckets == 32  # rule of mutable.HashMap: it grows although it has the key
    table.clear()
    table.put(33, None)
    table.put(16, None)
    assert table.order() == [33, 16] != table_order([33, 16])
    again = HashTable.of(dict.fromkeys(keys[:5]))
    again.put_all(dict.fromkeys(keys))
    assert again.buckets == 16
    again.put_all(dict.fromkeys(keys[:1]))
    assert again.buckets == 32


def test_a_set_grows_as_a_table_does() -> None:
    for count in (1, 11, 12, 13, 24, 25, 100):
        keys = [f"topic-{i}" for i in range(count)]
        hashed: HashedSet[Any] = HashedSet()
        for key in keys:
            hashed.add(key)
        assert hashed.order() == table_order(keys)


def test_partitions_by_topic() -> None:  # rules 8.4, 8.8, 8.22
    random = Random(3)
    for size in (0, 1, 2, 11, 12, 40, 300):
        for topics in (1, 3, 14, 60):
            partitions = [TopicPartition(f"t{random.randrange(topics)}", p) for p in range(size)]
            table = HashTable.of({tp: str(tp) for tp in partitions})
            order = table.order()
            added = list(dict.fromkeys(tp.topic for tp in order))
            asked_again = bool(order) and order[-1].topic in {tp.topic for tp in order[:-1]}
            for java in (True, False):
                found = by_topic(table, table.values(), java=java)
                wanted = java_order(added, last_is_new=not asked_again) if java else table_order(added)
                assert list(found) == wanted
                for topic, of_topic in found.items():
                    assert of_topic == [(tp, str(tp)) for tp in order if tp.topic == topic]


def test_topics_of_which_the_last_has_one_partition_or_two() -> None:
    """A table grows even for a key that it has."""
    differ = False
    for count in range(1, 30):
        for partitions in (1, 2):
            table = HashTable.of({TopicPartition(f"t{i}", p): None for i in range(count) for p in range(partitions)})
            order = table.order()
            is_new = order[-1].topic not in {tp.topic for tp in order[:-1]}
            added = list(dict.fromkeys(tp.topic for tp in order))
            orders = {new: java_order(added, last_is_new=new) for new in (True, False)}
            assert list(by_topic(table, table.values(), java=True)) == orders[is_new]
            differ |= orders[True] != orders[False]
    assert differ


@pytest.mark.slow
def test_orders_are_those_of_scala_and_java() -> None:
    random = Random(7)
    lines: list[str] = []
    keys: list[list[int] | list[str] | list[TopicPartition]] = []
    for size in [0, 1, 2, 3, 4, 5, 8, 11, 12, 13, 24, 25, 40, 100, 1000] * 3:
        ids = random.sample([*range(2 * size + 10), -1, 2**31 - 1, -(2**31), 1001, 1002], size)
        names = [f"{random.choice(('t', 'orders-', 'Überraschung.'))}{i}" for i in random.sample(range(10_000), size)]
        partitions = [TopicPartition(name, random.randrange(50)) for name in names]
        keys += [ids, names, partitions]
        for kind, written in (("int", ids), ("string", names), ("partition", [f"{t}:{p}" for t, p in partitions])):
            lines.append(" ".join([kind, *map(str, written)]))
    (library,) = spark_jars().glob("scala-library-2.13*.jar")
    program = Path(__file__).with_name("IterationOrder.java")
    command = [find_java(), "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
    answers = subprocess.run(
        [*command, "-cp", str(library), str(program)],
        input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, check=True, timeout=120,
        encoding="utf-8",
    ).stdout.split("\n")  # fmt: skip
    for i, of in enumerate(keys):
        orders = _orders(of)
        for (what, ours), theirs in zip(orders.items(), answers[6 * i : 6 * i + 6], strict=True):
            if ours is None:  # only names of topics are keys of Java's tables
                continue
            texts = [f"{key.topic}:{key.partition}" if isinstance(key, TopicPartition) else str(key) for key in ours]
            assert (what, " ".join(texts)) == (what, theirs)


def test_a_table_grows_when_it_is_three_quarters_full() -> None:
    """Before the key is added, by `put`, whether it is new or not; a set, too."""
    table: HashTable[int, None] = HashTable()
    sizes = []
    for key in range(26):
        table.put(key, None)
        sizes.append(table.buckets)
    assert sizes == [16] * 11 + [32] * 12 + [64] * 3
    eleven: HashTable[int, None] = HashTable()
    for key in range(11):
        eleven.put(key, None)
    eleven.put(0, None)
    assert (len(eleven), eleven.buckets) == (11, 32)
