"""Election and retrieval through ZooKeeper, real or in memory: a latch, and a leader node for each component."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from uuid import UUID, uuid4

import trio

from kce.election.api import (
    LeaderElectionDriver,
    LeaderElectionDriverFactory,
    LeaderElectionListener,
    LeaderRetrievalDriver,
    LeaderRetrievalDriverFactory,
    LeaderRetrievalEventHandler,
)
from kce.election.errors import IllegalElectionState
from kce.election.information import EMPTY, LeaderInformation
from kce.election.java_stream import LeaderNodeFormatError, decode_leader_node, encode_leader_node
from kce.election.latch import LeaderLatch
from kce.election.leader_node import WatchedNode, write_leader_node
from kce.election.paths import Paths
from kce.election.session import ConnectionState, ElectionSession
from kce.zookeeper.store import SessionExpired

log = logging.getLogger(__name__)

LeaderNodeDecoder = Callable[[bytes], tuple[str, UUID | None]]


def read_leader_node(data: bytes | None, decode: LeaderNodeDecoder = decode_leader_node) -> LeaderInformation:
    """Decode the node's data; empty without a node or without data (rule E2.9).

    Raises LeaderNodeFormatError, also for an address without an id (rule E8.8).
    """
    if not data:
        return EMPTY
    address, session_id = decode(data)
    if session_id is None:
        raise LeaderNodeFormatError(len(data), f"no session id beside the address {address!r}")
    return LeaderInformation(session_id, address)


class ZooKeeperLeaderElectionDriver(LeaderElectionDriver):
    """Contends in the latch of ``component_id``, and writes the leader nodes of all watched components."""

    def __init__(
        self,
        session: ElectionSession,
        paths: Paths,
        component_id: str,
        listener: LeaderElectionListener,
        *,
        tolerate_suspended_connections: bool = False,
        retry_wait_s: float = 5.0,
    ) -> None:
        self._session = session
        self._paths = paths
        self._listener = listener
        self._retry_wait_s = retry_wait_s
        self._nodes: dict[str, WatchedNode] = {}
        self._writes: set[trio.CancelScope] = set()
        self._closed = False
        self.latch = LeaderLatch(
            session,
            paths.latch_path(component_id),
            on_change=self._leadership_changed,
            on_error=listener.on_error,
            tolerate_suspended_connections=tolerate_suspended_connections,
            retry_wait_s=retry_wait_s,
        )
        self._unsubscribe = session.subscribe(self._connection_changed)
        self.latch.start()

    def __str__(self) -> str:
        return f"ZooKeeperLeaderElectionDriver(latch at {self.latch.path})"

    @property
    def has_leadership(self) -> bool:
        return self.latch.has_leadership

    def _leadership_changed(self, leads: bool) -> None:
        if leads:
            self._listener.on_grant_leadership(uuid4())
            return
        for scope in self._writes:  # E4.10: a write that waits for the connection must not happen after it
            scope.cancel()
        self._listener.on_revoke_leadership()

    def _connection_changed(self, state: ConnectionState) -> None:
        if state is ConnectionState.RECONNECTED:
            for node in self._nodes.values():  # somebody may have overwritten them unseen
                node.forget()

    def watch(self, component_id: str) -> None:
        if component_id not in self._nodes:
            node = self._nodes[component_id] = WatchedNode(
                self._session,
                self._paths.leader_path(component_id),
                on_data=partial(self._node_changed, component_id),
                on_error=self._listener.on_error,
                retry_wait_s=self._retry_wait_s,
            )
            node.start()

    def _node_changed(self, component_id: str, data: bytes | None) -> None:
        """Treat malformed data as empty, so that the leader corrects it (rule E5.7)."""
        try:
            information = read_leader_node(data)
        except LeaderNodeFormatError as e:
            log.warning("%s: %s", self._paths.leader_path(component_id), e)
            information = EMPTY
        self._listener.on_leader_information_change(component_id, information)

    async def publish_leader_information(self, component_id: str, information: LeaderInformation) -> None:
        """Rules E4.9-E4.14. Raises StoreError, and ValueError for an address that is too long."""
        if self._closed:
            raise IllegalElectionState(f"{self} is closed")
        if not self.has_leadership:
            log.debug("%s does not lead: nothing is published for %s", self, component_id)
            return
        data = b""
        if information.address is not None and information.session_id is not None:
            data = encode_leader_node(information.address, information.session_id)
        path = self._paths.leader_path(component_id)
        with trio.CancelScope() as scope:
            self._writes.add(scope)
            try:
                await write_leader_node(self._session, path, data, lambda: self.has_leadership)
            except SessionExpired:
                log.info("%s: the session ended before %s was written", self, path)
            finally:
                self._writes.discard(scope)

    async def delete_leader_information(self, component_id: str) -> None:
        if self.has_leadership and self._session.is_connected:
            await self._session.delete_tree(self._paths.owned_path(component_id))

    async def aclose(self) -> None:
        self._closed = True
        self._unsubscribe()
        for node in self._nodes.values():
            node.close()
        await self.latch.aclose()


class ZooKeeperLeaderRetrievalDriver(LeaderRetrievalDriver):
    """Reports the leader node's content, and no leader while the connection is lost (E7.9-E7.11)."""

    def __init__(
        self,
        session: ElectionSession,
        path: str,
        handler: LeaderRetrievalEventHandler,
        *,
        tolerate_suspended_connections: bool = False,
        retry_wait_s: float = 5.0,
        decode: LeaderNodeDecoder = decode_leader_node,
    ) -> None:
        self._handler = handler
        self._tolerate = tolerate_suspended_connections
        self._decode = decode
        self._node = WatchedNode(
            session, path, on_data=self._changed, on_error=handler.on_error, retry_wait_s=retry_wait_s
        )
        self._unsubscribe = session.subscribe(self._connection_changed)
        self._node.start()

    def __str__(self) -> str:
        return f"ZooKeeperLeaderRetrievalDriver(leader at {self._node.path})"

    def _changed(self, data: bytes | None) -> None:
        try:
            information = read_leader_node(data, self._decode)
        except LeaderNodeFormatError as e:
            self._handler.on_error(e)  # the last leader stays (E8.7)
        else:
            self._handler.on_leader_information(information)

    def _connection_changed(self, state: ConnectionState) -> None:
        if state is ConnectionState.LOST or (state is ConnectionState.SUSPENDED and not self._tolerate):
            self._node.forget()
            self._handler.on_leader_information(EMPTY)

    async def aclose(self) -> None:
        self._unsubscribe()
        self._node.close()


def election_driver_factory(
    session: ElectionSession,
    paths: Paths,
    component_id: str,
    *,
    tolerate_suspended_connections: bool = False,
    retry_wait_s: float = 5.0,
) -> LeaderElectionDriverFactory:
    """Drivers that contend for ``component_id``; a shared latch ignores which component it is."""

    async def make(listener: LeaderElectionListener) -> LeaderElectionDriver:
        return ZooKeeperLeaderElectionDriver(
            session,
            paths,
            component_id,
            listener,
            tolerate_suspended_connections=tolerate_suspended_connections,
            retry_wait_s=retry_wait_s,
        )

    return make


def retrieval_driver_factory(
    session: ElectionSession,
    path: str,
    *,
    tolerate_suspended_connections: bool = False,
    retry_wait_s: float = 5.0,
    decode: LeaderNodeDecoder = decode_leader_node,
) -> LeaderRetrievalDriverFactory:
    async def make(handler: LeaderRetrievalEventHandler) -> LeaderRetrievalDriver:
        return ZooKeeperLeaderRetrievalDriver(
            session,
            path,
            handler,
            tolerate_suspended_connections=tolerate_suspended_connections,
            retry_wait_s=retry_wait_s,
            decode=decode,
        )

    return make
