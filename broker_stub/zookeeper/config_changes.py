"""Configuration that changes while nodes run: /config/brokers, and the notifications in /config/changes.

Every node listens, the controller or not (rules 1.35, 1.36); what the controller does about it is rule 11.69. Of all
that may be configured, only `unclean.leader.election.enable` matters to a controller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from controller import zk_data
from controller.events import (
    ConfigChangesNotified,
    ControllerEvent,
    TopicUncleanLeaderElectionEnabled,
    UncleanLeaderElectionEnabled,
)
from controller.kafka_zk_client import KafkaZkClient
from controller.model import BrokerId
from controller.partition_state_machine import UNCLEAN
from controller.store import Data, Delete, NoNode, SessionExpired, StoreError, value

log = logging.getLogger(__name__)

#: notifications older than this are removed by whoever sees them (rule 1.36)
CHANGE_EXPIRATION_MS = 15 * 60 * 1000


#: (kind, name, configuration) of `/config/<kind>/<name>`, where kind is "users" or "clients"
OnClientConfig = Callable[[str, str, Mapping[str, str]], None]
CLIENT_KINDS = ("users", "clients")


class ConfigChanges:
    """``static``: what the node's own properties say; the broker's entry in ZooKeeper wins over the cluster's default,
    and that over ``static``. ``put`` gives an event to the event loop; ``on_client_config`` is told what is configured
    for users and clients, at the start and when it changes, as it is of no interest to a controller."""

    def __init__(
        self,
        zk: KafkaZkClient,
        broker: BrokerId,
        *,
        static: bool,
        put: Callable[[ControllerEvent], None],
        on_client_config: OnClientConfig = lambda kind, name, config: None,
    ) -> None:
        self._on_client_config = on_client_config
        self._zk = zk
        self._broker = str(broker)
        self._static = static
        self._put = put
        self._dynamic: dict[str, bool] = {}
        self._last_executed = -1

    @property
    def unclean_leader_election_enable(self) -> bool:
        default = self._dynamic.get(zk_data.DEFAULT_ENTITY, self._static)
        return self._dynamic.get(self._broker, default)

    async def start(self) -> None:
        """Read the broker's configuration, then what has been notified, and watch for more.

        A failure is logged: the node contends all the same, under the configuration that it has.
        """
        self._zk.register_child_handler(zk_data.CONFIG_CHANGES, lambda: self._put(ConfigChangesNotified()))
        try:
            for entity in (zk_data.DEFAULT_ENTITY, self._broker):
                await self._read_broker(entity)
            await self._read_clients()
            await self.notified()
        except StoreError:
            log.exception("the configuration in ZooKeeper could not be read")

    async def notified(self) -> None:
        """Children of /config/changes: those not seen yet, in order; one that fails is logged and passed over."""
        names = [n for n in await self._zk.get_children(zk_data.CONFIG_CHANGES) if n[-10:].isdigit()]
        paths = [f"{zk_data.CONFIG_CHANGES}/{name}" for name in sorted(names, key=_number)]
        notifications = dict(zip(paths, await self._zk.get_data(paths), strict=True))
        for path, found in notifications.items():
            if _number(path) > self._last_executed and isinstance(found, Data):
                self._last_executed = _number(path)
                try:
                    await self._changed(*zk_data.decode_config_change(path, found.data))
                except zk_data.BadZNode as e:
                    log.error("a change of configuration is passed over: %s", e)
                except SessionExpired:
                    raise
                except Exception:  # the next ones are looked at all the same (rule 1.36)
                    log.exception("the change of configuration in %s could not be followed", path)
        await self._purge(notifications)

    async def _purge(self, notifications: Mapping[str, Data | StoreError]) -> None:
        oldest = self._zk.now_ms() - CHANGE_EXPIRATION_MS
        expired = [p for p, found in notifications.items() if isinstance(found, Data) and found.stat.ctime < oldest]
        for answer in await self._zk.store.write([Delete(path) for path in expired]):
            if not isinstance(answer, NoNode):  # another node was faster
                value(answer)

    async def _changed(self, entity_type: str, entity: str) -> None:
        log.info("the configuration of %s %s changed", entity_type, entity)
        if entity_type == "topics":
            config = (await self._zk.get_topic_configs([entity]))[entity]
            if isinstance(config, dict) and config.get(UNCLEAN, "").lower() == "true":
                self._put(TopicUncleanLeaderElectionEnabled(entity))
        elif entity_type in CLIENT_KINDS:
            self._on_client_config(entity_type, entity, await self._zk.get_config(entity_type, entity))
        elif entity_type == "brokers" and entity in (zk_data.DEFAULT_ENTITY, self._broker):
            was = self.unclean_leader_election_enable
            await self._read_broker(entity)
            if self.unclean_leader_election_enable and not was:
                self._put(UncleanLeaderElectionEnabled())

    async def _read_clients(self) -> None:
        """Of users and clients, and of clients of users."""
        for kind in CLIENT_KINDS:
            names = await self._zk.get_children(f"/config/{kind}", watch=False)
            if kind == "users":
                of_users = await self._zk.store.get_children([f"/config/users/{name}/clients" for name in names])
                names += [
                    f"{user}/clients/{client}"
                    for user, found in zip(list(names), of_users, strict=True)
                    if not isinstance(found, StoreError)
                    for client in found
                ]
            for name, found in zip(
                names, await self._zk.get_data([zk_data.config_path(kind, name) for name in names]), strict=True
            ):
                if isinstance(found, Data):
                    self._on_client_config(kind, name, zk_data.decode_config(found.data))

    async def _read_broker(self, entity: str) -> None:
        found = await self._zk.get_one(zk_data.broker_config_path(entity))
        text = None if found is None else zk_data.decode_config(found.data).get(UNCLEAN)
        if text is None:
            self._dynamic.pop(entity, None)
        elif text.lower() in ("true", "false"):
            self._dynamic[entity] = text.lower() == "true"
        else:
            log.error("%s=%s in %s is neither true nor false", UNCLEAN, text, zk_data.broker_config_path(entity))


def _number(path: str) -> int:
    return int(path[-10:])
