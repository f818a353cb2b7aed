"""Random limits of connections, which both twins must enforce alike.

    python -m tests.interop.connection_twins --seed 5 --steps 300

Clients connect from many addresses and leave, while limits change: those of an address, of the listener and of the
broker, and the rates at which connections may be made. A connection is served, closed, or waits.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from kce import wire
from tests.interop.quota_requests import IP, alteration
from tests.interop.quota_twins import until_known
from tests.interop.twin import Twin, differences
from tests.interop.twins import clusters, command, finish

_WINDOW_S: Final = 2
SETTINGS: Final = {"quota.window.num": "2", "quota.window.size.seconds": str(_WINDOW_S)}
_ADDRESSES: Final = tuple(f"127.0.0.{i}" for i in range(2, 6))
_SERVED, _CLOSED, _WAITS = "served", "closed", "waits"
#: a connection that is neither served nor closed within that waits
_WAITS_S: Final = 0.25
#: if one of the twins has told, the other has so much longer
_LONGER_S: Final = 3.0
#: how often a difference is looked at again: that a client has left becomes known some time later
_ATTEMPTS: Final = 4
_PER_IP, _OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"
_MOST, _RATE = "max.connections", "max.connection.creation.rate"
_OF_LISTENER: Final = "listener.name.data."
_COUNTS: Final = (0, 1, 2, 2, 3, 3, 4, 4, 6, 10)
_ODD: Final = ("-1", "", "x", "1.5", "2147483648")
_ODD_OVERRIDES: Final = ("127.0.0.2", "127.0.0.2:x", ":3", "127.0.0.2:-1", "127.0.0.2:1,,127.0.0.3:2", "127.0.0.2:1:2")
_MANY: Final = "100000"
_BROKER: Final = 4
_SET, _DELETE = 0, 1
_MOST_OPEN: Final = 12
_ENOUGH: Final = 5


class Connection:
    """Of a client to both brokers, which has asked something."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.streams: list[trio.SocketStream] = []
        self.states: list[str] = []

    async def open(self, both: Sequence[Twin]) -> None:
        request = wire.frame(
            wire.encode_request(wire.ApiVersionsRequest(), api_version=0, correlation_id=1, client_id="c")
        )
        for twin in both:
            made = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            await made.bind((self.address, 0))
            await made.connect(twin._address)
            self.streams.append(trio.SocketStream(made))
            self.states.append(_WAITS)
            try:
                await self.streams[-1].send_all(request)
            except trio.BrokenResourceError:
                self.states[-1] = _CLOSED

    async def close(self) -> None:
        for stream in self.streams:
            await trio.aclose_forcefully(stream)


async def settle(connections: Sequence[Connection]) -> None:
    """See what has become of those that wait."""
    waiting = [(one, i) for one in connections for i, state in enumerate(one.states) if state == _WAITS]
    if not waiting:
        return
    async with trio.open_nursery() as nursery:

        async def look(one: Connection, i: int) -> None:
            try:
                one.states[i] = _SERVED if await one.streams[i].receive_some() else _CLOSED
            except trio.BrokenResourceError:
                one.states[i] = _CLOSED
            is_over = all(len(set(each.states)) == 1 for each, _ in waiting)
            nursery.cancel_scope.deadline = trio.current_time() + (_WAITS_S if is_over else _LONGER_S)

        nursery.cancel_scope.deadline = trio.current_time() + _WAITS_S
        for one, i in waiting:
            nursery.start_soon(look, one, i)


