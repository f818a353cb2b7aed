"""Follows configuration changes at run time: /config/brokers, and the notifications in /config/changes.

Every broker does, whether or not it is the controller (rules 1.35, 1.36). The broker uses the quotas of users, clients
and addresses, and its own dynamic settings; its controller `unclean.leader.election.enable` (rule 11.69).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from kce.broker_stub.zookeeper.notifications import ChangeNotifications
from kce.wire.configuration import ConfigError, Properties
from kce.zookeeper import client_configs, cluster_nodes, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import SessionExpired, SessionState, StoreError

log = logging.getLogger(__name__)


#: (kind, name, configuration) of `/config/<kind>/<name>`, where kind is one of `client_configs.KINDS`
OnClientConfig = Callable[[str, str, Mapping[str, str]], None]


#: called with the topic for which unclean election was enabled; None: every topic without its own setting
OnUncleanElectionEnabled = Callable[[str | None], None]
UNCLEAN = "unclean.leader.election.enable"


class ConfigChangeListener:
    """``static_unclean``: `unclean.leader.election.enable` in the broker's own properties.

    The broker's entry in ZooKeeper overrides the cluster's default, which overrides ``static_unclean`` (rule 7.4).

    ``on_client_config`` receives the configuration of users, clients and addresses at startup and after each change,
    ``on_broker_config`` this broker's own entries, and the cluster's defaults, which those override.
    ``run`` ends with the broker.
    """

    def __init__(
        self,
        zk: KafkaZkClient,
        broker_id: int,
        *,
        static_unclean: bool,
        on_unclean_election_enabled: OnUncleanElectionEnabled = lambda topic: None,
        on_client_config: OnClientConfig = lambda kind, name, config: None,
        on_broker_config: Callable[[Mapping[str, str], Mapping[str, str]], None] = lambda own, default: None,
        on_topic_config: Callable[[str, Mapping[str, str]], None] = lambda topic, config: None,
    ) -> None:
        self._on_unclean_election_enabled = on_unclean_election_enabled
        self._on_client_config = on_client_config
        self._on_topic_config = on_topic_config
        self._zk = zk
        self._broker = str(broker_id)
        self._static = static_unclean
        self._dynamic: dict[str, bool] = {}
        self._on_broker_config = on_broker_config
        self._broker_configs: dict[str, Mapping[str, str]] = {}
        self._notifications = ChangeNotifications(zk, znodes.CONFIG_CHANGES, self._notified, "configuration change")
        self._event = trio.Event()
        self._new_session = False

    @property
    def unclean_leader_election_enable(self) -> bool:
        default = self._dynamic.get(znodes.DEFAULT_ENTITY, self._static)
        return self._dynamic.get(self._broker, default)

    def session_changed(self, state: SessionState) -> None:
        """Call with every new state of the session, because watches end with the session."""
        if state is SessionState.ESTABLISHED:
            self._new_session = True
            self._event.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Reports started after the first read."""
        await self.read()
        task_status.started()
        while True:
            await self._event.wait()
            self._event = trio.Event()
            try:
                if self._new_session:
                    self._new_session = False
                    await self.read()
                else:
                    await self.read_notifications()
            except (StoreError, SessionExpired) as e:  # read again in the next session
                log.info("%s could not be read: %s", znodes.CONFIG_CHANGES, e)

    async def read(self) -> None:
        """Read the broker's configuration, then the notifications, and watch for more.

        A failure is logged; the broker keeps the configuration that it has.
        """
        self._zk.register_child_handler(znodes.CONFIG_CHANGES, lambda: self._event.set())
        try:
            for entity in (znodes.DEFAULT_ENTITY, self._broker):
                await self._read_broker(entity)
            await self._read_clients()
            await self.read_notifications()
        except StoreError:
            log.exception("the configuration in ZooKeeper could not be read")

    async def read_notifications(self) -> None:
        """Apply the new children of /config/changes in order; one that fails is logged and skipped."""
        await self._notifications.read()

    async def _notified(self, data: bytes) -> None:
        try:
            entity_type, entity = cluster_nodes.decode_config_change(znodes.CONFIG_CHANGES, data)
        except znodes.BadZNode as e:
            log.error("skipping a configuration change: %s", e)
        else:
            await self._changed(entity_type, entity)

    async def _changed(self, entity_type: str, entity: str) -> None:
        log.info("the configuration of %s %s changed", entity_type, entity)
        if entity_type == "topics":
            config = (await self._zk.get_topic_configs([entity]))[entity]
            if isinstance(config, dict):
                self._on_topic_config(entity, config)
            if isinstance(config, dict) and config.get(UNCLEAN, "").lower() == "true":
                self._on_unclean_election_enabled(entity)
        elif entity_type in client_configs.KINDS:
            self._on_client_config(entity_type, entity, await self._zk.get_config(entity_type, entity))
        elif entity_type == "brokers" and entity in (znodes.DEFAULT_ENTITY, self._broker):
            enabled_before = self.unclean_leader_election_enable
            await self._read_broker(entity)
            if self.unclean_leader_election_enable and not enabled_before:
                self._on_unclean_election_enabled(None)

    async def _read_clients(self) -> None:
        """Read the configuration of users, of clients, of users' clients, and of addresses."""
        for kind in client_configs.KINDS:
            for name, config in (await client_configs.read_all(self._zk, kind)).items():
                self._on_client_config(kind, name, config)

    async def _read_broker(self, entity: str) -> None:
        path = znodes.broker_config_path(entity)
        found = await self._zk.get_one(path)
        config = {} if found is None else client_configs.decoded(path, found.data)
        if config != self._broker_configs.get(entity, {}):
            self._broker_configs[entity] = config
            default, own = (self._broker_configs.get(name, {}) for name in (znodes.DEFAULT_ENTITY, self._broker))
            self._on_broker_config(own, default)
        if UNCLEAN not in config:
            self._dynamic.pop(entity, None)
        else:
            try:
                self._dynamic[entity] = Properties(config).boolean(UNCLEAN)
            except ConfigError as e:
                log.error("%s has %s", path, e)
