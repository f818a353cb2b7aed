"""The channels to all brokers (rules of section 8c); what is sent may be held until it is known whether to send it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import trio

from kce import wire
from kce.controller.channel import Channel, ChannelConfig, Encode
from kce.controller.request_batch import OnResponse, Outbox
from kce.metrics import Gauge, MetricName, Metrics
from kce.wire.transport import Dial
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.model import BrokerEpoch, BrokerId, RegisteredBroker

log = logging.getLogger(__name__)


def _metric(name: str, broker: BrokerId | None = None) -> MetricName:
    """Rule 12.7."""
    tags = () if broker is None else (("broker-id", str(broker)),)
    return MetricName("kafka.controller", "ControllerChannelManager", name, tags)


class ChannelManager(Outbox):
    """All channels. Their tasks run in ``nursery``. Only the event loop adds and removes brokers."""

    def __init__(
        self, config: ChannelConfig, dial: Dial, nursery: trio.Nursery, metrics: Metrics | None = None
    ) -> None:
        self._config = config
        self._dial = dial
        self._nursery = nursery
        self._channels: dict[BrokerId, Channel] = {}
        #: what is not to be sent yet
        self._held: list[tuple[Channel, Callable[[], None]]] | None = None
        self._metrics = Metrics() if metrics is None else metrics
        self._metrics.add(_metric("TotalQueueSize"), Gauge(lambda: sum(self.queue_sizes().values())))

    def problem(self, broker: RegisteredBroker) -> str | None:
        """Why the broker cannot have a channel (8.28)."""
        if broker.endpoint(self._config.listener) is None:
            return f"it has no listener {self._config.listener}, only {broker.endpoints}"
        return None

    def add_brokers(self, brokers: Iterable[RegisteredBroker]) -> None:
        """Start missing channels (8.36). Raises IllegalState for a broker without the listener (8.28)."""
        for broker in brokers:
            if broker.id in self._channels:
                continue
            if (problem := self.problem(broker)) is not None:
                raise IllegalState(f"broker {broker.id}: {problem}")
            endpoint = broker.endpoint(self._config.listener)
            assert endpoint is not None
            channel = self._channels[broker.id] = Channel(self._config, broker.id, endpoint, self._dial)
            self._metrics.add(_metric("QueueSize", broker.id), Gauge(lambda queue=channel.queue: len(queue)))  # type: ignore[misc]
            self._metrics.add(_metric("RequestRateAndQueueTimeMs", broker.id), channel.queue_time)
            self._nursery.start_soon(channel.run)

    async def remove_brokers(self, ids: Iterable[BrokerId]) -> None:
        """Stop channels and drop their queues, without calling back (rules 8.36, 8.37)."""
        stopping = [channel for broker in ids if (channel := self._channels.pop(broker, None)) is not None]
        for channel in stopping:
            for name in ("QueueSize", "RequestRateAndQueueTimeMs"):
                self._metrics.remove(_metric(name, channel.broker))
            channel.scope.cancel()
        for channel in stopping:
            await channel.stopped.wait()

    async def shutdown(self) -> None:
        """Rule 4.30."""
        await self.remove_brokers(list(self._channels))

    def send(self, broker: BrokerId, request: wire.Message, api_version: int, on_response: OnResponse | None) -> None:
        channel = self._channels.get(broker)
        if channel is None:
            log.warning("%s to broker %d is dropped: no channel", type(request).__name__, broker)
            return

        def encode(correlation_id: int) -> tuple[bytes, bytes]:
            client_id = self._config.client_id
            whole = wire.encode_request(
                request, api_version=api_version, correlation_id=correlation_id, client_id=client_id
            )
            return whole, b""

        self._enqueue(channel, type(request), api_version, encode, on_response)

    def send_update_metadata(
        self,
        brokers: Mapping[BrokerId, BrokerEpoch],
        request: wire.UpdateMetadataRequest,
        api_version: int,
        on_response: Callable[[BrokerId], OnResponse],
    ) -> None:
        """Encode once for all brokers, and hold the bytes once. Raises EncodeError."""
        shared = wire.SharedRequest(request, api_version=api_version, client_id=self._config.client_id)
        for broker, epoch in brokers.items():
            channel = self._channels.get(broker)
            if channel is None:
                log.warning("UpdateMetadata to broker %d is dropped: no channel", broker)
                continue

            def encode(correlation_id: int, epoch: BrokerEpoch = epoch) -> tuple[bytes, memoryview]:
                return shared.start(correlation_id=correlation_id, broker_epoch=epoch), shared.rest

            self._enqueue(channel, type(request), api_version, encode, on_response(broker))

    def hold(self) -> None:
        """Encode what is sent from now on, and keep it until ``release``."""
        self._held = []

    def release(self, *, is_sent: bool) -> None:
        """Enqueue what was held, or drop it."""
        held, self._held = self._held or [], None
        if is_sent:
            for _, enqueue in held:
                enqueue()

    def _enqueue(
        self,
        channel: Channel,
        message: type[wire.Message],
        api_version: int,
        encode: Encode,
        on_response: OnResponse | None,
    ) -> None:
        if self._held is None:
            channel.enqueue(message, api_version, encode, on_response)
        else:
            encode = channel.encoded_ahead(encode, sum(one is channel for one, _ in self._held))
            self._held.append((channel, partial(channel.enqueue, message, api_version, encode, on_response)))

    def queue_sizes(self) -> dict[BrokerId, int]:
        """Unanswered requests by broker."""
        return {broker: len(channel.queue) for broker, channel in self._channels.items()}
