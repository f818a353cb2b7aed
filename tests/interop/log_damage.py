"""Damage to a log directory with one log, the same to several copies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from kce.wire.batch_header import read_headers
from kce.wire.errors import CorruptRecord
from tests.interop.log_rounds import PARTITION

_CHECKPOINTS: Final = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "leader-epoch-checkpoint")
_TEXTS: Final = (
    "", "0", "0\n", "0\n0\n", "1\n0\n", "x\n0\n", "0\nx\n", "0\n1\n", "0\n1\nt 0 5\n", "0\n1\nt 0\n",
    "0\n1\nt 0 x\n", "0\n1\nt 0 5", "0\n1\n3 5\n", "0\n2\n3 5\n3 7\n", "0\n2\n3 5\n2 7\n",
    "0\n2\nt 0 5\nt 0 8\n", "0\n1\nt 0 5\n\n", "0\n1\nt 0 5\nrest\n", " 0\n1\nt 0 5\n", "0\n1\nt  0  5\n",
    "0\r\n1\r\nt 0 5\r\n", "0\n1\nt\t0\t5\n", "0\n1\nt 0 99999999999999999999\n", "0\n1\nt 0 100000\n",
    "0\n1\nt 0 -3\n", "0\n1\n0 3\n", "0\n1\n-1 5\n",
)  # fmt: skip


class Damage:
    """``clean``: the broker ended well, and says so; then Kafka trusts indexes, and they are left alone."""

    def __init__(self, chance: Random, *, clean: bool) -> None:
        self._chance = chance
        self._clean = clean
        self._recovers_all = False
        #: what was damaged is not checked by a load: reading it may fail in many ways
        self.is_lasting = False

    def to(self, directories: Sequence[Path]) -> list[str]:
        """What was done to all of them."""
        chance, done = self._chance, []
        kinds: list[Callable[[Path, Random], str]] = [self._strays, self._checkpoint, self._snapshot, self._delete_file]
        kinds += [self._log_file] if self._clean else [self._log_file, self._log_file, self._index]
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            kind, seed = chance.choice(kinds), chance.random()
            (what,) = {kind(directory, Random(seed)) for directory in directories}
            done.append(what)
        for directory in directories:
            if not self._clean:
                (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
            if self._recovers_all:
                (directory / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
        return done

    def _pick(self, directory: Path, chance: Random, *suffixes: str) -> Path | None:
        found = sorted(path for path in (directory / PARTITION).iterdir() if path.suffix in suffixes)
        return chance.choice(found) if found else None

    def _change(self, path: Path, chance: Random) -> str:
        """Cut it, or change, repeat, add or zero some bytes."""
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data) + 1)
        kind = chance.choice(("flip", "add", "zeros", "zero", "double", "cut", "cut", "empty"))
        if path.suffix == ".log" and self._clean and kind in ("cut", "empty"):
            kind = "add"  # Kafka takes the log to end where its first segment begins
        if path.suffix == ".log" and kind in ("flip", "zero"):
            at = self._not_in_an_offset(bytes(data), at)
        if path.suffix == ".log" and kind == "double":
            at = self._not_before_a_batch(bytes(data), at)
        match kind:
            case "cut":
                del data[at:]
            case "flip" if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case "add":
                data += chance.randbytes(chance.choice((1, 8, 40, 80)))
            case "zeros":
                data += bytes(chance.choice((8, 12, 100)))
            case "empty":
                data.clear()
            case "zero":
                data[at : at + 8] = bytes(len(data[at : at + 8]))
            case "double":
                data += data[at:]
        path.write_bytes(data)
        return f"{kind} at {at} of {path.name}"

    def _not_in_an_offset(self, data: bytes, at: int) -> int:
        """Where Kafka meets a base offset that the segment cannot hold, it splits the segment, or does not start."""
        with suppress(CorruptRecord):
            for place, _ in read_headers(data):
                if place - 8 < at < place + 8:
                    return place + 8
        return at

    def _not_before_a_batch(self, data: bytes, at: int) -> int:
        """Kafka keeps batches that are there twice, or empties the segment."""
        with suppress(CorruptRecord):
            return at + any(place == at for place, _ in read_headers(data))
        return at

    def _log_file(self, directory: Path, chance: Random) -> str:
        path = self._pick(directory, chance, ".log")
        if path is None:
            return "no log"
        if self._clean:
            self.is_lasting = True
        else:
            self._recovers_all = True
        if chance.random() < 0.1:
            path.unlink()
            return f"no {path.name}"
        return self._change(path, chance)

    def _index(self, directory: Path, chance: Random) -> str:
        path = self._pick(directory, chance, ".index", ".timeindex", ".txnindex")
        if path is None:
            return "no index"
        self._recovers_all = True
        return self._change(path, chance)

    def _delete_file(self, directory: Path, chance: Random) -> str:
        suffixes = (".index", ".txnindex", ".snapshot", *(() if self._clean else (".timeindex",)))
        path = self._pick(directory, chance, *suffixes)
        if path is None:
            return "nothing to delete"
        if path.suffix == ".timeindex":
            self._recovers_all = True
        path.unlink()
        return f"deleted {path.name}"

    def _snapshot(self, directory: Path, chance: Random) -> str:
        path = self._pick(directory, chance, ".snapshot")
        if path is None:
            return "no snapshot"
        if chance.random() < 0.3:
            copy = path.with_name(f"{chance.choice((0, 1, 7, 30, 10**6)):020d}.snapshot")
            if copy != path:
                shutil.copy2(path, copy)
            return f"{path.name} as {copy.name}"
        return self._change(path, chance)

    def _checkpoint(self, directory: Path, chance: Random) -> str:
        name = chance.choice(_CHECKPOINTS)
        path = (directory / PARTITION if name.startswith("leader") else directory) / name
        text = chance.choice(_TEXTS)
        path.write_text(text, newline="")
        return f"{name}: {text!r}"

    def _strays(self, directory: Path, chance: Random) -> str:
        path = self._pick(directory, chance, ".log", ".index", ".timeindex", ".txnindex", ".snapshot")
        suffix = chance.choice((".deleted", ".cleaned", ".swap", ".tmp", ""))
        if path is None:
            return "no stray"
        base = path.name[:20] if suffix == ".swap" else chance.choice((path.name[:20], f"{chance.randrange(40):020d}"))
        segment = (".log", ".index", ".timeindex", ".txnindex")
        kinds = segment if suffix == ".swap" else chance.choice(((path.suffix,), (".log",), segment, (".index",)))
        made = []
        for kind in kinds:
            origin = path.with_name(path.name[:20] + kind)
            if origin.exists() and (suffix or kind != ".log"):
                stray = path.with_name(base + kind + suffix)
                if stray != origin:
                    shutil.copy2(origin, stray)
                    made.append(f"{origin.name} as {stray.name}")
        return ", ".join(made) or "no stray"
