"""The controller: elected through ZooKeeper, it becomes active, decides what events call for, and resigns.

Everything here happens in the event loop's task, one event at a time. The order is always: decide, persist under the
epoch's version, apply to the context, send. What each event does is in the capability modules; this file is election
(section 2), failover and resignation (section 4), and the table from events to capabilities.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio

import wire
from controller import events as ev
from controller import zk_data
from controller.brokers import Brokers
from controller.channel_manager import ChannelManager, Dial
from controller.config import ControllerConfig
from controller.context import ControllerContext
from controller.controlled_shutdown import shut_down_broker
from controller.core import Core
from controller.errors import BrokerNotAvailable, ControllerMoved, IllegalState, StaleBrokerEpoch
from controller.event_loop import ControllerEventLoop
from controller.isr import IsrChanges
from controller.kafka_zk_client import KafkaZkClient
from controller.model import BrokerId, ControllerEpoch, TopicPartition
from controller.partition_state_machine import PartitionStateMachine
from controller.replica_state_machine import ReplicaStateMachine
from controller.request_batch import ControllerRequestBatch
from controller.store import SessionExpired, SessionState
from controller.topic_deletion import TopicDeletion
from controller.topics import Topics
from controller.zk_client import ChangeHandler

log = logging.getLogger(__name__)


class Controller:
    """A contender for the controller role of one broker.

    ``register`` registers the broker anew; it is called when a new session has followed one that expired (2.31), and
    once at the start by whoever runs the node. ``run`` serves until it is cancelled or ``close`` is called.
    """

    def __init__(
        self,
        config: ControllerConfig,
        zk: KafkaZkClient,
        dial: Dial,
        nursery: trio.Nursery,
        *,
        register: Callable[[], Awaitable[object]],
    ) -> None:
        self.config = config
        self.context = ControllerContext()
        self.active_controller_id: BrokerId | None = None
        self._zk = zk
        self._register = register
        self.loop = ControllerEventLoop(self._process)
        self.channels = ChannelManager(config.channels, dial, nursery)
        self.failovers = 0
        #: whether the failover of the current epoch is complete
        self.is_settled = False
        self.stopped = trio.Event()

        def batch() -> ControllerRequestBatch:
            return ControllerRequestBatch(config.batches, self.context, self.channels, self)

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
                unclean_by_default=lambda: config.unclean_leader_election_enable,
            ),
            replicas=ReplicaStateMachine(self.context, zk, batch()),
            put=self.loop.put,
        )
        self._deletion = TopicDeletion(self._core)
        self._brokers = Brokers(self._core, self._deletion)
        self._topics = Topics(self._core)
        self._isr = IsrChanges(self._core)
        zk.store.on_session = self._on_session

    @property
    def is_active(self) -> bool:
        """Whether this node believes to be the controller: a plain value in memory (rule 2.5)."""
        return self.active_controller_id == self.config.broker_id

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.loop.put(ev.Started())
        task_status.started()
        await self.loop.run()
        await self._resign()
        self.stopped.set()

    def close(self) -> None:
        """End ``run`` after the event under way; /controller goes with the session (rule 2.21)."""
        self.loop.close()

    # what others ask of the controller module; all of it only enqueues

    def alter_partition(
        self,
        request: wire.AlterPartitionRequest,
        api_version: int,
        reply: Callable[[wire.AlterPartitionResponse], None],
    ) -> None:
        if not self.is_active:  # at once, without queueing (rule 9.70)
            reply(wire.AlterPartitionResponse(error_code=wire.ErrorCode.NOT_CONTROLLER))
            return
        self.loop.put(ev.AlterPartitionReceived(request, api_version, reply))

    def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, reply: Callable[[wire.ControlledShutdownResponse], None]
    ) -> None:
        def answer(result: ev.ShutdownResult) -> None:
            reply(_controlled_shutdown_response(result))

        self.loop.put(ev.ControlledShutdownRequested(BrokerId(broker_id), broker_epoch, answer))

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
            await self._maybe_resign()
        except IllegalState:
            log.exception("processing %s found the controller in an illegal state", type(event).__name__)
            self._core.batch.clear()
            await self._force_move()
        except SessionExpired as e:
            log.info("%s while processing %s", e, type(event).__name__)

    async def _dispatch(self, event: ev.ControllerEvent) -> None:
        match event:
            case ev.Started():
                await self._zk.register_and_check(zk_data.CONTROLLER, self._controller_handler())
                await self._elect()
            case ev.ControllerChanged():
                await self._maybe_resign()
            case ev.ControllerDeleted():
                await self._maybe_resign()
                await self._elect()
            case ev.SessionEstablished():
                await self._register()
                await self._maybe_resign()
                await self._elect()
            case ev.SessionExpiredEvent():
                self.active_controller_id = None
                await self._resign()
            case ev.AlterPartitionReceived():
                await self._isr.alter_partition(event, active=self.is_active)
            case ev.ControlledShutdownRequested():
                await self._controlled_shutdown(event)
            case _:
                if self.is_active:  # rule 3.8
                    await self._dispatch_active(event)

    async def _dispatch_active(self, event: ev.ControllerEvent) -> None:
        match event:
            case ev.BrokersChanged():
                await self._brokers.changed()
            case ev.BrokerModified(broker):
                await self._brokers.modified(broker)
            case ev.TopicsChanged():
                await self._topics.changed()
            case ev.PartitionsModified(topic):
                await self._topics.partitions_modified(topic)
            case ev.TopicDeletionRequested():
                await self._deletion.requested()
            case ev.ReplicaDeletionAnswered():
                await self._deletion.answered(event)
            case ev.IsrChangeNotified():
                await self._isr.notified()
            case ev.LogDirEventNotified():
                await self._brokers.log_dirs_failed()
            case ev.LeaderAndIsrAnswered():
                await self._brokers.leader_and_isr_answered(event)
            case ev.UpdateMetadataAnswered(response, broker):
                if response.error_code != wire.ErrorCode.NONE:
                    log.error("broker %d refused UpdateMetadata: %s", broker, wire.error_name(response.error_code))
            case _:
                raise AssertionError(f"no capability takes {event}")

    async def _controlled_shutdown(self, event: ev.ControlledShutdownRequested) -> None:
        """Rules 3.27, 11.41: whatever happens, the requester hears of it."""
        if not self.is_active:
            event.reply(ControllerMoved("this broker is not the controller"))
            return
        try:
            remaining = await shut_down_broker(self._core, event.broker, event.broker_epoch)
        except Exception as e:
            event.reply(e)
            if isinstance(e, (ControllerMoved, IllegalState, SessionExpired)):
                raise
            log.warning("controlled shutdown of broker %d: %r", event.broker, e)
        else:
            event.reply(remaining)

    # election

    def _controller_handler(self) -> ChangeHandler:
        return ChangeHandler(
            created=lambda: self.loop.put(ev.ControllerChanged()),
            changed=lambda: self.loop.put(ev.ControllerChanged()),
            deleted=lambda: self.loop.put(ev.ControllerDeleted()),
        )

    async def _elect(self) -> None:
        """Rules 2.6-2.14."""
        current = await self._zk.get_controller_id()
        if current is not None:
            self.active_controller_id = current
            log.debug("broker %d is the controller", current)
            return
        try:
            epoch, zk_version = await self._zk.register_controller(self.config.broker_id)
            self.context.epoch, self.context.epoch_zk_version = epoch, zk_version
            self.active_controller_id = self.config.broker_id
            log.info("broker %d is elected controller, epoch %d", self.config.broker_id, epoch)
            await self._failover()
        except ControllerMoved as e:
            await self._maybe_resign()
            log.info("broker %d was not elected: %s", self.config.broker_id, e)
        except SessionExpired:
            raise
        except Exception:
            log.exception("broker %d failed to become controller", self.config.broker_id)
            await self._force_move()

    async def _maybe_resign(self) -> None:
        """Rule 2.16."""
        was_active = self.is_active
        await self._zk.register_and_check(zk_data.CONTROLLER, self._controller_handler())
        self.active_controller_id = await self._zk.get_controller_id()
        if was_active and not self.is_active:
            await self._resign()

    async def _force_move(self) -> None:
        """Give the role up by deleting /controller, if it is ours (rule 2.19)."""
        if await self._zk.get_controller_id() != self.config.broker_id:
            log.warning("the controller has moved already")
            return
        zk_version = self.context.epoch_zk_version
        self.active_controller_id = None
        await self._resign()
        try:
            await self._zk.delete_controller(zk_version)
        except ControllerMoved:
            log.info("the controller has moved already")

    # becoming and ceasing to be controller

    async def _failover(self) -> None:
        """Rules 4.1-4.18, in that order."""
        core, zk, context = self._core, self._zk, self.context
        await self._set_up_features()
        children: dict[str, ev.ControllerEvent] = {
            zk_data.BROKER_IDS: ev.BrokersChanged(),
            zk_data.TOPICS: ev.TopicsChanged(),
            zk_data.DELETE_TOPICS: ev.TopicDeletionRequested(),
            zk_data.LOG_DIR_EVENT_NOTIFICATION: ev.LogDirEventNotified(),
            zk_data.ISR_CHANGE_NOTIFICATION: ev.IsrChangeNotified(),
        }
        for path, event in children.items():
            zk.register_child_handler(path, self._enqueuer(event))
        await zk.delete_all_notifications(zk_data.LOG_DIR_EVENT_NOTIFICATION, context.epoch_zk_version)
        await zk.delete_all_notifications(zk_data.ISR_CHANGE_NOTIFICATION, context.epoch_zk_version)
        context.set_live_brokers((await zk.get_brokers()).values())
        await self._topics.load()
        context.leadership.clear()
        context.shutting_down.clear()
        await self._brokers.watch(context.live_or_shutting_down_broker_ids)
        await core.refresh_leadership(context.all_partitions())
        self.channels.add_brokers(context.live_or_shutting_down_brokers)
        to_delete = await zk.get_topic_deletions()
        with_offline_replica = {
            tp.topic
            for tp in context.all_partitions()
            if any(not context.is_replica_online(r, tp) for r in context.replicas(tp))
        }
        await self._deletion.initialize(to_delete, with_offline_replica | {tp.topic for tp in context.being_reassigned})
        core.send_update_metadata_to_all()  # 4.13: leaders' addresses before leaderships
        await core.replicas.startup()
        await core.partitions.startup()
        await self._deletion.resume_all()
        self.failovers += 1
        self.is_settled = True
        log.info(
            "broker %d is the active controller of epoch %d: %d brokers, %d topics, %d partitions",
            self.config.broker_id,
            context.epoch,
            len(context.broker_epochs),
            len(context.topics),
            len(context.leadership),
        )

    def _enqueuer(self, event: ev.ControllerEvent) -> Callable[[], None]:
        return lambda: self.loop.put(event)

    async def _set_up_features(self) -> None:
        """/feature (rules 4.22-4.25). There are no features of our own to finalize."""
        ibp = self.config.inter_broker_protocol_version
        enabled = ibp.supports_feature_versioning
        found = await self._zk.get_feature()
        features: dict[str, Any] = {}
        if found is not None and enabled:
            was_enabled, kept = zk_data.decode_feature(found.data)
            features = kept if was_enabled else {}
        wanted = zk_data.encode_feature(ibp.feature_znode_version, enabled=enabled, features=features)
        if found is None or found.data != wanted:
            await self._zk.put_feature(wanted, create=found is None)

    async def _resign(self) -> None:
        """Rules 4.26-4.32. It may be called on a node that is not active, and touches nothing in ZooKeeper."""
        zk = self._zk
        for path in (zk_data.ISR_CHANGE_NOTIFICATION, zk_data.LOG_DIR_EVENT_NOTIFICATION):
            zk.unregister_child_handler(path)
        self._brokers.unwatch(self.context.live_or_shutting_down_broker_ids)
        zk.unregister_child_handler(zk_data.TOPICS)
        self._topics.unwatch_all()
        zk.unregister_child_handler(zk_data.DELETE_TOPICS)
        zk.unregister_child_handler(zk_data.BROKER_IDS)
        await self.channels.shutdown()
        self.is_settled = False
        if self.context.epoch != ControllerEpoch(0):
            log.info("broker %d resigned as controller of epoch %d", self.config.broker_id, self.context.epoch)
        self.context.clear()


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
