"""Commands over HTTP."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import trio

from kce.harness.commands import Commands
from kce.harness.errors import HarnessError
from kce.harness.faults import Rule
from kce.harness.http_api import HttpApi
from kce.harness.http_server import HttpRequest
from kce.harness.world.machine import Machine


class FakeTarget:
    """Node 1 can be killed."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.is_settling, self.is_settled = trio.Event(), trio.Event()

    async def add_rule(self, rule: Rule) -> None:
        self.rules.append(rule)

    async def remove_rule(self, rule: Rule) -> None:
        self.rules.remove(rule)

    async def count_rule(self, rule: Rule) -> tuple[int, int]:
        return 3, 2

    def describe(self) -> dict[str, Any]:
        return {"kind": "cluster"}

    async def settle(self) -> None:
        self.is_settling.set()
        await self.is_settled.wait()

    async def act(self, command: str, request: dict[str, Any]) -> str | None:
        if command == "hold":  # as of a proxy
            return None
        if command == "delete-controller":
            return "/controller is deleted"
        if request.get("topic") == "nope":
            raise HarnessError("unknown topic nope; existing topics: none")
        if command == "clock jump":
            Machine(time.sleep).jump_clock(request["seconds"])
        if command == "zookeeper kill-leader":
            raise HarnessError("ZooKeeper is no ensemble of this cluster")
        if "topic" in request or "dir" in request:
            return f"{command} {request}"
        if request.get("node") == 2:
            raise HarnessError("node 2 is not running")
        if request.get("node") != 1:
            raise HarnessError("there is no node 9 in this cluster")
        return f"node 1 is {command}ed"


class Client:
    def __init__(self) -> None:
        self.changes: list[str] = []
        self.target = FakeTarget()
        self._api = HttpApi(Commands(self.target, {"pid": 7}, self.changes.append).execute, "secret")

    async def __call__(
        self, method: str, path: str, body: object = None, *, token: str = "Bearer secret"
    ) -> tuple[int, dict[str, Any]]:
        sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await self._api(HttpRequest(method, path, {"authorization": token}, sent))
        assert response.content_type == "application/json"
        return response.status, json.loads(response.body)


async def test_nodes_and_the_controller() -> None:
    client = Client()
    assert await client("GET", "/cluster") == (200, {"pid": 7, "kind": "cluster"})
    assert await client("POST", "/nodes/1/kill") == (200, {"text": "node 1 is killed"})
    assert await client("DELETE", "/controller") == (200, {"text": "/controller is deleted"})
    assert client.changes == ["node 1 is killed", "/controller is deleted"]
    for seconds in (-3600, 0.5):
        assert await client("POST", "/nodes/1/clock/jump", {"seconds": seconds}) == (
            200, {"text": "node 1 is clock jumped"},
        )  # fmt: skip
    assert (await client("PUT", "/controller", {"node": 1}))[0] == 200


async def test_arguments_come_from_the_path_and_the_body() -> None:
    client = Client()
    client.target.is_settled.set()
    status, answer = await client("POST", "/topics/a.b/partitions/3/isr/shrink", {"broker": 2, "wait": True})
    named = {"broker": 2, "wait": True, "topic": "a.b", "partition": 3, "command": "isr shrink"}
    assert (status, answer["text"]) == (200, f"isr shrink {named}")
    status, answer = await client("POST", "/nodes/1/log-dirs/fail", {"dir": "/logs/1", "node": 9})
    named = {"dir": "/logs/1", "node": 1, "command": "log-dir fail"}
    assert (status, answer["text"]) == (200, f"log-dir fail {named}")


async def test_while_a_command_waits_for_rest_others_are_executed() -> None:
    """A rule that holds requests may be what keeps the cluster from it."""
    client = Client()
    answers: list[tuple[int, dict[str, Any]]] = []

    async def kill() -> None:
        answers.append(await client("POST", "/nodes/1/kill", {"wait": True}))

    assert (await client("POST", "/faults", {"hold": True}))[0] == 200
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        with trio.fail_after(10):
            await client.target.is_settling.wait()
            assert (await client("GET", "/cluster"))[0] == 200
            assert (await client("DELETE", "/faults/1"))[0] == 200
        assert answers == []
        client.target.is_settled.set()
    assert answers == [(200, {"text": "node 1 is killed"})]


