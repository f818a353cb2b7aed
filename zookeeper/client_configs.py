"""Configurations of users, clients and addresses: `/config/users`, `/config/clients`, `/config/ips` (rule B8.9).

Names are as in paths: each URL-encoded, or `<default>`; that of a user's client is "user/clients/client".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import NodeData, StoreError

log = logging.getLogger(__name__)

KINDS: Final = ("users", "clients", "ips")


async def names(zk: KafkaZkClient, kind: str) -> list[str]:
    """Those that have a node."""
    found = await zk.get_children(f"/config/{kind}")
    if kind != "users":
        return found
    of_users = await zk.store.get_children([f"/config/users/{user}/clients" for user in found])
    clients = [
        f"{user}/clients/{client}"
        for user, children in zip(found, of_users, strict=True)
        if not isinstance(children, StoreError)
        for client in children
    ]
    return found + clients


async def read_all(zk: KafkaZkClient, kind: str) -> dict[str, dict[str, str]]:
    """Name -> configuration. Malformed content is logged, and means no configuration."""
    configs = {}
    listed = await names(zk, kind)
    for name, found in zip(listed, await zk.get_data([znodes.config_path(kind, name) for name in listed]), strict=True):
        if isinstance(found, NodeData):
            configs[name] = decoded(znodes.config_path(kind, name), found.data)
    return configs


def decoded(path: str, data: bytes) -> dict[str, str]:
    try:
        return cluster_nodes.decode_config(path, data)
    except znodes.BadZNode as e:
        log.error("ignoring a configuration: %s", e)
        return {}


async def change(zk: KafkaZkClient, kind: str, name: str, config: Mapping[str, str]) -> None:
    """Replace a configuration, or delete the node of one that is empty now, and notify every broker (rule B8.15).

    Raises ControllerMoved.
    """
    if not config and (path := await _empty(zk, kind, name)) is not None:
        await zk.delete_path(path)
        await zk.notify_config_change(kind, name)
        return
    await zk.change_config(kind, name, config)


async def _empty(zk: KafkaZkClient, kind: str, name: str) -> str | None:
    """The highest node that has nothing but this entity, which has no configuration; None if others are below it."""
    path = znodes.config_path(kind, name)
    if await zk.get_children(path):
        return None
    user, _, client = name.partition("/clients/")
    if not client:
        return path
    clients = znodes.config_path(kind, f"{user}/clients")
    if await zk.get_children(clients) != [client]:
        return path
    of_user = znodes.config_path(kind, user)
    alone = not await zk.get_config(kind, user) and await zk.get_children(of_user) == ["clients"]
    return of_user if alone else clients
