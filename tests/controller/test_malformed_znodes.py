"""Malformed znodes of every kind that the controller reads: it ignores them, and serves the next good topic.

Each round puts some mutated nodes into ZooKeeper, some before a failover, and then creates a topic. The suite runs a
sample; KCE_FUZZ_NODES=100000 runs so many nodes of each kind.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from trio.testing import MockClock

from kce import wire
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import incremented
from kce.zookeeper.store import Create, Delete, NodeError, Op, SetData, value
from tests.controller.support import World, world

NODES = int(os.environ.get("KCE_FUZZ_NODES", "0"))
#: rounds of each kind in the suite
SAMPLE = 60
#: mutated nodes of a round; a long run would spend most of its time on good topics
AT_ONCE = 50 if NODES else 10

#: values that have gone wrong somewhere
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 2**15, 2**31 - 1, 2**31, -(2**31), 3_000_000_000, 2**63, -(2**63), 1.5, 1e300,
    "", "1", "-1", "01", "1_0", " 1", "٣", "NOPE", "plaintext", "PLAINTEXT", "a\0b", "x" * 300, "é" * 200, "/", "..",
    [], [1], [1, 2], [2, 2], [None], [[]], [{}], ["1"], [-5], [2**31], [2**31 - 1], {}, {"0": [1]}, {"0": None},
    {"0": [2**31]}, {"-1": [1]}, {"2147483647": [1]}, {"x": 1}, {"": {}}, "AAAAAAAAAAAAAAAAAAAAAA", "OTHER://h:1",
    "CONTROL://h:70000", "CONTROL://[::1]:1", "CONTROL://:1", "CONTROL://a b:1", "CONTROL://" + "h" * 40_000 + ":1",
)  # fmt: skip
RAW = (b"", b"null", b"[]", b"1", b'"x"', b"{", b"{}", b"\xff\xfe", b"[" * 500, b'{"version":1', b"NaN", b'"\\ud800"')

BROKER = {
    "version": 5, "host": "127.0.0.1", "port": 2009, "jmx_port": -1, "timestamp": "0", "rack": "r",
    "endpoints": ["CONTROL://127.0.0.1:1009", "DATA://127.0.0.1:2009"],
    "listener_security_protocol_map": {"CONTROL": "PLAINTEXT", "DATA": "PLAINTEXT"},
    "features": {"f": {"min_version": 1, "max_version": 2}},
}  # fmt: skip
TOPIC = {
    "version": 3, "partitions": {"0": [1, 2], "1": [2, 1, 3]}, "topic_id": "b8CXkAm3RHirtkMSxvhCdQ",
    "adding_replicas": {"1": [3]}, "removing_replicas": {"1": [1]},
}  # fmt: skip
STATE = {"version": 1, "leader": 1, "leader_epoch": 3, "controller_epoch": 1, "isr": [1, 2], "leader_recovery_state": 1}
CONFIG = {"version": 1, "config": {"unclean.leader.election.enable": "true", "retention.ms": "1"}}
REASSIGNMENT = {"version": 1, "partitions": [{"topic": "s0", "partition": 0, "replicas": [2, 1]}]}
PARTITIONS = {"version": 1, "partitions": [{"topic": "s0", "partition": 0}, {"topic": "s1", "partition": 0}]}
LOG_DIR = {"version": 1, "broker": 2, "event": 1}
FEATURE = {"version": 2, "status": 1, "features": {"f": {"min_version_level": 1, "max_version_level": 1}}}
BLOCK = {"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}
CONTROLLER = {"version": 2, "brokerid": 1, "timestamp": "0", "kraftControllerEpoch": -1}


def mutated(random: Random, good: dict[str, Any]) -> bytes:
    """``good`` after some mutations of its values or of its bytes."""
    if random.random() < 0.1:
        return random.choice(RAW)
    copy = json.loads(json.dumps(good))
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        containers = [copy, *_containers(copy)]
        container = random.choice([c for c in containers if c] or [copy])
        if not container:
            break
        key = random.choice(list(container)) if isinstance(container, dict) else random.randrange(len(container))
        match random.randrange(5):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[str(random.choice(ODD))] = container.pop(key)
            case 2 if isinstance(container, list):
                container.append(deepcopy(random.choice(ODD)))
            case _:
                container[key] = deepcopy(random.choice(ODD))
    data = bytearray(json.dumps(copy, ensure_ascii=random.random() < 0.5).encode())
    if random.random() < 0.2:
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.randrange(256)
    if random.random() < 0.1:
        del data[random.randrange(len(data)) :]
    return bytes(data)


def _containers(node: Any) -> list[Any]:
    children = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
    return [c for child in children if isinstance(child, (dict, list)) for c in (child, *_containers(child))]


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """A long run would log gigabytes, which pytest keeps."""
    if NODES:
        logging.disable()
    yield
    logging.disable(logging.NOTSET)


Put = Callable[[World, Random], Awaitable[list[Op]]]


async def put(w: World, nodes: dict[str, bytes]) -> list[Op]:
    """Create the nodes, or set their data; returns what removes those that were created."""
    undo: list[Op] = []
    for path, data in nodes.items():
        (answer,) = await w.store.write([Create(path, data)])
        if isinstance(answer, NodeError):
            value((await w.store.write([SetData(path, data)]))[0])
        else:
            undo.append(Delete(str(value(answer))))
    return undo


def many(path: str, good: dict[str, Any]) -> Put:
    """``path`` has a place for a number."""

    async def several(w: World, random: Random) -> list[Op]:
        return await put(w, {path.format(i): mutated(random, good) for i in range(AT_ONCE)})

    return several


def in_turn(put_one: Put) -> Put:
    """One node after another, some of which the next controller finds."""

    async def several(w: World, random: Random) -> list[Op]:
        for _ in range(AT_ONCE):
            undo = await put_one(w, random)
            if random.random() < 0.1:
                await w.store.write([Delete("/controller")])
            await w.settle()
            await w.store.write(undo)
        return []

    return several


def one(path: str, good: dict[str, Any]) -> Put:
    async def put_one(w: World, random: Random) -> list[Op]:
        return await put(w, {path: mutated(random, good)})

    return in_turn(put_one)


async def topics(w: World, random: Random) -> list[Op]:
    return await put(w, {f"/brokers/topics/m{i}": mutated(random, TOPIC) for i in range(AT_ONCE)})


async def notifications(w: World, random: Random) -> list[Op]:
    for prefix, good in (
        ("/isr_change_notification/isr_change_", PARTITIONS),
        ("/log_dir_event_notification/log_dir_event_", LOG_DIR),
    ):
        for _ in range(AT_ONCE):
            await w.store.write([Create(prefix, mutated(random, good), sequential=True)])
    return []


async def names(w: World, random: Random) -> list[Op]:
    """Odd names of children."""
    odd = [str(name) for name in ODD if not {"/", "\0"} & {*str(name)} and str(name) not in ("", "..", "1", "2")]
    parents = ("/brokers/topics", "/admin/delete_topics", "/brokers/ids", "/isr_change_notification")
    chosen = random.sample(odd, min(AT_ONCE, len(odd)))
    return await put(w, {f"{random.choice(parents)}/{name}": mutated(random, TOPIC) for name in chosen})


async def feature(w: World, random: Random) -> list[Op]:
    """Malformed, or without features: no broker here supports any, and all would be excluded (rule 4.5)."""
    data = mutated(random, FEATURE)
    try:
        _, levels = cluster_nodes.decode_feature(data)
    except znodes.BadZNode:
        levels = {}
    return [] if levels else await put(w, {"/feature": data})


async def producer_ids(w: World, random: Random) -> list[Op]:
    await put(w, {"/latest_producer_id_block": mutated(random, BLOCK)})
    controller = w.nodes[1].controller
    answers: list[wire.Message | None] = []
    epoch = controller.context.broker_epochs[1]  # type: ignore[index]
    controller.submit(wire.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch), 0, answers.append)
    await w.settle()
    (answer,) = answers
    assert isinstance(answer, wire.AllocateProducerIdsResponse)
    wire.encode_response(answer, api_version=0, correlation_id=1)
    return []


KINDS: dict[str, Put] = {
    "broker": many("/brokers/ids/{}9", BROKER),
    "topic": topics,
    "partition state": many("/brokers/topics/s{}/partitions/0/state", STATE),
    "configuration": many("/config/topics/c{}", CONFIG),
    "reassignment": one("/admin/reassign_partitions", REASSIGNMENT),
    "preferred election": one("/admin/preferred_replica_election", PARTITIONS),
    "notification": notifications,
    "name": names,
    "feature": in_turn(feature),
    "producer ids": in_turn(producer_ids),
}
#: kinds whose nodes are put in turn, and enough rounds of those in the suite
IN_TURN = {"reassignment", "preferred election", "feature", "producer ids"}
SAMPLE_IN_TURN = 12


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
async def test_the_next_good_topic_is_served(kind: str, autojump_clock: MockClock) -> None:
    random = Random(kind)
    async with world(brokers=(2,)) as w:
        await w.zk.ensure_paths(["/config/topics"])
        controller = await w.start_controller(1)
        await w.start_broker(3)
        for i in range(AT_ONCE):
            await w.create_topic(f"s{i}", {0: [1, 2]})
            await w.create_topic(f"c{i}", {0: [3]})  # elected uncleanly, if its configuration says so
        await w.stop_broker(3)
        await w.settle()
        for number in range(NODES // AT_ONCE or (SAMPLE_IN_TURN if kind in IN_TURN else SAMPLE)):
            undo = await KINDS[kind](w, random)
            if random.random() < 0.3:
                await w.store.write([Delete("/controller")])
            await w.settle()
            good = f"good-{number}"
            await w.create_topic(good, {0: [1, 2]})
            assert (await w.state(good))[0] == 1, good
            assert controller.is_settled
            # a request for producer ids fails, and is answered
            assert controller.loop.failures.keys() <= {"AllocateProducerIdsReceived"}
            await w.store.write([*undo, Create(f"/admin/delete_topics/{good}")])
            await w.settle()
            assert await w.get(f"/brokers/topics/{good}") is None
            w.take()


def mutated_number(random: Random) -> bytes:
    if random.random() < 0.3:
        return str(random.choice(ODD)).encode()
    digits = bytearray(str(random.choice((1, -1)) * random.getrandbits(random.choice((3, 8, 31, 32, 33, 64)))).encode())
    for _ in range(random.randrange(3)):
        digits.insert(random.randrange(len(digits) + 1), random.choice(b"0 -+.eE_\x00\xff"))
    return bytes(digits)


async def controllers(w: World, random: Random) -> None:
    await w.store.write([SetData("/controller", mutated(random, CONTROLLER))])


async def controller_epochs(w: World, random: Random) -> None:
    """The next election reads it; the end of another broker's leadership starts one."""
    other = Create("/controller", json.dumps(CONTROLLER | {"brokerid": 9}).encode())
    await w.store.write([SetData("/controller_epoch", mutated_number(random)), Delete("/controller"), other])
    await w.store.write([Delete("/controller")])


