"""Paths of an election's nodes (rules E1.1-E1.6). Pure.

A layout is named after the first Flink release that has it:

    1.5    a latch and a leader node for each component, below two directories; up to 1.13
           /flink/default/leaderlatch/dispatcher_lock/       /flink/default/leader/dispatcher_lock
    1.14   latch and leader node side by side; 1.14, and 1.15 with its old services
           /flink/default/leader/dispatcher/latch/           /flink/default/leader/dispatcher/connection_info
    1.15   one latch for all components of a process; 1.15 and later
           /flink/default/leader/latch/                      /flink/default/leader/dispatcher/connection_info
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Protocol

RESOURCE_MANAGER = "resource_manager"
DISPATCHER = "dispatcher"
REST_SERVER = "rest_server"

_JOB_ID = re.compile(r"[0-9a-f]{32}")
_RELEASE = re.compile(r"(\d+)\.(\d+)(\.\d+)?")


class PathLayout(enum.Enum):
    TWO_DIRECTORIES = "1.5"
    SIDE_BY_SIDE = "1.14"
    ONE_LATCH = "1.15"

    @classmethod
    def of_release(cls, release: str) -> PathLayout:
        """The layout of a Flink release such as "1.18" or "2.0.0". Raises ValueError."""
        found = _RELEASE.fullmatch(release.strip())
        if not found:
            raise ValueError(f"{release!r} is no Flink release such as 1.13 or 1.18")
        number = (int(found[1]), int(found[2]))
        return cls.TWO_DIRECTORIES if number < (1, 14) else cls.SIDE_BY_SIDE if number < (1, 15) else cls.ONE_LATCH

    @property
    def shares_latch(self) -> bool:
        """Whether one latch serves many components."""
        return self is PathLayout.ONE_LATCH


def zookeeper_path(*parts: str) -> str:
    """The parts as one absolute path, without empty parts and superfluous slashes (E1.1)."""
    return "/" + "/".join(name for part in parts for name in part.split("/") if name)


def is_job_id(component_id: str) -> bool:
    """Whether this is a job's id: 32 lowercase hex digits (E1.4)."""
    return _JOB_ID.fullmatch(component_id) is not None


class Paths(Protocol):
    """Paths of a component's latch and leader node, and what to delete when its leader withdraws."""

    def latch_path(self, component_id: str) -> str: ...

    def leader_path(self, component_id: str) -> str: ...

    def owned_path(self, component_id: str) -> str: ...


@dataclass(frozen=True, slots=True)
class SinglePaths(Paths):
    """One election with given nodes; ``below`` puts them side by side, as in layout 1.14."""

    latch: str
    leader: str

    @classmethod
    def below(cls, path: str) -> SinglePaths:
        return cls(zookeeper_path(path, "latch"), zookeeper_path(path, "connection_info"))

    def latch_path(self, component_id: str) -> str:
        return self.latch

    def leader_path(self, component_id: str) -> str:
        return self.leader

    def owned_path(self, component_id: str) -> str:
        return self.leader


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionPaths(Paths):
    """The nodes of one cluster. ``root`` is the namespace; ``latch`` and ``leader`` are path.latch and path.leader."""

    root: str = "/flink/default"
    layout: PathLayout = PathLayout.ONE_LATCH
    latch: str = "/leaderlatch"
    leader: str = "/leader"

    def latch_path(self, component_id: str) -> str:
        """The directory of the latch in which the component contends."""
        match self.layout:
            case PathLayout.TWO_DIRECTORIES:
                return zookeeper_path(self.root, self.latch, _old_suffix(component_id))
            case PathLayout.SIDE_BY_SIDE:
                return zookeeper_path(self._component(component_id), "latch")
            case PathLayout.ONE_LATCH:
                return zookeeper_path(self.root, "leader/latch")

    def leader_path(self, component_id: str) -> str:
        """The node that holds the component's leader."""
        if self.layout is PathLayout.TWO_DIRECTORIES:
            return zookeeper_path(self.root, self.leader, _old_suffix(component_id))
        return zookeeper_path(self._component(component_id), "connection_info")

    def owned_path(self, component_id: str) -> str:
        """The node to delete when the component's leader withdraws (E6.6)."""
        if self.layout is PathLayout.ONE_LATCH:
            return self._component(component_id)
        return self.leader_path(component_id)

    def job_paths(self, job_id: str) -> list[str]:
        """Nodes that the clean-up of a job deletes (E10.8)."""
        if self.layout is PathLayout.TWO_DIRECTORIES:
            return [zookeeper_path(self.root, directory, job_id) for directory in (self.latch, self.leader)]
        return [zookeeper_path(self.root, "jobs", job_id)]

    def _component(self, component_id: str) -> str:
        if self.layout is PathLayout.SIDE_BY_SIDE and is_job_id(component_id):
            return zookeeper_path(self.root, "jobs", component_id, "leader")
        return zookeeper_path(self.root, "leader", component_id)


def _old_suffix(component_id: str) -> str:
    """E1.2."""
    return f"{component_id}/job_manager_lock" if is_job_id(component_id) else f"{component_id}_lock"
