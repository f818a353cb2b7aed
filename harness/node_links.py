"""Where a node's connections come from: listeners, and the other nodes that it dials."""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final
from weakref import WeakSet

import trio

from kce import wire
from kce.broker_stub.ports import Address, FrameMemory
from kce.broker_stub.security.sasl_client import ClientSession, SaslClient
from kce.captures.record.recorder import Recorder
from kce.harness.connections import Link
from kce.harness.links import Links
from kce.harness.world.port import Listener, World
from kce.harness.world.tls import Tls
from kce.wire.transport import ConnectionLost

log = logging.getLogger(__name__)

#: after this part of its session a connection is authenticated again; in Kafka after 0.85 to 0.95 of it
_RENEWED_AT: Final = 0.85


class LinkListener:
    """A listening socket whose connections are links (broker_stub.ports.ListeningSocket)."""

    def __init__(
        self,
        node: NodeLinks,
        listener: Listener,
        name: str,
        max_frame_bytes: int,
        memory: FrameMemory | None,
    ) -> None:
        self._node = node
        self._listener = listener
        self._name = name
        self._max_frame_bytes = max_frame_bytes
        self._memory = memory

    @property
    def address(self) -> Address:
        return self._listener.address

    def listen(self, backlog: int) -> None:
        self._listener.listen(backlog)

    async def accept(self) -> Link:
        """Raises OSError."""
        connected = await self._listener.accept()
        try:
            return Link(
                self._node,
                connected,
                listener=self._name,
                peer=None,
                accepted=True,
                max_frame_bytes=self._max_frame_bytes,
                memory=self._memory,
                tls=self._node.tls_of_accepted(self._name),
            )
        except Exception as e:  # the recorder's: it costs this connection only
            log.exception("a connection from %s:%d could not be set up", *connected.remote)
            await trio.aclose_forcefully(connected.stream)
            raise ConnectionAbortedError(errno.ECONNABORTED, str(e)) from e

    def close(self) -> None:
        self._listener.close()


class NodeLinks:
    """One node's connections, through its world. ``recorder`` records those that it accepts."""

    def __init__(
        self,
        world: World,
        links: Links,
        node_id: int,
        *,
        tls: Mapping[str, Tls] | None = None,
        sasl: Mapping[str, SaslClient] | None = None,
        accepts_plaintext: bool = False,
    ) -> None:
        """``tls``, ``sasl``: how connections of a listener are secured, accepted ones and those to other nodes; with
        ``accepts_plaintext`` only the latter. What is in ``tls`` then counts for a connection.
        """
        self._accepts_plaintext = accepts_plaintext
        self.links = links
        self._tls = {} if tls is None else tls
        self._sasl = sasl or {}
        self.node_id = node_id
        self.recorder: Recorder | None = None
        #: the time of what is observed: that of the cluster, also where the node's clock is wrong. Else a recording
        #: would go back in time in the midst of connections, and the nodes' parts of it would not fit together
        self.now_ns = lambda: world.now_ns() - world.machine.clock_ns
        #: those that are open
        self.accepted: WeakSet[Link] = WeakSet()
        self._world = world

    async def dial(self, host: str, port: int, *, to: int, listener: str) -> Link:
        """See wire.transport.Dial. Raises OSError.

        The connection is secured as this node's listener of that name is, and authenticated when this returns.
        """
        connected = await self._world.connect(host, port)
        self.links.dialled[connected.local] = self.node_id
        tls, sasl = self._tls.get(listener), self._sasl.get(listener)
        link = Link(self, connected, listener=listener, peer=to, accepted=False, tls=tls, host=host)
        if tls is None and sasl is None:
            return link
        try:
            await _establish(link, sasl)
        except BaseException:
            with trio.CancelScope(shield=True):
                await link.aclose()
            raise
        return link

    async def bind(
        self, host: str, port: int, *, listener: str, max_frame_bytes: int, memory: FrameMemory | None = None
    ) -> LinkListener:
        """See broker_stub.ports.Bind. Raises OSError."""
        return LinkListener(self, await self._world.bind(host, port), listener, max_frame_bytes, memory)

    def tls_of_accepted(self, listener: str) -> Tls | None:
        return None if self._accepts_plaintext else self._tls.get(listener)


async def _establish(link: Link, sasl: SaslClient | None) -> None:
    """Secure and authenticate a connection to another node. Raises ConnectionLost."""
    try:
        await link.secure()
    except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
        raise ConnectionLost(f"the TLS handshake failed: {e.__cause__ or e}") from e
    if sasl is not None:
        await _authenticate(link, sasl)


async def _authenticate(link: Link, sasl: SaslClient, before: ClientSession | None = None) -> None:
    """Also before the session ends, after which the server closes the connection (rules B9.24, B9.25).

    Raises ConnectionLost.
    """
    try:
        session = await sasl.authenticate(link, before)
    except wire.WireError as e:
        raise ConnectionLost(f"the authentication failed: {e}") from e
    if session.lifetime_ms > 0:
        link.renew_after(session.lifetime_ms / 1000 * _RENEWED_AT, partial(_authenticate, link, sasl, session))
