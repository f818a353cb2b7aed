"""What a cluster had when it started, and gets again by `Cluster.reset`: settings, ACLs, tokens, a controller epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kce.zookeeper import client_configs, security_nodes, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.security_nodes import AccessControlEntry, PatternType, ResourcePattern

_KINDS = (*client_configs.KINDS, "brokers")


@dataclass(frozen=True, slots=True)
class Original:
    """``configs`` by kind and name; those of topics end with their topics. ``tokens`` are ids."""

    configs: dict[tuple[str, str], dict[str, str]]
    acls: dict[ResourcePattern, frozenset[AccessControlEntry]]
    tokens: frozenset[str]

    @classmethod
    async def read(cls, zk: KafkaZkClient) -> Self:
        configs = {
            (kind, name): config
            for kind in _KINDS
            for name, config in (await client_configs.read_all(zk, kind)).items()
        }  # fmt: skip
        resources = [found for pattern in PatternType for found in await security_nodes.get_resources(zk, pattern)]
        acls = {resource: (await security_nodes.get_acls(zk, resource)).acls for resource in resources}
        return cls(configs, acls, frozenset(await zk.get_children(security_nodes.TOKENS)))

    async def restore(self, zk: KafkaZkClient) -> None:
        """And tell the brokers. A token that was deleted since does not come back. Raises ControllerMoved."""
        now = await self.read(zk)
        for kind, name in sorted(now.configs.keys() | self.configs.keys(), reverse=True):  # of a user's clients first
            config = self.configs.get((kind, name), {})
            if now.configs.get((kind, name)) != (config if (kind, name) in self.configs else None):
                await client_configs.change(zk, kind, name, config)
        for resource in now.acls.keys() | self.acls.keys():
            if now.acls.get(resource) != self.acls.get(resource):
                await self._restore_acls(zk, resource)
        for token in now.tokens - self.tokens:
            await security_nodes.delete_token(zk, token)
            await security_nodes.notify_token_change(zk, token)

    async def _restore_acls(self, zk: KafkaZkClient, resource: ResourcePattern) -> None:
        await security_nodes.delete_acls(zk, resource)
        if (acls := self.acls.get(resource)) is not None:
            await zk.set_or_create(resource.path, security_nodes.encode_acls(acls))
        await security_nodes.notify_acl_change(zk, resource)


async def raise_epoch(zk: KafkaZkClient, least: int) -> None:
    """Let `/controller_epoch` be at least this, so that brokers obey the next controller."""
    found = await zk.get_controller_epoch()
    if found is None or found[0] < least:
        await zk.set_or_create(znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(least))
