"""TCP segments in, Kafka messages out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from kce.captures.exchanges.pairing import Conversation, Message, Peers
from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.seams import Seam, resumed
from kce.captures.tcp.directions import End, Event
from kce.captures.tcp.segments import Segment
from kce.captures.tcp.streams import Connection, Streams


class Assembly:
    """The state of all open connections. ``quality`` has the counts of closed ones.

    ``ports`` are listener ports, if known. ``ended`` is called with the peers of each closed Kafka connection,
    ``open_at_end`` with each connection that is open when all segments were received.
    """

    def __init__(
        self, quality: Quality, ports: Collection[int] = (), *, ended: Callable[[Peers], object] = lambda peers: None
    ) -> None:
        self.quality = quality
        self._ports = ports
        self.ended = ended
        self.open_at_end: Callable[[Connection, Conversation], object] = lambda connection, conversation: None
        self._streams = Streams()
        self._conversations: dict[Connection, Conversation] = {}
        self._waiting: set[Conversation] = set()

    @property
    def waiting(self) -> bool:
        """Whether segments received so far may still complete messages."""
        return bool(self._waiting) or self._streams.waiting

    def under_way(self, key: tuple[bytes, int, bytes, int]) -> tuple[Connection, Conversation] | None:
        """The open connection with this ``connection_key``, once it has data."""
        connection = self._streams.connection(key)
        conversation = None if connection is None else self._conversations.get(connection)
        return None if connection is None or conversation is None else (connection, conversation)

    def resume(self, seam: Seam, begin_ns: int) -> None:
        """Begin in the middle of a connection, before its first segment."""
        connection, conversation = resumed(seam, begin_ns)
        self._streams.resume(connection)
        self._conversations[connection] = conversation

    def receive(self, segment: Segment) -> Iterator[Message]:
        """Messages completed by ``segment``."""
        return self._take(self._streams.receive(segment))

    def finish(self) -> Iterator[Message]:
        """The last messages, above all unanswered requests."""
        for connection, conversation in self._conversations.items():
            self.open_at_end(connection, conversation)
        yield from self._take(self._streams.finish())
        self._streams = Streams()

    def _take(self, happened: Iterable[tuple[Connection, list[Event]]]) -> Iterator[Message]:
        for connection, events in happened:
            conversation = self._conversations.get(connection)
            if conversation is None:
                conversation = self._conversations[connection] = Conversation(connection, self._ports)
            for event in events:
                yield from conversation.receive(event)
            if events and isinstance(events[-1], End):
                del self._conversations[connection]
                self._waiting.discard(conversation)
                self.quality.add(conversation.quality)
                if conversation.peers is not None:
                    self.ended(conversation.peers)
            elif conversation.waiting:
                self._waiting.add(conversation)
            else:
                self._waiting.discard(conversation)
