"""Who there is, as typed operations on ZooKeeper: top-level nodes, the cluster's id, brokers and the controller.

Paths and JSON are `zk_data`'s, watches and fencing `zk_client`'s.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable

from controller import zk_data as zd
from controller.errors import ControllerMoved, IllegalState
from controller.model import Broker, BrokerEpoch, BrokerId, ControllerEpoch, EpochZkVersion
from controller.store import (
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
from controller.zk_client import ZkClient
from wire.metadata_version import MetadataVersion

log = logging.getLogger(__name__)


class BrokerIdInUse(Exception):
    """Another live session has registered that broker id, or those endpoints (rules 1.22, 1.24)."""


class RegistrationClient(ZkClient):
    """``now_ms`` is wall-clock time for the timestamps in nodes; ``new_uuid`` makes cluster and topic ids."""

    def __init__(
        self, store: MetadataStore, *, now_ms: Callable[[], int], new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    ) -> None:
        super().__init__(store)
        self.now_ms = now_ms
        self.new_uuid = new_uuid
        self._registered_session = 0

    # start-up

    async def ensure_paths(self, paths: Iterable[str]) -> None:
        """Make persistent nodes, parents included; those that exist are left alone."""
        wanted = list(paths)
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

    async def make_top_level_paths(self) -> None:
        await self.ensure_paths(zd.TOP_LEVEL)  # rule 1.3

    async def get_or_create_cluster_id(self) -> str:
        """Rule 1.40: who loses the race reads the winner's."""
        if (found := await self.get_one(zd.CLUSTER_ID)) is not None:
            return zd.decode_cluster_id(found.data)
        await self.ensure_paths(["/cluster"])
        made = zd.encode_topic_id(self.new_uuid())
        answer = (await self.store.write([Create(zd.CLUSTER_ID, zd.encode_cluster_id(made))]))[0]
        if isinstance(answer, NodeExists):
            return await self.get_or_create_cluster_id()
        value(answer)
        return made

    # broker registration

    async def check_endpoints_free(self, broker: Broker) -> None:
        """Rule 1.24. Raises BrokerIdInUse when another broker has registered one of our addresses."""
        ours = {(e.host, e.port) for e in broker.endpoints}
        for other, _ in (await self.get_brokers(watch=False)).values():
            for endpoint in other.endpoints:
                if other.id != broker.id and (endpoint.host, endpoint.port) in ours:
                    raise BrokerIdInUse(
                        f"{endpoint.host}:{endpoint.port} of broker {broker.id} is already registered by broker "
                        f"{other.id} in {zd.broker_path(other.id)}"
                    )

    async def register_broker(self, broker: Broker, ibp: MetadataVersion) -> BrokerEpoch:
        """Register under the current session and return the broker epoch (1.20-1.22). Raises BrokerIdInUse."""
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
                    f"(0x{found.ephemeral_owner:x}): stop that broker, or wait until its session has expired"
                )
            await self.store.write([Delete(path)])

    async def get_brokers(self, *, watch: bool = True) -> dict[BrokerId, tuple[Broker, BrokerEpoch]]:
        """Every registered broker with its epoch; unreadable registrations are left out with a warning."""
        ids = [int(name) for name in await self.get_children(zd.BROKER_IDS, watch=watch) if name.isdigit()]
        brokers: dict[BrokerId, tuple[Broker, BrokerEpoch]] = {}
        for broker_id, answer in zip(ids, await self.get_data([zd.broker_path(i) for i in ids]), strict=True):
            if isinstance(answer, NoNode):
                continue
            data = value(answer)
            try:
                brokers[BrokerId(broker_id)] = zd.decode_broker(broker_id, data.data), BrokerEpoch(data.stat.czxid)
            except zd.BadZNode as e:
                log.warning("left out of the brokers: %s", e)
        return brokers

    async def get_broker(self, broker_id: int) -> Broker | None:
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
        """Win /controller and the next epoch in one multi (rules 2.7-2.11). Raises ControllerMoved, IllegalState."""
        current = await self.get_controller_epoch()
        if current is None:
            created = Create(zd.CONTROLLER_EPOCH, zd.encode_controller_epoch(zd.INITIAL_CONTROLLER_EPOCH))
            answer = (await self.store.write([created]))[0]
            if not isinstance(answer, NodeExists):
                value(answer)
            current = await self.get_controller_epoch()
            if current is None:
                raise IllegalState(f"{zd.CONTROLLER_EPOCH} vanished during the election")
        epoch, zk_version = ControllerEpoch(current[0] + 1), current[1]
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
        # the answer to an earlier attempt may have been lost (2.10)
        if await self.get_controller_id() == broker:
            current = await self.get_controller_epoch()
            if current is None:
                raise IllegalState(f"{zd.CONTROLLER_EPOCH} vanished during the election")
            if current[0] == epoch:
                return current
        raise ControllerMoved("another controller was elected")

    async def register_kraft_controller(
        self, controller: BrokerId, kraft_epoch: int
    ) -> tuple[ControllerEpoch, EpochZkVersion] | None:
        """Take /controller for a KRaft controller in migration, whoever holds it (rule 2.34).

        The node is persistent, so that no broker claims it (1.11). None when another took it meanwhile. Raises
        ControllerMoved when a KRaft controller of that epoch or a later one holds it, IllegalState without an epoch.
        """
        current = await self.get_controller_epoch()
        held = await self.get_one(zd.CONTROLLER)
        if held is not None and (found := zd.kraft_controller_epoch(held.data)) >= kraft_epoch:
            raise ControllerMoved(f"a KRaft controller of epoch {found} holds {zd.CONTROLLER}: not for {kraft_epoch}")
        if current is None:
            raise IllegalState(f"there is no {zd.CONTROLLER_EPOCH}: no ZooKeeper controller was ever elected")
        epoch = ControllerEpoch(current[0] + 1)
        claim: list[Op] = [
            SetData(zd.CONTROLLER_EPOCH, zd.encode_controller_epoch(epoch), current[1]),
            *([] if held is None else [Delete(zd.CONTROLLER, held.stat.version)]),
            Create(zd.CONTROLLER, zd.encode_controller(controller, self.now_ms(), kraft_epoch)),
        ]
        won = (await self.store.multi([claim]))[0]
        if isinstance(won, MultiFailed):
            if isinstance(won.error, (BadVersion, NoNode, NodeExists)):
                return None
            raise won.error
        stat = won[0]
        assert isinstance(stat, Stat)
        return epoch, EpochZkVersion(stat.version)

    async def delete_controller(self, expected: EpochZkVersion) -> None:
        await self.delete([zd.CONTROLLER], expected)
