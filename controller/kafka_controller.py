"""The controller: elected through ZooKeeper, it becomes active, decides what events call for, and resigns.

Everything here happens in the event loop's task, one event at a time. The order is always: decide, persist under the
epoch's version, apply to the context, send. This file is a contender's life: sessions, and what others may ask. How it
is elected is `controller.election.kafka` (section 2), what it does then is `controller.active`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import trio

import wire
from controller import events as ev
from controller.active import ActiveController
from controller.channel_manager import ChannelManager, Dial
from controller.config import ControllerConfig
from controller.config_changes import ConfigChanges, OnClientConfig
from controller.context import ControllerContext
from controller.core import Core, WaitForFeatures, no_feature_cache
from controller.election.api import LeaderContender
from controller.election.kafka import ControllerElector, ControllerToken
from controller.errors import BrokenBatch, BrokerNotAvailable, ControllerMoved, StaleBrokerEpoch
from controller.event_loop import ControllerEventLoop
from controller.kafka_zk_client import KafkaZkClient
from controller.metrics import KafkaControllerGauges, Meter, MetricName, Metrics, SessionMetrics
from controller.model import (
    BrokerId,
    ControllerEpoch,
    ElectionType,
    FeatureUpdate,
    ProducerIdsBlock,
    TopicPartition,
)
from controller.partition_state_machine import PartitionStateMachine
from controller.replica_state_machine import ReplicaStateMachine
from controller.request_batch import ControllerRequestBatch
from controller.scheduler import Scheduler
from controller.store import SessionExpired, SessionState
from controller.zk_client import ChangeHandler

log = logging.getLogger(__name__)


class Controller(LeaderContender[ControllerToken]):
    """A contender for the controller role of one broker.

    ``register`` registers the broker anew; it is called when a new session has followed one that expired (2.31), and
    once at the start by whoever runs the node. ``on_client_config`` is told the configurations of users and clients,
    which a broker enforces; ``wait_for_features`` ends when the broker knows a version of /feature. ``run`` serves
    until it is cancelled or ``close`` is called.
    """

    def __init__(
        self,
        config: ControllerConfig,
        zk: KafkaZkClient,
        dial: Dial,
        nursery: trio.Nursery,
        *,
        register: Callable[[], Awaitable[object]],
        on_client_config: OnClientConfig = lambda kind, name, config: None,
        wait_for_features: WaitForFeatures = no_feature_cache,
    ) -> None:
        self.config = config
        self.context = ControllerContext()
        self._register = register
        self.metrics = Metrics()
        self.loop = ControllerEventLoop(self._process, self.metrics)
        self.channels = ChannelManager(config.channels, dial, nursery, self.metrics)
        self.failovers = 0
        #: whether the failover of the current epoch is complete
        self.is_settled = False
        self.stopped = trio.Event()

        def batch() -> ControllerRequestBatch:
            return ControllerRequestBatch(config.batches, self.context, self.channels, self)

        self._configs = ConfigChanges(
            zk,
            config.broker_id,
            static=config.unclean_leader_election_enable,
            put=self.loop.put,
            on_client_config=on_client_config,
        )
        self._core = Core(
            config=config,
            context=self.context,
            zk=zk,
            channels=self.channels,
            batch=batch(),
            partitions=PartitionStateMachine(
                self.context,
                zk,
                batch(),
                ibp=config.inter_broker_protocol_version,
                unclean_by_default=lambda: self._configs.unclean_leader_election_enable,
            ),
            replicas=ReplicaStateMachine(self.context, zk, batch()),
            put=self.loop.put,
            wait_for_features=wait_for_features,
        )
        self._gauges = KafkaControllerGauges(
            self.metrics, self.context, lambda: self.is_active, lambda: self.loop.state.value
        )
        self._sessions = SessionMetrics(self.metrics)
        unclean = MetricName("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec")
        self.metrics.add(unclean, Meter(lambda: self._core.partitions.unclean_elections))
        self._active = ActiveController(self._core, Scheduler(nursery, self.loop.put))
        on_change = ChangeHandler(
            created=lambda: self.loop.put(ev.ControllerChanged()),
            changed=lambda: self.loop.put(ev.ControllerChanged()),
            deleted=lambda: self.loop.put(ev.ControllerDeleted()),
        )
        self._elector = ControllerElector(zk, config.broker_id, self.context, self, on_change)
        zk.store.on_session = self._on_session

    @property
    def is_active(self) -> bool:
        """Whether this node believes to be the controller: a plain value in memory (rule 2.5)."""
        return self._elector.has_leadership

    @property
    def active_controller_id(self) -> BrokerId | None:
        """The controller, as far as this node knows."""
        return self._elector.active_controller_id

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until ``close``. However it ends, ``stopped`` is set."""
        self.loop.put(ev.Started())
        task_status.started()
        try:
            await self.loop.run()
            await self.revoke_leadership()
            self._gauges.remove()
        finally:
            self.stopped.set()

    def close(self) -> None:
        """End ``run`` after the event under way; /controller goes with the session (rule 2.21)."""
        self.loop.close()

    # what others ask of the controller module; all of it only enqueues, and is answered once unless the rules say never

    def alter_partition(
        self,
        request: wire.AlterPartitionRequest,
        api_version: int,
        reply: Callable[[wire.AlterPartitionResponse], None],
    ) -> None:
        event = ev.AlterPartitionReceived(request, api_version, reply)
        if self.is_active:
            self.loop.put(event)
        else:  # at once, without queueing (rule 9.70)
            event.refuse()

    def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, reply: Callable[[wire.ControlledShutdownResponse], None]
    ) -> None:
        def answer(result: ev.ShutdownResult) -> None:
            reply(_controlled_shutdown_response(result))

        self.loop.put(ev.ControlledShutdownRequested(BrokerId(broker_id), broker_epoch, answer))

    def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        reply: Callable[[ev.AlterReassignmentsResult], None],
    ) -> None:
        """``targets``: partition -> replicas, None to cancel (rules 11.25-11.28)."""
        wanted = {tp: None if t is None else tuple(BrokerId(r) for r in t) for tp, t in targets.items()}
        self.loop.put(ev.AlterPartitionReassignmentsReceived(wanted, reply))

    def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None, reply: Callable[[ev.ListReassignmentsResult], None]
    ) -> None:
        """Of ``partitions``, or of all that are being reassigned if None (rule 3.24)."""
        asked = None if partitions is None else frozenset(partitions)
        self.loop.put(ev.ListPartitionReassignmentsReceived(asked, reply))

    def elect_leaders(
        self,
        partitions: Collection[TopicPartition],
        election_type: ElectionType,
        reply: Callable[[ev.ElectLeadersResult], None],
    ) -> None:
        """Of these partitions; all of them, where a request says so, are the metadata cache's (rules 11.30, 11.35)."""
        self.loop.put(ev.ElectLeadersReceived(frozenset(partitions), election_type, reply))

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int, reply: Callable[[ProducerIdsBlock | wire.ErrorCode], None]
    ) -> None:
        self.loop.put(ev.AllocateProducerIdsReceived(BrokerId(broker_id), broker_epoch, reply))

    def update_features(
        self,
        updates: Sequence[FeatureUpdate],
        reply: Callable[[ev.UpdateFeaturesResult], None],
        *,
        validate_only: bool = False,
    ) -> None:
        self.loop.put(ev.UpdateFeaturesReceived(tuple(updates), reply, validate_only))

    def is_queued_for_deletion(self, topic: str) -> bool:
        return self.context.is_queued_for_deletion(topic)

    # answers of brokers (request_batch.Responses); they come from the channels' tasks and only enqueue (rule 3.41)

    def leader_and_isr(self, response: wire.LeaderAndIsrResponse, broker: BrokerId) -> None:
        self.loop.put(ev.LeaderAndIsrAnswered(response, broker))

    def update_metadata(self, response: wire.UpdateMetadataResponse, broker: BrokerId) -> None:
        self.loop.put(ev.UpdateMetadataAnswered(response, broker))

    def stop_replica(
        self, response: wire.StopReplicaResponse, broker: BrokerId, deleted: frozenset[TopicPartition]
    ) -> None:
        """Rules 8.43, 8.44."""
        errors = tuple(
            (tp, e.error_code)
            for e in response.partition_errors
            if (tp := TopicPartition(e.topic_name, e.partition_index)) in deleted
            and tp.topic in self.context.topics_with_deletion_started
        )
        if errors:
            self.loop.put(ev.ReplicaDeletionAnswered(broker, response.error_code, errors))

    # sessions

    def _on_session(self, state: SessionState) -> None:
        self._sessions.changed(state)
        if state is SessionState.EXPIRED:
            self.loop.clear_and_put(ev.SessionExpiredEvent())  # rule 2.29
        elif state is SessionState.ESTABLISHED:
            self.loop.put(ev.SessionEstablished())

    # processing

    async def _process(self, event: ev.ControllerEvent) -> None:
        """Rule 2.18: a controller that was moved may have to resign; any other failure costs the event only."""
        try:
            await self._dispatch(event)
        except ControllerMoved as e:
            log.info("%s: controller moved while processing %s", e, type(event).__name__)
            await self._elector.moved()
        except BrokenBatch:
            await self._elector.force_move()
            raise
        except SessionExpired as e:
            log.info("%s while processing %s", e, type(event).__name__)
        finally:
            self._gauges.refresh()

    async def _dispatch(self, event: ev.ControllerEvent) -> None:
        match event:
            case ev.Started():
                await self._configs.start()
                await self._elector.start()
            case ev.ControllerChanged():
                await self._elector.moved()
            case ev.ControllerDeleted():
                await self._elector.maybe_resign()
                await self._elector.elect()
            case ev.ConfigChangesNotified():
                await self._configs.notified()
            case ev.SessionEstablished():
                await self._register()
                await self._configs.start()
                await self._elector.session_established()
            case ev.SessionExpiredEvent():
                await self._elector.session_expired()
            case _ if self.is_active:
                await self._active.process(event)
            case _:
                event.refuse()

    # as a contender

    async def grant_leadership(self, session_id: ControllerToken) -> None:
        await self._active.failover()
        self.failovers += 1
        self.is_settled = True
        log.info(
            "broker %d is the active controller of epoch %d: %d brokers, %d topics, %d partitions",
            self.config.broker_id,
            self.context.epoch,
            len(self.context.broker_epochs),
            len(self.context.topics),
            len(self.context.leadership),
        )

    async def revoke_leadership(self) -> None:
        """It may be called on a node that is not active (rule 4.26)."""
        self.is_settled = False
        if self.context.epoch != ControllerEpoch(0):
            log.info("broker %d resigned as controller of epoch %d", self.config.broker_id, self.context.epoch)
        await self._active.resign()

    async def handle_error(self, error: Exception) -> None:
        log.error("broker %d failed to become controller", self.config.broker_id, exc_info=error)


def _controlled_shutdown_response(result: ev.ShutdownResult) -> wire.ControlledShutdownResponse:
    """Rules 11.41, 11.42, 11.44."""
    codes: dict[type[Exception], wire.ErrorCode] = {
        ControllerMoved: wire.ErrorCode.STALE_CONTROLLER_EPOCH,
        StaleBrokerEpoch: wire.ErrorCode.STALE_BROKER_EPOCH,
        BrokerNotAvailable: wire.ErrorCode.BROKER_NOT_AVAILABLE,
    }
    if isinstance(result, Exception):
        code = codes.get(type(result), wire.ErrorCode.UNKNOWN_SERVER_ERROR)
        return wire.ControlledShutdownResponse(error_code=code)
    return wire.ControlledShutdownResponse(
        remaining_partitions=tuple(
            wire.RemainingPartition(topic_name=tp.topic, partition_index=tp.partition) for tp in sorted(result)
        )
    )
