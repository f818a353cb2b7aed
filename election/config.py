"""Flink's ``high-availability.*`` settings that concern elections (rules E10.1, E10.9-E10.20).

Settings of storage, checkpoints and YARN are out of scope: they are accepted, and a warning says that they are ignored.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kce.election.errors import ConfigurationError
from kce.election.paths import ElectionPaths, PathLayout, zookeeper_path

log = logging.getLogger(__name__)

_HA = "high-availability"
_ZK = f"{_HA}.zookeeper"
_RECOVERY = "recovery.zookeeper"
_UNITS_MS = {"ms": 1, "s": 1000, "sec": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}


class HighAvailabilityMode(enum.Enum):
    NONE = "none"
    ZOOKEEPER = "zookeeper"
    #: the mode's text names the factory of the services
    FACTORY = "factory"

    @property
    def is_active(self) -> bool:
        return self is not HighAvailabilityMode.NONE


class AclMode(enum.Enum):
    OPEN = "open"
    CREATOR = "creator"


def _duration_ms(text: str) -> int:
    """``60000``, ``60 s``, ``1 min``: without a unit, milliseconds."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if not found or found[2] not in _UNITS_MS:
        raise ValueError("no duration such as 60000 or 60 s")
    return int(found[1]) * _UNITS_MS[found[2]]