class Run:
    """Takes random steps with both."""

    def __init__(self, both: Sequence[Twin], random: Random) -> None:
        self._both = both
        self._random = random
        self._open: list[Connection] = []
        self._changes = 0
        self._fresh = 0
        #: connections a second by address
        self._rates: dict[str | None, float | None] = {}

    async def step(self) -> tuple[str, list[str]]:
        """What it was, and how the twins differ."""
        kinds: dict[Callable[[], Any], float] = {
            self._connect: 10, self._leave: 7, self._limit: 4, self._limit_address: 2, self._burst: 0.7,
            self._slow_down: 0.3,
        }  # fmt: skip
        if len(self._open) >= _MOST_OPEN:
            kinds[self._connect] = 0
        found: tuple[str, list[str]] = await self._random.choices(list(kinds), list(kinds.values()))[0]()
        return found

    async def end(self) -> None:
        for one in self._open:
            await one.close()

    async def _connect(self) -> tuple[str, list[str]]:
        address = self._random.choice(_ADDRESSES)
        for attempt in range(_ATTEMPTS):
            one = Connection(address)
            await one.open(self._both)
            await settle([one])
            if one.states[0] == one.states[1]:
                break
            if attempt < _ATTEMPTS - 1:
                await one.close()
                await trio.sleep(0.1 * (attempt + 1))
        if one.states[0] == _CLOSED or self._rates.get(address, self._rates.get(None)) == 0:
            await one.close()  # what is throttled is closed some time later
        else:
            self._open.append(one)
        return f"connect from {address}: {one.states[0]}", _different([one])

    async def _leave(self) -> tuple[str, list[str]]:
        served = [one for one in self._open if one.states[0] == _SERVED]
        if not self._open:
            return "nobody leaves", []
        one = self._random.choice(served if served and self._random.random() < 0.8 else self._open)
        self._open.remove(one)
        await one.close()
        return f"leave from {one.address}", await self._differences()

    async def _differences(self) -> list[str]:
        """Of all that are open; those that are closed now go."""
        for _ in range(_ATTEMPTS):
            await settle(self._open)
            if not (found := _different(self._open)):
                break
        for one in [one for one in self._open if _CLOSED in one.states]:
            self._open.remove(one)
            await one.close()
        return found

    async def _limit(self) -> tuple[str, list[str]]:
        random = self._random
        name = random.choice(
            [_PER_IP, _PER_IP, _OVERRIDES, _OVERRIDES, _MOST, _OF_LISTENER + _MOST, _OF_LISTENER + _MOST]
        )
        value = str(random.choice(_COUNTS)) if random.random() < 0.8 else random.choice(_ODD)
        if name == _OVERRIDES:
            named = random.sample([*_ADDRESSES, "localhost"], 2)
            value = ",".join(f"{host}:{random.choice(_COUNTS)}" for host in named)
            value = value if random.random() < 0.8 else random.choice(_ODD_OVERRIDES)
        node = "1" if name.startswith(_OF_LISTENER) else random.choice(["1", ""])
        return await self._set(name, None if random.random() < 0.35 else value, node)

    async def _set(self, name: str, value: str | None, node: str) -> tuple[str, list[str]]:
        change = wire.IncrementalAlterConfigsRequestAlterableConfig(
            name=name, config_operation=_DELETE if value is None else _SET, value=value
        )
        resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=_BROKER, resource_name=node, configs=(change,)
        )
        request = wire.IncrementalAlterConfigsRequest(resources=(resource,))
        found = await self._change(request, 1)
        return f"{name}={value} of {node!r}", found + await self._differences()

    async def _change(self, request: wire.Message, version: int) -> list[str]:
        self._changes += 1
        answers = []
        for twin in self._both:
            answers.append(twin.comparable(await twin.ask(request, version)))
            await until_known(twin, self._changes)
        return list(differences(*answers))

    async def _limit_address(self) -> tuple[str, list[str]]:
        """To nothing, or so that it does not matter."""
        random = self._random
        address = random.choice([None, *_ADDRESSES, "localhost", "::1", "x y", ""])
        rate = random.choice([0.0, 1e6, None, None, 1.5, -1.0])
        found = await self._quota({address: rate})
        return f"{rate} a second from {address}", found

    async def _quota(self, rates: Mapping[str | None, float | None]) -> list[str]:
        for address, rate in rates.items():
            if rate is None or (rate >= 0 and rate.is_integer()):
                self._rates["127.0.0.1" if address == "localhost" else address] = rate
        self._rates = {address: rate for address, rate in self._rates.items() if rate is not None}
        quotas: list[Any] = [({IP: address}, {"connection_creation_rate": rate}) for address, rate in rates.items()]
        return await self._change(alteration(quotas), 1)

    async def _free(self) -> None:
        """Without limits, and nobody is there."""
        for name in (_PER_IP, _OVERRIDES, _MOST):
            for node in ("1", ""):
                change = wire.IncrementalAlterConfigsRequestAlterableConfig(name=name, config_operation=_DELETE)
                listeners = wire.IncrementalAlterConfigsRequestAlterableConfig(
                    name=_OF_LISTENER + name, config_operation=_DELETE
                )
                resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
                    resource_type=_BROKER, resource_name=node,
                    configs=(change, listeners) if node and name == _MOST else (change,),
                )  # fmt: skip
                assert not await self._change(wire.IncrementalAlterConfigsRequest(resources=(resource,)), 1)
        while self._open:
            await self._open.pop().close()

    async def _burst(self) -> tuple[str, list[str]]:
        """Of an address that nobody had."""
        await self._free()
        for _ in range(_ATTEMPTS):
            self._fresh += 1
            address = f"127.1.{self._fresh // 250}.{self._fresh % 250 + 1}"
            rate = self._random.choice([1.0, 2.0, 3.0])
            await self._quota({address: rate})
            made = [Connection(address) for _ in range(int(rate) * _WINDOW_S + 2)]
            for one in made:
                await one.open(self._both)
            await settle(made)
            found = _different(made)
            for one in made:
                await one.close()
            if not found:
                break
        return f"{len(made)} from {address} at {rate} a second: {[one.states[0] for one in made]}", found

    async def _slow_down(self) -> tuple[str, list[str]]:
        """After many connections no more may be made in a window, and then they may again."""
        await self._free()
        await self._quota(dict.fromkeys([None, *_ADDRESSES]))
        name = self._random.choice(["", _OF_LISTENER]) + _RATE
        made = [Connection(_ADDRESSES[0]) for _ in range(3 * _WINDOW_S + 2)]
        for one in made[1:]:
            await one.open(self._both)
        await settle(made[1:])
        rate = self._random.choice(["1", "1", _MANY])
        _, found = await self._set(name, rate, "1")
        await made[0].open(self._both)
        await settle(made)
        found += _different(made)
        states = [one.states[0] for one in made]
        _, more = await self._set(name, None, "1")
        with trio.fail_after(_WINDOW_S * 4):
            while any(_WAITS in one.states for one in made):
                await settle(made)
        for one in made:
            await one.close()
        return f"{name}={rate}, then {states}", found + more + _different(made)


def _different(connections: Sequence[Connection]) -> list[str]:
    return [
        f"from {one.address}: Kafka's {one.states[0]}, ours {one.states[1]}"
        for one in connections
        if one.states[0] != one.states[1]
    ]


async def run(folder: Path, *, seed: int, steps: int) -> list[str]:
    """A report on each step that ends differently."""
    reports: list[str] = []
    async with clusters(folder, SETTINGS) as (kafka, _, cluster):
        both = Twin("Kafka", kafka.address, "nowhere"), Twin("ours", cluster.bootstrap_servers(), "nowhere")
        steps_taken = Run(both, Random(seed))
        try:
            for number in range(steps):
                what, found = await steps_taken.step()
                if found:
                    reports.append("\n    ".join([f"seed {seed}, step {number}: {what}", *found]))
                    if len(reports) == _ENOUGH:
                        break
        finally:
            await steps_taken.end()
            for twin in both:
                await twin.disconnect()
    return reports


def main() -> int:
    arguments = command("python -m tests.interop.connection_twins", __doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), seed=arguments.seed, steps=arguments.steps))
    return finish(reports, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