async def test_a_fault_from_its_beginning_to_its_end() -> None:
    client = Client()
    rule = {"api": "LeaderAndIsr", "to": 2, "error": "STALE_BROKER_EPOCH"}
    status, added = await client("POST", "/faults", rule)
    assert (status, added["number"]) == (200, 1)
    assert client.target.rules[0].to == 2
    stats = {"rule": client.target.rules[0].describe(), "matched": 3, "fired": 2}
    assert await client("GET", "/faults/1") == (200, stats)
    assert await client("GET", "/faults") == (200, {"faults": {"1": stats}})
    status, removed = await client("DELETE", "/faults/1")
    assert (status, client.target.rules) == (200, [])
    assert removed["text"].startswith("fault 1 is removed")
    assert await client("GET", "/faults") == (200, {"faults": {}})
    assert (await client("DELETE", "/faults/1"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "/nodes/2/kill", None, 409, "node 2 is not running"),
        ("POST", "/nodes/9/kill", None, 404, "there is no node 9 in this cluster"),
        ("POST", "/nodes/1/hold", None, 404, "not a command: hold"),
        ("POST", "/nodes/1/explode", None, 404, "there is no /nodes/1/explode"),
        ("POST", "/nodes/x/kill", None, 404, "there is no /nodes/x/kill"),
        ("POST", "/faults", b"[" * 60_000, 400, "the body is not JSON: maximum recursion depth"),
        ("POST", f"/nodes/{'9' * 5000}/kill", None, 404, "there is no /nodes/999"),
        ("GET", f"/faults/{'9' * 5000}", None, 404, "there is no /faults/999"),
        ("POST", "/nodes/1/clock/jump", {"seconds": True}, 400, "clock jump needs node (int), seconds (float)"),
        ("PUT", "/controller", {}, 400, "rewrite-controller needs node (int)"),
        ("GET", "/nodes/1/kill", None, 405, "takes POST, not GET"),
        ("PUT", "/faults", None, 405, "takes GET, POST, not PUT"),
        ("POST", "/faults", b"{", 400, "the body is not JSON"),
        ("POST", "/faults", b"\xff", 400, "the body is not JSON"),
        ("POST", "/faults", [1], 400, "the body is not an object"),
        ("POST", "/faults", {"apo": "Fetch"}, 400, "a rule has no apo"),
        ("POST", "/faults", {"api": "Fetsch"}, 400, "Kafka has no such API"),
        ("POST", "/faults", {"delay": "long"}, 400, "must be of type int or float"),
        ("GET", "/faults/7", None, 404, "there is no fault 7; there are none"),
        ("GET", "/", None, 404, "there is no /"),
        ("POST", "/nodes/1/log-dirs/fail", None, 400, "log-dir fail needs node (int), dir (str) in the path or in"),
        (
            "POST",
            "/topics/t/partitions/0/isr/heal",
            {"broker": "2"},
            400,
            "isr heal needs topic (str), partition (int)",
        ),
        ("POST", "/topics/t/u/partitions/0/isr/heal", {"broker": 2}, 404, "there is no /topics/t/u/"),
        ("POST", "/topics/nope/partitions/0/isr/heal", {"broker": 2}, 404, "unknown topic nope"),
        ("POST", "/nodes/1/clock/jump", {"seconds": 1e300}, 400, "a clock cannot be wrong by 1e+300 s"),
        ("POST", "/zookeeper/kill-leader", None, 409, "no ensemble"),
        ("POST", "/nodes/1/kill", {"wiat": True}, 400, "kill has no wiat; it has node, wait"),
        ("POST", "/nodes/1/kill", {"command": "pause"}, 400, "kill has no command; it has node, wait"),
        ("POST", "/nodes/1/kill", {"wait": "yes"}, 400, "wait='yes': must be true or false"),
    ],
)
async def test_errors(method: str, path: str, body: object, status: int, error: str) -> None:
    found, answer = await Client()(method, path, body)
    assert found == status
    assert error in answer["error"]


@pytest.mark.parametrize("token", ["", "secret", "Bearer wrong", "Bearer secret2", "Bearer sécret"])
async def test_the_token_is_needed(token: str) -> None:
    client = Client()
    status, answer = await client("POST", "/nodes/1/kill", token=token)
    assert (status, "Bearer" in answer["error"], client.changes) == (401, True, [])
