"""The cluster as learnt from a capture: listeners of brokers, names of topics, control and data planes.

UpdateMetadata lists every broker with its listeners; LeaderAndIsr and UpdateMetadata name topics with their ids. An
address that receives requests is a listener, and their APIs show whether it serves control, data or both.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

from kce import wire
from kce.captures.exchanges.messages import Request, Response
from kce.captures.exchanges.ports import NO_PORTS, Ports
from kce.captures.tcp.segments import Endpoint, address_text
from kce.wire.control import endpoints, topic_names

#: From the controller: LeaderAndIsr, StopReplica, UpdateMetadata; to the controller: ControlledShutdown,
#: AlterPartition, Envelope, AllocateProducerIds
CONTROL_PLANE_APIS = frozenset({4, 5, 6, 7, 56, 58, 67})

#: Requests that every client sends first.
PREAMBLE_APIS = frozenset({17, 18, 36})


class Listener(NamedTuple):
    """A listener of a broker, as announced by UpdateMetadata."""

    broker_id: int
    name: str
    host: str
    port: int
    rack: str | None


def announced_listeners(body: wire.UpdateMetadataRequest) -> list[Listener]:
    """Listeners announced by an UpdateMetadata request of any version."""
    return listeners_of(body.live_brokers)


def listeners_of(brokers: Iterable[wire.UpdateMetadataBroker]) -> list[Listener]:
    """Listeners of the live brokers of an UpdateMetadata request."""
    return [
        Listener(broker.id, endpoint.listener, endpoint.host, endpoint.port, broker.rack)
        for broker in brokers
        for endpoint in endpoints(broker)
    ]


class News(NamedTuple):
    listeners: list[Listener]
    by_address: dict[tuple[str, int], Listener]
    by_port: dict[int, Listener]
    topic_names: dict[uuid.UUID, str]


class Cluster:
    """Learns from control requests. The last announcement wins, because a broker may return on another port.

    ``ports`` may give the plane of each port.
    """

    def __init__(self, ports: Ports = NO_PORTS) -> None:
        self._ports = ports
        self.listeners: set[Listener] = set()
        self.revision = 0  # of what is known of addresses and topics
        self._by_address: dict[tuple[str, int], Listener] = {}
        self._by_port: dict[int, Listener] = {}
        self._planes: dict[Endpoint, set[bool]] = {}
        self._topic_names: dict[uuid.UUID, str] = {}

    def observe(self, message: Request | Response) -> None:
        """Learn from a message."""
        if isinstance(message, Request):
            self.learn(message.body)
            self.observe_request(message.peers.server, message.api_key)

    def observe_request(self, server: Endpoint, api_key: int) -> None:
        """Note a request to ``server``."""
        if api_key in PREAMBLE_APIS:
            return
        planes, is_control = self._planes.setdefault(server, set()), api_key in CONTROL_PLANE_APIS
        if is_control not in planes:
            planes.add(is_control)
            self.revision += 1

    def plane(self, server: Endpoint) -> str | None:
        """``control``, ``data`` or ``both``, by the requests to an address so far; None if unknown (KIP-291)."""
        if given := self._ports.get(server[1]):
            return given
        planes = self._planes.get(server)
        if not planes:
            return None
        return "both" if len(planes) == 2 else "control" if True in planes else "data"

    def learn(self, body: wire.Message | None) -> None:
        if (news := self.news(body)) is not None:
            self._by_address |= news.by_address
            self._by_port |= news.by_port
            self._topic_names |= news.topic_names
            self.listeners.update(news.listeners)
            self.revision += 1

    def news(self, body: wire.Message | None) -> News | None:
        """What ``learn`` would learn; None if that is nothing."""
        if not isinstance(body, (wire.UpdateMetadataRequest, wire.LeaderAndIsrRequest)):
            return None
        announced = announced_listeners(body) if isinstance(body, wire.UpdateMetadataRequest) else []
        by_address = {(listener.host, listener.port): listener for listener in announced}
        by_port = {listener.port: listener for listener in announced}
        names = {topic_id: name for topic_id, name in topic_names(body).items() if topic_id.int}
        if (
            self.listeners.issuperset(announced)
            and by_address.items() <= self._by_address.items()
            and by_port.items() <= self._by_port.items()
            and names.items() <= self._topic_names.items()
        ):
            return None
        return News(announced, by_address, by_port, names)

    def listener_at(self, endpoint: Endpoint) -> Listener | None:
        """The listener last announced at an address; None if unknown."""
        found = self._by_address.get((address_text(endpoint[0]), endpoint[1]))
        if found is not None:
            return found
        by_port = self._by_port.get(endpoint[1])
        return by_port if by_port is not None and self.listeners_at(endpoint) else None

    def listeners_at(self, endpoint: Endpoint) -> list[Listener]:
        """All listeners ever announced at an address: brokers may reuse a port.

        Brokers may be announced by host name, which packets do not show; then a port of one broker alone decides.
        """
        address, port = address_text(endpoint[0]), endpoint[1]
        exact = [listener for listener in self.listeners if (listener.host, listener.port) == (address, port)]
        if exact:
            return exact
        by_port = [listener for listener in self.listeners if listener.port == port]
        return by_port if len({listener.broker_id for listener in by_port}) == 1 else []

    def topic_name(self, topic_id: uuid.UUID) -> str:
        """The name of the topic with that id, or the id itself."""
        return self._topic_names.get(topic_id) or str(topic_id)
