"""The controller module of a node: it contends for the controller role, and takes requests whether it is active or not.

The event loop's task runs everything, one event at a time. The order is always: decide, write to ZooKeeper under the
controller epoch, update the context, send; but topics that this node creates enter the context while they are written.
`elector` has the election (section 2), `controller_role` what follows it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from kce import wire
from kce.controller import dispatch
from kce.controller import events as ev
from kce.controller.channel_manager import ChannelManager
from kce.controller.config import ControllerConfig
from kce.controller.context import ControllerContext
from kce.controller.controller_role import ControllerRole
from kce.controller.elector import ControllerContender, ControllerElector, ControllerToken
from kce.controller.errors import BrokenBatch
from kce.controller.event_loop import ControllerEventLoop
from kce.controller.metrics import KafkaControllerGauges, SessionMetrics
from kce.controller.partition_state_machine import PartitionStateMachine
from kce.controller.replica_state_machine import ReplicaStateMachine
from kce.controller.request_batch import ControllerRequestBatch
from kce.controller.runtime import ControllerRuntime, WaitForFeatures, no_feature_cache
from kce.controller.scheduler import Scheduler
from kce.metrics import Meter, MetricName, Metrics
from kce.wire.transport import Dial
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import (
    NO_LEADER,
    BrokerId,
    ControllerEpoch,
    TopicPartition,
)
from kce.zookeeper.store import SessionExpired, SessionState

log = logging.getLogger(__name__)


class KafkaController(ControllerContender):
    """One node's contender for the controller role.

    ``register`` registers the broker again after a session expired (2.31); the first registration is the caller's.
    ``unclean_leader_election_enable`` returns the broker's current setting, by default the configured one.
    ``wait_for_features`` returns when the broker has read a version of /feature. ``run`` serves until it is cancelled
    or ``close`` is called.
    """

    def __init__(
        self,
        config: ControllerConfig,
        zk: KafkaZkClient,
        dial: Dial,
        nursery: trio.Nursery,
        *,
        register: Callable[[], Awaitable[object]],
        unclean_leader_election_enable: Callable[[], bool] | None = None,
        wait_for_features: WaitForFeatures = no_feature_cache,
    ) -> None:
        self.config = config
        self.context = ControllerContext()
        self._register = register
        self.metrics = Metrics()
        self.loop = ControllerEventLoop(self._process, self.metrics)
        self.channels = ChannelManager(config.channels, dial, nursery, self.metrics)
        #: whether the failover of the current epoch is complete
        self.is_settled = False
        self.stopped = trio.Event()

        def batch() -> ControllerRequestBatch:
            return ControllerRequestBatch(config.batches, self.context, self.channels, self)

        self._runtime = ControllerRuntime(
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
                unclean_by_default=unclean_leader_election_enable or (lambda: config.unclean_leader_election_enable),
            ),
            replicas=ReplicaStateMachine(self.context, zk, batch()),
            put=self.loop.put,
            is_idle=lambda: self.loop.is_idle,
            wait_for_features=wait_for_features,
        )
        self._gauges = KafkaControllerGauges(
            self.metrics, self.context, lambda: self.is_active, lambda: self.loop.state.value
        )
        self._sessions = SessionMetrics(self.metrics)
        unclean = MetricName("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec")
        self.metrics.add(unclean, Meter(lambda: self._runtime.partitions.unclean_elections))
        self._role = ControllerRole(self._runtime, Scheduler(nursery, self.loop.put))
        on_change = ChangeHandler(
            created=lambda: self.loop.put(ev.ControllerChanged()),
            changed=lambda: self.loop.put(ev.ControllerChanged()),
            deleted=lambda: self.loop.put(ev.ControllerDeleted()),
        )
        self._elector = ControllerElector(zk, config.broker_id, self.context, self, on_change)
        zk.store.on_session = self._on_session

    @property
    def is_active(self) -> bool:
        """Whether this node believes that it is the controller (rule 2.5)."""
        return self._elector.has_leadership

    @property
    def active_controller_id(self) -> BrokerId | None:
        """The controller that this node knows of."""
        return self._elector.active_controller_id

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until ``close``, then set ``stopped``, even on failure."""
        self.loop.put(ev.Started())
        task_status.started()
        try:
            await self.loop.run()
            await self.revoke_leadership()
            self._gauges.remove()
        finally:
            self.stopped.set()

    def close(self) -> None:
        """End ``run`` after the current event. /controller is deleted with the session (rule 2.21)."""
        self.loop.close()

    # called by the node: everything only enqueues

    def submit(self, request: wire.Message, api_version: int, reply: Callable[[wire.Message | None], None]) -> None:
        """Queue a request. ``reply`` takes the response, or None: this node is not the controller. It is called once,
        or never where `dispatch` says so. Raises KeyError for a request that the controller does not serve."""
        event = ev.RequestReceived(request, api_version, reply)
        if self.is_active or dispatch.row(event).waits:
            self.loop.put(event)
        else:
            dispatch.refuse(event)

    def unclean_leader_election_enabled(self, topic: str | None) -> None:
        """`unclean.leader.election.enable` became true for ``topic``, or for all topics that do not set it if None."""
        self.loop.put(
            ev.UncleanLeaderElectionEnabled() if topic is None else ev.TopicUncleanLeaderElectionEnabled(topic)
        )

    def is_queued_for_deletion(self, topic: str) -> bool:
        return self.context.is_queued_for_deletion(topic)

    def leader(self, partition: TopicPartition) -> int:
        """The leader that this controller elected last; -1 if it knows none."""
        known = self.context.leadership.get(partition)
        return NO_LEADER if known is None else known.leader_and_isr.leader

    # responses of brokers (`request_batch.Responses`): called by the channels' tasks, they only enqueue (rule 3.41), or
    # count what changes nothing: most answers, and every change of a leader has one from each broker

    def leader_and_isr(self, response: wire.LeaderAndIsrResponse, broker: BrokerId) -> None:
        if self.loop.is_idle and self._role.brokers.are_all_online(response, broker):
            self.loop.skip(ev.ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED)
        else:
            self.loop.put(ev.LeaderAndIsrAnswered(response, broker))

    def update_metadata(self, response: wire.UpdateMetadataResponse, broker: BrokerId) -> None:
        if self.loop.is_idle and not response.error_code:
            self.loop.skip(ev.ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED)
        else:
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
            self.loop.put(ev.SessionExpiredEvent())  # rule 2.29
        elif state is SessionState.ESTABLISHED:
            self.loop.put(ev.SessionEstablished())

    # processing

    async def _process(self, event: ev.ControllerEvent) -> None:
        """ControllerMoved may end the role; any other failure ends only the event (rule 2.18)."""
        try:
            try:
                await self._dispatch(event)
            except ControllerMoved as e:
                log.info("%s while processing %s", e, event.name)
                await self._elector.moved()
        except BrokenBatch:
            await self._elector.force_move()
            raise
        except SessionExpired as e:
            log.info("%s while processing %s", e, event.name)
        finally:
            self._gauges.refresh()

    async def _dispatch(self, event: ev.ControllerEvent) -> None:
        match event:
            case ev.Started():
                await self._elector.start()
            case ev.ControllerChanged():
                await self._elector.moved()
            case ev.ControllerDeleted():
                await self._elector.maybe_resign()
                await self._elector.elect()
            case ev.SessionEstablished():
                await self._register()
                await self._elector.session_established()
            case ev.SessionExpiredEvent():
                await self._elector.session_expired()
            case _ if self.is_active:
                process = dispatch.row(event).process
                assert process is not None
                await process(self._role, event)
            case _:
                dispatch.refuse(event)

    # as a contender

    async def grant_leadership(self, token: ControllerToken) -> None:
        await self._role.failover()
        self.is_settled = True
        log.info(
            "broker %d is the controller of epoch %d: %d brokers, %d topics, %d partitions",
            self.config.broker_id,
            self.context.epoch,
            len(self.context.broker_epochs),
            len(self.context.topics),
            len(self.context.leadership),
        )

    async def revoke_leadership(self) -> None:
        """Safe on a node that is not the controller (rule 4.26)."""
        self.is_settled = False
        if self.context.epoch != ControllerEpoch(0):
            log.info("broker %d resigned as controller of epoch %d", self.config.broker_id, self.context.epoch)
        await self._role.resign()

    async def handle_error(self, error: Exception) -> None:
        log.error("broker %d failed to become controller", self.config.broker_id, exc_info=error)