def _boolean(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.strip().lower() not in words:
        raise ValueError("neither true nor false")
    return words[text.strip().lower()]


def _acl(text: str) -> AclMode:
    try:
        return AclMode(text.strip().lower())
    except ValueError:
        raise ValueError("neither open nor creator") from None


def _authorization(text: str) -> tuple[tuple[str, str], ...]:
    """A map of scheme to credential: ``digest:user:password,...``."""
    pairs = tuple(pair.strip().partition(":")[::2] for pair in text.split(",") if pair.strip())
    if not all(scheme and credential for scheme, credential in pairs):
        raise ValueError("not SCHEME:CREDENTIAL[,...]")
    return pairs


def _without_whitespace(text: str) -> str:
    return "".join(text.split())


#: field -> its key, the key's aliases, how its text is read
_SETTINGS: dict[str, tuple[str, tuple[str, ...], Callable[[str], Any]]] = {
    "mode_text": (f"{_HA}.type", (_HA, "recovery.mode"), str.strip),
    "cluster_id": (f"{_HA}.cluster-id", (f"{_ZK}.path.namespace", f"{_RECOVERY}.path.namespace"), str.strip),
    "quorum": (f"{_ZK}.quorum", (f"{_RECOVERY}.quorum",), _without_whitespace),
    "root": (f"{_ZK}.path.root", (f"{_RECOVERY}.path.root",), str.strip),
    "latch_path": (f"{_ZK}.path.latch", (f"{_RECOVERY}.path.latch",), str.strip),
    "leader_path": (f"{_ZK}.path.leader", (f"{_RECOVERY}.path.leader",), str.strip),
    "session_timeout_ms": (f"{_ZK}.client.session-timeout", (f"{_RECOVERY}.client.session-timeout",), _duration_ms),
    "connection_timeout_ms": (
        f"{_ZK}.client.connection-timeout", (f"{_RECOVERY}.client.connection-timeout",), _duration_ms,
    ),
    "retry_wait_ms": (f"{_ZK}.client.retry-wait", (f"{_RECOVERY}.client.retry-wait",), _duration_ms),
    "max_retry_attempts": (f"{_ZK}.client.max-retry-attempts", (f"{_RECOVERY}.client.max-retry-attempts",), int),
    "acl": (f"{_ZK}.client.acl", (), _acl),
    "tolerate_suspended_connections": (f"{_ZK}.client.tolerate-suspended-connections", (), _boolean),
    "authorization": (f"{_ZK}.client.authorization", (), _authorization),
    "layout": (f"{_ZK}.layout", (), PathLayout.of_release),
}  # fmt: skip
_OLD_SERVICES = f"{_HA}.use-old-ha-services"
_SASL_DISABLED = "zookeeper.sasl.disable"
#: what has no meaning here, and why
_CLIENT_DETAIL = "kazoo does it in its own way"
_OUT_OF_SCOPE = {
    f"{_HA}.storageDir": "nothing is stored beside the election",
    f"{_HA}.jobmanager.port": "contenders say where they are when they confirm",
    f"{_HA}.job.delay": "no jobs are recovered",
    **{
        f"{_ZK}.path.{name}": "no such nodes are kept"
        for name in ("jobgraphs", "execution-plans", "checkpoints", "checkpoint-counter", "running-registry")
    },
    f"{_ZK}.path.mesos-workers": "there is no Mesos",
    **{f"yarn.{name}": "there is no YARN" for name in ("application-attempts", "reallocate-failed")},
    "yarn.maximum-failed-containers": "there is no YARN",
    f"{_ZK}.client.ensemble-tracker": _CLIENT_DETAIL,
    f"{_ZK}.client.max-close-wait": _CLIENT_DETAIL,
    f"{_ZK}.client.simulated-session-expiration-percent": _CLIENT_DETAIL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HighAvailabilityConfig:
    """Made by ``from_properties``. ``remarks``: warnings about ignored settings."""

    mode_text: str = "NONE"
    cluster_id: str = "/default"
    quorum: str = ""
    root: str = "/flink"
    latch_path: str = "/leaderlatch"
    leader_path: str = "/leader"
    session_timeout_ms: int = 60_000
    connection_timeout_ms: int = 15_000
    retry_wait_ms: int = 5_000
    max_retry_attempts: int = 3
    acl: AclMode = AclMode.OPEN
    tolerate_suspended_connections: bool = False
    authorization: tuple[tuple[str, str], ...] = ()
    layout: PathLayout = PathLayout.ONE_LATCH
    remarks: tuple[str, ...] = ()

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> HighAvailabilityConfig:
        """Keys and values as in flink-conf.yaml. Raises ConfigurationError naming key and value."""
        values: dict[str, Any] = {}
        known = {_OLD_SERVICES, _SASL_DISABLED}
        for field, (key, aliases, read) in _SETTINGS.items():
            known.update((key, *aliases))
            name = next((name for name in (key, *aliases) if name in properties), None)
            if name is not None:
                values[field] = _read(name, properties[name], read)
        if _OLD_SERVICES in properties and "layout" not in values:
            old = _read(_OLD_SERVICES, properties[_OLD_SERVICES], _boolean)
            values["layout"] = PathLayout.SIDE_BY_SIDE if old else PathLayout.ONE_LATCH
        remarks = [f"{key} is ignored: {_OUT_OF_SCOPE[key]}" for key in properties if key in _OUT_OF_SCOPE]
        remarks += [
            f"{key} is not known, and ignored"
            for key in properties
            if key.startswith(f"{_HA}.") and key not in known and key not in _OUT_OF_SCOPE
        ]
        for remark in remarks:
            log.warning("%s", remark)
        config = cls(**values, remarks=tuple(remarks))
        config._check(properties)
        return config

    def _check(self, properties: Mapping[str, str]) -> None:
        if self.mode_text.lower() == "kubernetes":
            raise ConfigurationError(f"{_HA}.type: kubernetes is not among what this program can do")
        if self.mode is HighAvailabilityMode.ZOOKEEPER and not self.quorum:
            raise ConfigurationError(f"{_ZK}.quorum is missing: name ZooKeeper's host:port[,host:port...]")
        if self.acl is AclMode.CREATOR:  # E1.17
            disabled = _SASL_DISABLED in properties and _read(_SASL_DISABLED, properties[_SASL_DISABLED], _boolean)
            if disabled:
                raise ConfigurationError(f"{_ZK}.client.acl is creator, and {_SASL_DISABLED} is true: nobody creates")
            if not self.authorization:
                raise ConfigurationError(
                    f"{_ZK}.client.acl is creator: say who that is with {_ZK}.client.authorization, "
                    "as in digest:user:password"
                )

    @property
    def mode(self) -> HighAvailabilityMode:
        """Rule E10.1."""
        word = self.mode_text.lower()
        if word in ("none", "standalone", ""):
            return HighAvailabilityMode.NONE
        return HighAvailabilityMode.ZOOKEEPER if word == "zookeeper" else HighAvailabilityMode.FACTORY

    @property
    def paths(self) -> ElectionPaths:
        return ElectionPaths(
            root=zookeeper_path(self.root, self.cluster_id),
            layout=self.layout,
            latch=self.latch_path,
            leader=self.leader_path,
        )


def _read(key: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ValueError as e:
        raise ConfigurationError(f"{key} is {text!r}: {e}") from None