@pytest.mark.parametrize("put_one", [controllers, controller_epochs])
async def test_a_repaired_election_node_is_used(
    put_one: Callable[[World, Random], Awaitable[None]], autojump_clock: MockClock
) -> None:
    """Nobody can be elected by malformed nodes, as in Kafka."""
    random = Random(put_one.__name__)
    async with world(brokers=(2,)) as w:
        controller = await w.start_controller(1)
        epoch = 1
        for number in range(NODES // AT_ONCE or SAMPLE_IN_TURN):
            for _ in range(AT_ONCE):
                await put_one(w, random)
                await w.settle()
            epoch += 1
            repaired = SetData("/controller_epoch", str(epoch).encode())
            await w.store.write([repaired, Delete("/controller"), Create("/controller", b"{}"), Delete("/controller")])
            await w.settle()
            epoch += 1
            assert (controller.is_active, controller.context.epoch) == (True, epoch)
            await w.create_topic(f"good-{number}", {0: [1, 2]})
            assert (await w.state(f"good-{number}"))[0] == 1
            assert controller.is_settled
            await w.store.write([Create(f"/admin/delete_topics/good-{number}")])
            await w.settle()
            assert await w.get(f"/brokers/topics/good-{number}") is None
            w.take()


async def test_a_malformed_controller_epoch_elects_nobody(autojump_clock: MockClock) -> None:
    random = Random(2)
    async with world(brokers=(2,)) as w:
        controller = await w.start_controller(1)
        for _ in range(SAMPLE):
            await controller_epochs(w, random)
            data = await w.get("/controller_epoch")
            assert data is not None
            await w.settle()
            try:
                elected = incremented(znodes.decode_controller_epoch(data))
            except znodes.BadZNode:
                assert not controller.is_active
                assert await w.get("/controller") is None
            else:
                assert (controller.is_active, controller.context.epoch) == (True, elected)
            assert not controller.loop.failures
