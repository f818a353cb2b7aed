"""Typed operations on top-level znodes, the cluster id, and registrations of brokers and the controller.

`znodes` has paths and JSON, `client` watches and fencing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable

from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import cluster_nodes
from kce.zookeeper import znodes as zd
from kce.zookeeper.client import ZkClient
from kce.zookeeper.errors import ControllerMoved, IllegalState
from kce.zookeeper.model import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EpochZkVersion,
    RegisteredBroker,
    incremented,
)
from kce.zookeeper.store import (
    BadVersion,
    Create,
    Delete,
    MetadataStore,
    MultiFailed,
    NodeExists,
    NoNode,
    Op,
    SetData,
    Stat,
    value,
)

log = logging.getLogger(__name__)


class BrokerIdInUse(Exception):
    """Another live session has registered the broker id or an endpoint (rules 1.22, 1.24)."""


def no_uuid() -> uuid.UUID:
    raise IllegalState("this client was made without new_uuid: it creates neither clusters nor topics")


class RegistrationClient(ZkClient):
    """``now_ms``: wall-clock time for timestamps in znodes. ``new_uuid`` generates cluster and topic ids."""

    def __init__(
        self, store: MetadataStore, *, now_ms: Callable[[], int], new_uuid: Callable[[], uuid.UUID] = no_uuid
    ) -> None:
        super().__init__(store)
        self.now_ms = now_ms
        self.new_uuid = new_uuid
        self._registered_session = 0

    # start-up

    async def ensure_paths(self, paths: Iterable[str]) -> None:
        """Create missing persistent nodes and their parents."""
        wanted = [zd.absolute(path) for path in paths]
        missing = [p for p, stat in zip(wanted, await self.store.exists(wanted), strict=True) if stat is None]
        levels: dict[int, dict[str, None]] = {}
        for path in missing:
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                levels.setdefault(depth, {})["/" + "/".join(parts[:depth])] = None
        for depth in sorted(levels):
            for answer in await self.store.write([Create(path) for path in levels[depth]]):
                if not isinstance(answer, NodeExists):
                    value(answer)

    async def create_top_level_paths(self) -> None:
        await self.ensure_paths(zd.TOP_LEVEL)  # rule 1.3

    async def get_or_create_cluster_id(self) -> str:
        """Rule 1.40: the loser of a race reads the winner's id."""
        if (found := await self.get_one(zd.CLUSTER_ID)) is not None:
            return cluster_nodes.decode_cluster_id(found.data)
        await self.ensure_paths(["/cluster"])
        cluster_id = zd.encode_topic_id(self.new_uuid())
        answer = (await self.store.write([Create(zd.CLUSTER_ID, cluster_nodes.encode_cluster_id(cluster_id))]))[0]
        if isinstance(answer, NodeExists):
            return await self.get_or_create_cluster_id()
        value(answer)
        return cluster_id

    # broker registration

    async def check_endpoints_free(self, broker: RegisteredBroker) -> None:
        """Raises BrokerIdInUse if another broker has registered one of our addresses (rule 1.24)."""
        ours = {(e.host, e.port) for e in broker.endpoints}
        for other, _ in (await self.get_brokers(watch=False)).values():
            for endpoint in other.endpoints:
                if other.id != broker.id and (endpoint.host, endpoint.port) in ours:
                    raise BrokerIdInUse(
                        f"{endpoint.host}:{endpoint.port} of broker {broker.id} is already registered by broker "
                        f"{other.id} in {zd.broker_path(other.id)}"
                    )

    async def register_broker(self, broker: RegisteredBroker, ibp: MetadataVersion) -> BrokerEpoch:
        """Register in the current session; returns the broker epoch (1.20-1.22). Raises BrokerIdInUse."""
        path = zd.broker_path(broker.id)
        data = zd.encode_broker(broker, ibp, self.now_ms())
        while True:
            session = self.store.session_id
            answer = (await self.store.multi([[Create(path, ephemeral=True), SetData(path, data, 0)]]))[0]
            if not isinstance(answer, MultiFailed):
                stat = answer[1]
                assert isinstance(stat, Stat)
                self._registered_session = session
                return BrokerEpoch(stat.czxid)
            if not isinstance(answer.error, NodeExists):
                raise answer.error
            found = (await self.store.exists([path]))[0]
            if found is None:
                continue
            if found.ephemeral_owner == session:
                self._registered_session = session
                return BrokerEpoch(found.czxid)
            if self._registered_session != found.ephemeral_owner:
                raise BrokerIdInUse(
                    f"broker id {broker.id} is already registered in {path} by another ZooKeeper session "
                    f"(0x{found.ephemeral_owner:x}): stop that broker, or wait until its session expires"
                )
            await self.store.write([Delete(path)])

    async def update_broker(self, broker: RegisteredBroker, ibp: MetadataVersion) -> None:
        """Rewrite the registration of this session; the broker epoch stays (rule 1.23)."""
        data = zd.encode_broker(broker, ibp, self.now_ms())
        value((await self.store.write([SetData(zd.broker_path(broker.id), data)]))[0])

    async def get_brokers(self, *, watch: bool = True) -> dict[BrokerId, tuple[RegisteredBroker, BrokerEpoch]]:
        """All registered brokers with their epochs. Logs and skips malformed registrations."""
        ids = zd.numbered(await self.get_children(zd.BROKER_IDS, watch=watch))
        brokers: dict[BrokerId, tuple[RegisteredBroker, BrokerEpoch]] = {}
        for broker_id, answer in zip(ids, await self.get_data([zd.broker_path(i) for i in ids]), strict=True):
            if isinstance(answer, NoNode):
                continue
            data = value(answer)
            try:
                brokers[BrokerId(broker_id)] = zd.decode_broker(broker_id, data.data), BrokerEpoch(data.stat.czxid)
            except zd.BadZNode as e:
                log.warning("ignoring a malformed registration: %s", e)
        return brokers

    async def get_broker(self, broker_id: int) -> RegisteredBroker | None:
        """Raises BadZNode."""
        found = await self.get_one(zd.broker_path(broker_id))
        return None if found is None else zd.decode_broker(broker_id, found.data)

    # election

    async def get_controller_id(self) -> BrokerId | None:
        found = await self.get_one(zd.CONTROLLER)
        return None if found is None else zd.decode_controller(found.data)

    async def get_controller_epoch(self) -> tuple[ControllerEpoch, EpochZkVersion] | None:
        found = await self.get_one(zd.CONTROLLER_EPOCH)
        if found is None:
            return None
        return zd.decode_controller_epoch(found.data), EpochZkVersion(found.stat.version)

    async def register_controller(self, broker: BrokerId) -> tuple[ControllerEpoch, EpochZkVersion]:
        """Claim /controller and the next epoch in one multi (rules 2.7-2.11). Raises ControllerMoved, IllegalState."""
        current = await self.get_controller_epoch()
        if current is None:
            created = Create(zd.CONTROLLER_EPOCH, zd.encode_controller_epoch(zd.INITIAL_CONTROLLER_EPOCH))
            answer = (await self.store.write([created]))[0]
            if not isinstance(answer, NodeExists):
                value(answer)
            current = await self.get_controller_epoch()
            if current is None:
                raise IllegalState(f"{zd.CONTROLLER_EPOCH} disappeared during the election")
        epoch, zk_version = ControllerEpoch(incremented(current[0])), current[1]
        claim: list[Op] = [
            Create(zd.CONTROLLER, zd.encode_controller(broker, self.now_ms()), ephemeral=True),
            SetData(zd.CONTROLLER_EPOCH, zd.encode_controller_epoch(epoch), zk_version),
        ]
        won = (await self.store.multi([claim]))[0]
        if not isinstance(won, MultiFailed):
            stat = won[1]
            assert isinstance(stat, Stat)
            return epoch, EpochZkVersion(stat.version)
        if not isinstance(won.error, (NodeExists, BadVersion)):
            raise won.error
        # the response to an earlier attempt may have been lost (2.10)
        if await self.get_controller_id() == broker:
            current = await self.get_controller_epoch()
            if current is None:
                raise IllegalState(f"{zd.CONTROLLER_EPOCH} disappeared during the election")
            if current[0] == epoch:
                return current
        raise ControllerMoved("another controller was elected")

    async def delete_controller(self, expected: EpochZkVersion) -> None:
        await self.delete([zd.CONTROLLER], expected)
