"""What a capture teaches about its cluster: which address is which broker's listener, which topic has which id.

Control requests tell both: UpdateMetadata lists every broker with its listeners, LeaderAndIsr and UpdateMetadata name
topics with their ids. Ports need not be given: where requests go, there is a listener, and what they ask for tells
whether it is for control, for data or for both.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple

from kce import wire
from kce.captures.exchanges.ports import NO_PORTS, Ports
from kce.captures.tcp.segments import Endpoint, address_text
from kce.wire.control import endpoints, topic_names

#: What goes between controller and brokers: LeaderAndIsr, StopReplica, UpdateMetadata; and back ControlledShutdown,
#: AlterPartition, Envelope, AllocateProducerIds
CONTROL_PLANE_APIS = frozenset({4, 5, 6, 7, 56, 58, 67})

#: What every client sends before it asks for anything.
PREAMBLE_APIS = frozenset({17, 18, 36})


class Listener(NamedTuple):
    """One listener of one broker, as the controller announced it."""

    broker_id: int
    name: str
    host: str
    port: int
    rack: str | None


def announced_listeners(body: wire.UpdateMetadataRequest) -> list[Listener]:
    """The listeners that an UpdateMetadata request announces, whatever its version."""
    return listeners_of(body.live_brokers)


def listeners_of(brokers: Iterable[wire.UpdateMetadataBroker]) -> list[Listener]:
    """The listeners of those that an UpdateMetadata request calls alive."""
    return [
        Listener(broker.id, endpoint.listener, endpoint.host, endpoint.port, broker.rack)
        for broker in brokers
        for endpoint in endpoints(broker)
    ]


class Cluster:
    """Learns from control requests; the last announcement counts, for a broker may come back on another port.

    ``ports`` tell what listeners are for, where that is given and not to be found out.
    """

    def __init__(self, ports: Ports = NO_PORTS) -> None:
        self._ports = ports
        self.listeners: set[Listener] = set()
        self._by_address: dict[tuple[str, int], Listener] = {}
        self._by_port: dict[int, Listener] = {}
        self._asked: dict[Endpoint, set[bool]] = {}
        self._topic_names: dict[uuid.UUID, str] = {}

    def saw(self, server: Endpoint, api_key: int) -> None:
        """``server`` was asked something."""
        if api_key not in PREAMBLE_APIS:
            self._asked.setdefault(server, set()).add(api_key in CONTROL_PLANE_APIS)

    def plane(self, server: Endpoint) -> str | None:
        """By what an address was asked so far: ``control``, ``data``, ``both``; None if nothing tells (KIP-291)."""
        if given := self._ports.get(server[1]):
            return given
        asked = self._asked.get(server)
        if not asked:
            return None
        return "both" if len(asked) == 2 else "control" if True in asked else "data"

    def learn(self, body: wire.Message | None) -> None:
        if isinstance(body, wire.UpdateMetadataRequest):
            for listener in announced_listeners(body):
                self.listeners.add(listener)
                self._by_address[listener.host, listener.port] = listener
                self._by_port[listener.port] = listener
        if isinstance(body, (wire.UpdateMetadataRequest, wire.LeaderAndIsrRequest)):
            self._topic_names |= {topic_id: name for topic_id, name in topic_names(body).items() if topic_id.int}

    def listener_at(self, endpoint: Endpoint) -> Listener | None:
        """Whose listener an address is, by what was announced last; None if that is not known."""
        found = self._by_address.get((address_text(endpoint[0]), endpoint[1]))
        if found is not None:
            return found
        by_port = self._by_port.get(endpoint[1])
        return by_port if by_port is not None and self.listeners_at(endpoint) else None

    def listeners_at(self, endpoint: Endpoint) -> list[Listener]:
        """All that was ever announced of an address: the same port may have been one broker's, then another's.

        A broker may be announced by a name that packets do not show: then the port tells, if it is one broker's only.
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
