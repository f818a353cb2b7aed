"""Runs the steps of a script, one after the other, and traces what the controller sends and writes.

A step ends when what it must cause has happened, and the controller has nothing more to do: several times it has
processed all that it was notified of, while neither a znode nor the traffic changed.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import trio

from kce import wire
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import MetadataStore, NodeData
from tests.clusters import request
from tests.interop.recording_brokers import RecordingBroker
from tests.interop.trace_diff import Normaliser, StepTrace
from tests.interop.trace_scripts import BROKERS, Step

STEP_TIMEOUT_S = 150
#: a step has ended after this many rounds of the controller's queue without a change, this far apart
QUIET_ROUNDS, ROUND_S = 4, 0.05
#: of what the driver writes
NOW_MS = 1_600_000_000_000
_READS_ZOOKEEPER = wire.CreateTopicsRequest(
    topics=(
        wire.CreatableTopic(
            name="is-there-room",
            num_partitions=-1,
            replication_factor=-1,
            assignments=(wire.CreatableReplicaAssignment(partition_index=0, broker_ids=(1,)),),
        ),
    ),
    validate_only=True,
)
_PASSES_THE_QUEUE = wire.ListPartitionReassignmentsRequest(topics=())

#: path -> (data, stat)
Tree = dict[str, NodeData]


class Driver:
    """``address``: node 100's, for clients."""

    def __init__(self, store: MetadataStore, brokers: Mapping[int, RecordingBroker], address: str) -> None:
        self.store = store
        self.zk = KafkaZkClient(store, now_ms=lambda: NOW_MS, new_uuid=uuid.uuid4)
        self.brokers = brokers
        self.address = address
        self.alive: set[int] = set()
        self.answers: list[dict[str, Any]] = []
        self.expected: Callable[[], Awaitable[bool]] | None = None
        self.begun: dict[int, int] = dict.fromkeys(brokers, 0)

    async def run(self, script: Sequence[Step], normaliser: Normaliser) -> AsyncIterator[StepTrace]:
        """The trace of each step, beginning with the registration of all brokers."""
        for one in (Step("start", {"brokers": tuple(BROKERS)}), *script):
            self.begun = {i: len(broker.received) for i, broker in self.brokers.items()}
            self.answers, self.expected = [], None
            with _deadline(one):
                await getattr(self, one.operation)(**one.arguments)
                await self._until_expected()
                tree = await self._quiet()
            yield self._trace(one, tree, normaliser)

    def _trace(self, one: Step, tree: Tree, normaliser: Normaliser) -> StepTrace:
        requests = {
            i: [
                {
                    "api": type(recorded.message).__name__.removesuffix("Request"),
                    "version": recorded.header.api_version,
                    "client_id": recorded.header.client_id,
                    "correlation_id": recorded.header.correlation_id,
                    "body": normaliser.message(wire.as_dict(recorded.message, recorded.header.api_version)),
                }
                for recorded in broker.received[self.begun[i] :]
            ]
            for i, broker in self.brokers.items()
        }
        nodes = {path: (normaliser.znode(path, node.data), node.stat.version) for path, node in sorted(tree.items())}
        answers = [normaliser.answer(answer) for answer in self.answers]
        return StepTrace(str(one), {i: sent for i, sent in requests.items() if sent}, nodes, answers)

    # waiting

    async def _until_expected(self) -> None:
        expected = self.expected
        while expected is not None and not await expected():  # noqa: ASYNC110 - ZooKeeper and traffic, both
            await trio.sleep(ROUND_S)

    async def _quiet(self) -> Tree:
        """Wait until the controller has nothing more to do; return all znodes."""
        before, rounds = None, 0
        while True:
            await self._through_the_queue()
            tree = await self._tree()
            now = (
                {path: node.stat.mzxid for path, node in tree.items()},
                [len(broker.received) for broker in self.brokers.values()],
            )
            rounds = rounds + 1 if now == before else 0
            if rounds == QUIET_ROUNDS:
                return tree
            before = now
            await trio.sleep(ROUND_S)

    async def _through_the_queue(self) -> None:
        """Wait until an active controller has processed what it has been notified of.

        First a request for which node 100 reads ZooKeeper: in a session, notifications come before the answers to later
        reads. Then one that passes the controller's queue of events.
        """
        while await self._is_refused(_READS_ZOOKEEPER, 7) or await self._is_refused(_PASSES_THE_QUEUE, 0):  # noqa: ASYNC110
            await trio.sleep(ROUND_S)

    async def _is_refused(self, message: wire.Message, version: int) -> bool:
        match await request(self.address, message, version):
            case wire.CreateTopicsResponse(topics=(topic,)):
                code = topic.error_code
            case wire.ListPartitionReassignmentsResponse(error_code=code):
                pass
            case other:
                raise AssertionError(other)
        if code not in (wire.ErrorCode.NONE, wire.ErrorCode.NOT_CONTROLLER):
            raise AssertionError(f"{message} is answered with {wire.error_name(code)}")
        return code == wire.ErrorCode.NOT_CONTROLLER

    async def _tree(self) -> Tree:
        """All znodes; those that come and go meanwhile may be missing."""
        tree: Tree = {}
        level = ["/"]
        while level:
            nodes = await self.store.get_data(level)
            children = await self.store.get_children(level)
            tree |= {path: node for path, node in zip(level, nodes, strict=True) if isinstance(node, NodeData)}
            level = [
                f"{path.rstrip('/')}/{name}"
                for path, names in zip(level, children, strict=True)
                if isinstance(names, list)
                for name in names
            ]
        return tree

    def expect_metadata(self) -> None:
        """Every live broker receives UpdateMetadata in this step."""

        async def received() -> bool:
            return all(
                any(isinstance(r.message, wire.UpdateMetadataRequest) for r in broker.received[self.begun[i] :])
                for i, broker in self.brokers.items()
                if i in self.alive
            )

        self.expected = received

    def expect_reaction(self, *paths: str) -> None:
        """Somebody receives something in this step, or ``paths`` are gone after it."""

        async def reacted() -> bool:
            if any(len(broker.received) > self.begun[i] for i, broker in self.brokers.items()):
                return True
            return bool(paths) and not any(await self.store.exists(paths))

        self.expected = reacted

    async def ask(self, message: wire.Message, version: int) -> wire.Message:
        answer = await request(self.address, message, version)
        self.answers.append(
            {"api": type(answer).__name__.removesuffix("Response"), "body": wire.as_dict(answer, version)}
        )
        return answer


@contextmanager
def _deadline(one: Step) -> Iterator[None]:
    """Raises TimeoutError that names the step."""
    try:
        with trio.fail_after(STEP_TIMEOUT_S):
            yield
    except trio.TooSlowError:
        raise TimeoutError(f"{one} did not end in {STEP_TIMEOUT_S} s") from None
