"""Scripts of calls, of which a transcript is taken (tests/transcripts.py)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kce.zookeeper import znodes
from kce.zookeeper.model import BrokerId, Endpoint, RegisteredBroker


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def broker(number: int, rack: str | None = None, port: int = 9092, **more: Any) -> RegisteredBroker:
    endpoints = (
        Endpoint("DATA", "PLAINTEXT", "h", port + number),
        Endpoint("CONTROL", "SSL", "h", port + 1000 + number),
    )
    return RegisteredBroker(BrokerId(number), endpoints, rack, **more)


class Script:
    def __init__(self) -> None:
        self.lines: list[str] = []

    async def note(self, name: str, what: Callable[[], object]) -> Any:
        self.lines.append(f"# {name}")
        try:
            result = what()
            if inspect.isawaitable(result):
                result = await result
        except Exception as e:  # noqa: BLE001 - it is noted
            # parsers say in their own words what they cannot read
            self.lines.append(f"!! {type(e).__name__ if isinstance(e, znodes.BadZNode) else repr(e)}")
            return None
        self.lines.append(f"= {shown(result)}")
        return result


def shown(result: object) -> str:
    return f"{{{', '.join(sorted(map(repr, result)))}}}" if isinstance(result, (set, frozenset)) else repr(result)
