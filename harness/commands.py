"""The commands of `kce up` and `kce proxy`, whether they come by the socket of `supervisor` or over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from kce.harness.actions import BY_NAME
from kce.harness.cluster import Cluster
from kce.harness.errors import HarnessError
from kce.harness.faults import Rule


class Target(Protocol):
    """What commands act on: a cluster, or a proxy."""

    async def add_rule(self, rule: Rule) -> None: ...
    async def remove_rule(self, rule: Rule) -> None: ...
    async def count_rule(self, rule: Rule) -> tuple[int, int]:
        """How many frames the rule has matched so far, and on how many it acted."""
        ...

    def describe(self) -> dict[str, Any]:
        """Its part of the content of `--ready-file`."""
        ...

    async def act(self, command: str, request: dict[str, Any]) -> str | None:
        """Execute a command that changes something; a sentence, or None for an unknown one. Raises HarnessError."""
        ...

    async def settle(self) -> None:
        """Wait until it is at rest. Raises HarnessError."""
        ...


class ClusterTarget:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.add_rule, self.remove_rule, self.count_rule = cluster.add_rule, cluster.remove_rule, cluster.count_rule

    def describe(self) -> dict[str, Any]:
        cluster = self._cluster
        return {
            "kind": "cluster",
            "cluster_id": cluster.cluster_id,
            "zookeeper": cluster.zookeeper,
            "bootstrap_servers": cluster.bootstrap_servers(),
            "data": str(cluster.data),
            "nodes": [
                {"id": m.id, "pid": m.pid, "state": m.state, "listeners": dict(m.addresses)} for m in cluster.members
            ],
        }

    async def act(self, command: str, request: dict[str, Any]) -> str | None:
        action = BY_NAME.get(command)
        values = None if action is None else action.values(request)
        if action is None or values is None:
            return None
        method: Callable[..., Awaitable[Any]] = getattr(self._cluster, action.call)
        result = await method(*values)
        return action.done.format_map({**request, "result": result})

    async def settle(self) -> None:
        await self._cluster.wait_until_settled()


class Commands:
    """Executes one command after the other, but waits for rest beside others: one of them may be what brings it.

    ``on_change`` is called with a sentence for each that changes something.

    ``process``: what describes this process, beside its target.
    """

    def __init__(self, target: Target, process: dict[str, Any], on_change: Callable[[str], None]) -> None:
        self._target = target
        self._on_change = on_change
        self.process = process
        self._busy = trio.Lock()
        self._faults: dict[int, Rule] = {}
        self._last_fault = 0

    def describe(self) -> dict[str, Any]:
        """The content of `--ready-file`."""
        return self.process | self._target.describe()

    async def execute(self, request: dict[str, Any]) -> dict[str, Any]:
        """``request`` has the name of the command and its arguments. Raises HarnessError."""
        result = await self._execute(request)
        if request.get("wait") and request.get("command") in BY_NAME:
            await self._target.settle()
        return result

    async def _execute(self, request: dict[str, Any]) -> dict[str, Any]:
        async with self._busy:
            match request:
                case {"command": "describe"}:
                    return self.describe()
                case {"command": "fault list"}:
                    return {"faults": {number: rule.to_json() for number, rule in self._faults.items()}}
                case {"command": "fault stats", "number": int(number)}:
                    return await self._stats(number)
                case {"command": "fault stats"}:
                    return {"faults": {number: await self._stats(number) for number in self._faults}}
                case {"command": str(command)}:
                    result = await self._act(command, request)
                    self._on_change(result["text"])
                    return result
        raise HarnessError(f"not a command: {str(request)[:200]}")

    async def _stats(self, number: int) -> dict[str, Any]:
        rule = self._fault(number)
        matched, fired = await self._target.count_rule(rule)
        return {"rule": rule.describe(), "matched": matched, "fired": fired}

    def _fault(self, number: int) -> Rule:
        if number not in self._faults:
            raise HarnessError(f"there is no fault {number}; there are {', '.join(map(str, self._faults)) or 'none'}")
        return self._faults[number]

    async def _act(self, command: str, request: dict[str, Any]) -> dict[str, Any]:
        """Execute a command that changes something; ``text`` is a sentence. Raises HarnessError."""
        match command, request:
            case "fault add", {"rule": dict(fields)}:
                rule = Rule.from_json(fields)
                await self._target.add_rule(rule)
                self._last_fault += 1
                self._faults[self._last_fault] = rule
                text = f"fault {self._last_fault} is added: {rule.describe()}"
                return {"text": text, "number": self._last_fault}
            case "fault remove", {"number": int(number)}:
                rule = self._fault(number)
                del self._faults[number]
                await self._target.remove_rule(rule)
                text = f"fault {number} is removed: matched {rule.matched}, acted on {rule.fired}"
                return {"text": text, "matched": rule.matched, "fired": rule.fired}
        done = await self._target.act(command, request)
        if done is None:
            raise HarnessError(f"not a command: {command} of {str(request)[:200]}")
        return {"text": done}
