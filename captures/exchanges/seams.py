"""Points at which a connection can be cut in two, each part processed by itself.

    seam = seam_of(connection, conversation)            # where the first part ends, None if something is outstanding
    connection, conversation = resumed(seam, time)      # where the second part begins

All that the past of a connection means to its future is in the ``Seam``, provided that the second part has no SYN, no
data after a FIN or RST, and no bytes from before the first part.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from kce.captures.exchanges.pairing import Conversation
from kce.captures.exchanges.recognise import Start
from kce.captures.tcp.segments import Endpoint
from kce.captures.tcp.streams import Connection
from kce.wire.registry import BY_KEY


class Header(NamedTuple):
    """``recognise.Start``, with the API by its key."""

    length: int
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None

    @classmethod
    def of(cls, start: Start) -> Self:
        return cls(start.length, start.api.key, *start[2:])

    def start(self) -> Start:
        return Start(self.length, BY_KEY[self.api_key], *self[2:])


class Seam(NamedTuple):
    """``sequences`` are those of the next byte of client and server; ``last`` is the last request before them."""

    client: Endpoint
    server: Endpoint
    sequences: tuple[int, int]
    last: Header

    def to_json(self) -> list[Any]:
        ends = [[address.hex(), port] for address, port in (self.client, self.server)]
        return [*ends, list(self.sequences), list(self.last)]

    @classmethod
    def from_json(cls, values: list[Any]) -> Self:
        client, server, (of_client, of_server), last = values
        ends = [(bytes.fromhex(address), port) for address, port in (client, server)]
        return cls(ends[0], ends[1], (of_client, of_server), Header(*last))


def seam_of(connection: Connection, conversation: Conversation) -> Seam | None:
    """Where the connection is now; None if anything is held, incomplete, in flight or missing."""
    peers, last = conversation.peers, conversation.last
    if peers is None or last is None or conversation.in_flight:
        return None
    if not (connection.at_rest and conversation.steady):
        return None
    client = connection.endpoints.index(peers.client)
    following = connection.expected(client), connection.expected(1 - client)
    if following[0] is None or following[1] is None:
        return None
    sequences = following[0] & 0xFFFFFFFF, following[1] & 0xFFFFFFFF
    return Seam(peers.client, peers.server, sequences, Header.of(last))


def resumed(seam: Seam, begin_ns: int) -> tuple[Connection, Conversation]:
    """A connection that is at ``seam``; its client is side 0."""
    connection = Connection.resumed((seam.client, seam.server), begin_ns, seam.sequences)
    return connection, Conversation.resumed(connection, seam.last.start())
