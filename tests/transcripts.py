"""Transcripts: all that some steps cause, line by line, compared with a file beside the tests.

A transcript says what its code does whole: each request with each field that is not empty, each operation in ZooKeeper
with its watches and its fence, each value of a state that has changed. So a test that compares it notices what nobody
thought of. A change that is meant is seen in the file's diff: ``KCE_WRITE_TRANSCRIPTS=1`` writes the files anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kce import wire
from kce.zookeeper.store import (
    OPEN_ACL,
    Acls,
    Check,
    Create,
    Delete,
    MultiFailed,
    NodeData,
    Op,
    OpResult,
    SetData,
    Stat,
    StoreError,
)
from kce.zookeeper.store.memory import MemoryStore, MemoryZooKeeper, _identity


def check(file: Path, lines: Sequence[str]) -> None:
    """Fails at the first line that is not as in the file."""
    if os.environ.get("KCE_WRITE_TRANSCRIPTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    expected = file.read_text(encoding="utf-8").split("\n")[:-1]
    for number, (now, before) in enumerate(zip_longest(lines, expected)):
        if now != before:
            since = [line for line in lines[:number] if line.startswith("# ")][-1:]
            raise AssertionError(f"{file.name}:{number + 1}, after {since}:\nnow      {now}\nexpected {before}")


def text(value: Any) -> str:
    """Plain data on one line, without what is empty, 0 or false in a struct."""
    if isinstance(value, Mapping):
        parts = [f"{name}={text(v)}" for name, v in value.items() if v is None or isinstance(v, bytes) or v]
        return f"{{{' '.join(parts)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text, value))}]"
    return value if isinstance(value, str) else repr(value)


def message(of: wire.Message, version: int) -> str:
    name = type(of).__name__
    return f"{name} {version} {text(wire.as_dict(of, version))}"


class RecordedStore(MemoryStore):
    """A session that notes its operations in ``lines``, and what failed of them, once it is given any."""

    lines: list[str] | None = None

    def _note(self, operation: str, *, of: Sequence[object], answers: Iterable[object] = ()) -> None:
        if of and self.lines is not None:
            errors = [f"{number}: {e}" for number, e in enumerate(answers) if isinstance(e, StoreError)]
            self.lines.append(f"zk {operation}{' !! ' if errors else ''}{', '.join(errors)}")

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        watched = [watch] * len(paths) if isinstance(watch, bool) else watch
        self._note(f"read {' '.join(p + '*' * w for p, w in zip(paths, watched, strict=True))}", of=paths)
        return await super().get_data(paths, watch=watch)

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        self._note(f"exists {' '.join(p + '*' * watch for p in paths)}", of=paths)
        return await super().exists(paths, watch=watch)

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        self._note(f"children {' '.join(p + '*' * watch for p in paths)}", of=paths)
        return await super().get_children(paths, watch=watch)

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        what = (
            f"write{'' if fence is None else f' if {fence.path} is {fence.version}'}: {'; '.join(map(operation, ops))}"
        )
        try:
            answers = await super().write(ops, fence=fence)
        except MultiFailed as e:
            self._note(what, of=ops, answers=[e])
            raise
        self._note(what, of=ops, answers=answers)
        return answers

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        answers = await super().multi(groups)
        self._note(
            " || ".join(f"multi: {'; '.join(map(operation, group))}" for group in groups), of=groups, answers=answers
        )
        return answers

    async def get_acl(self, paths: Sequence[str]) -> list[Acls | StoreError]:
        self._note(f"get_acl {' '.join(paths)}", of=paths)
        return await super().get_acl(paths)

    async def set_acl(self, paths: Sequence[str], acls: Acls) -> list[Stat | StoreError]:
        answers = await super().set_acl(paths, acls)
        self._note(f"set_acl {acls} {' '.join(paths)}", of=paths, answers=answers)
        return answers

    async def aclose(self) -> None:
        self._note("close", of="close")
        await super().aclose()


def operation(op: Op) -> str:
    match op:
        case Create(path, data, ephemeral, sequential, container):
            kinds = " ephemeral" * ephemeral + " sequential" * sequential + " container" * container
            return f"create{kinds} {path} {_data(data)}"
        case SetData(path, data, version):
            return f"set {path} {_data(data)} at {version}"
        case Delete(path, version):
            return f"delete {path} at {version}"
        case Check(path, version):
            return f"check {path} at {version}"


def _data(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else repr(data)


class RecordedZooKeeper(MemoryZooKeeper):
    def connect(
        self,
        *,
        session_timeout_ms: int = 6000,
        auth: Sequence[tuple[str, str]] = (),
        acls_of: Callable[[str], Acls] = lambda path: OPEN_ACL,
    ) -> RecordedStore:
        identities = frozenset(_identity(*credential) for credential in auth)
        return RecordedStore(self, next(self._sessions), session_timeout_ms, identities, acls_of)
