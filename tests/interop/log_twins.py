"""Kafka's log layer and ours do the same, operation by operation, and have to leave the same files.

    python -m tests.interop.log_twins --seed 5 --runs 100 [--compact]

A run is some rounds on one log: random operations (log_rounds.py: appends of a leader and of a follower, cuts,
deletions, reads, times, passes of the cleaner), an end that is clean or not, damage to what one of them has left on its
disk (log_damage.py), and a load of copies of that by both. All answers are compared, and after a clean end all files,
byte by byte. What differs on purpose is in docs/differences.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from kce.broker_stub.log.snapshots import CorruptSnapshot, read_snapshot
from kce.harness.world.real_disk import RealDisk
from tests.interop.log_damage import Damage
from tests.interop.log_layers import Answer, Command, KafkaLogs, LogLayer, OurLogs
from tests.interop.log_rounds import PARTITION, Round, has_small_indexes, random_settings

ROUNDS: Final = 4
STEPS: Final = 60
_NOW_MS: Final = 1_700_000_000_000
#: the directory with the log; the other stays empty
_DIRECTORIES: Final = ("a", "b")
#: of no concern to a load, of others in Kafka, or written by it when it looks for a log to clean
_IGNORED: Final = frozenset(
    (".lock", ".kafka_cleanshutdown", "replication-offset-checkpoint", "cleaner-offset-checkpoint")
)
_DOES_NOT_START: Final = frozenset(("BrokerFailure", "Halted", "IllegalStateException", "CORRUPT_MESSAGE"))
#: Kafka does not start with a log that has an open transaction in a directory that is offline already, nor with bad
#: numbers in a leader-epoch-checkpoint
_WHERE_WE_ARE_OFFLINE: Final = frozenset(("KAFKA_STORAGE_ERROR", "NumberFormatException", "IllegalArgumentException"))


class Different(Exception):
    """The twins differ."""


class Twins:
    """Both layers, and what they were asked. Every method raises Different."""

    def __init__(self, kafka: LogLayer, folder: Path) -> None:
        self._layers: dict[str, LogLayer] = {"kafka": kafka, "ours": OurLogs()}
        self._folder = folder
        #: how often both went on from what one had left
        self._generation = 0
        #: directories that are not compared: Kafka goes on loading what it then leaves alone
        self._offline: frozenset[str] = frozenset()
        self.asked: list[Command] = []
        for name in self._layers:
            for directory in _DIRECTORIES:
                (self._root(name) / directory).mkdir(parents=True)
            (self._root(name) / _DIRECTORIES[0] / PARTITION).mkdir()

    def _root(self, name: str) -> Path:
        return self._folder / name / str(self._generation)

    async def ask(self, kind: str, **given: Any) -> Answer:
        command = {"do": kind, **given}
        self.asked.append(command)
        return self._same({name: await layer.ask(command) for name, layer in self._layers.items()})

    async def load(self, settings: dict[str, str], now: int, *, is_damaged: bool = False, **more: int) -> Answer:
        """``is_damaged``: where a load does not look for damage; then only where the log starts is compared."""
        command: dict[str, Any] = {"do": "load", "now": now, "settings": settings, **more}
        self.asked.append(command)
        answers = {}
        for name, layer in self._layers.items():
            answers[name] = await layer.ask({**command, "dirs": [str(self._root(name) / one) for one in _DIRECTORIES]})
        kafka, ours = answers["kafka"], answers["ours"]
        error = kafka.get("error")
        if error == "KafkaException":  # for an unknown version in a transaction index, which we make anew
            return kafka
        if error in _WHERE_WE_ARE_OFFLINE and (ours.get("offline") or has_small_indexes(settings)):
            return kafka
        if is_damaged:
            if "error" in kafka or "error" in ours:
                return {"error": "it may be read, or not"}
            for answer in answers.values():
                answer["logs"] = {name: log["start"] for name, log in answer["logs"].items()}
            return self._same(answers)
        same = self._same(answers)
        self._offline = frozenset(same.get("offline", ()))
        self.compare_files(closed=False)
        return same

    def compare_files(self, *, closed: bool) -> None:
        """``closed``: no log is in use."""
        kafka, ours = (_files(self._root(name), self._offline, closed=closed) for name in self._layers)
        if kafka != ours:
            raise Different(self._report(kafka, ours))

    def take(self, name: str, damage: Damage) -> None:
        """Both go on from what that layer has on its disk, damaged."""
        origin = self._root(name)
        self._generation += 1
        roots = [self._root(other) for other in self._layers]
        for root in roots:
            shutil.copytree(origin, root)
        self.asked.append({"do": "damage", "what": damage.to([root / _DIRECTORIES[0] for root in roots])})

    def _same(self, answers: Mapping[str, Answer]) -> Answer:
        kafka, ours = (_comparable(answers[name]) for name in self._layers)
        if kafka != ours:
            raise Different(self._report(kafka, ours))
        return answers["ours"]

    def _report(self, kafka: Answer, ours: Answer) -> str:
        said = [str({key: value for key, value in command.items() if key != "records"}) for command in self.asked]
        begin = max(i for i, command in enumerate(self.asked) if command["do"] == "load")
        damages = [text for text, command in zip(said[:begin], self.asked, strict=False) if command["do"] == "damage"]
        return "\n".join([*damages, *said[begin:], *_differences(kafka, ours, "")])


def _comparable(answer: Answer) -> Answer:
    """Texts are ours; a broker that does not start fails in one way or another."""
    plain = {key: value for key, value in answer.items() if key != "text"}
    if plain.get("error") in _DOES_NOT_START:
        plain["error"] = "does not start"
    if "failed" in plain:
        plain["failed"] = "somehow"
    if plain.get("records") == "":
        del plain["start"]  # where nothing is
    return plain


def _differences(kafka: Any, ours: Any, path: str) -> Iterator[str]:
    if isinstance(kafka, dict) and isinstance(ours, dict):
        for key in sorted({*kafka, *ours}):
            if kafka.get(key) != ours.get(key):
                yield from _differences(kafka.get(key), ours.get(key), f"{path}/{key}")
    elif kafka != ours:
        yield f"{path}: kafka {kafka!r}, ours {ours!r}"


def _files(root: Path, offline: frozenset[str], *, closed: bool) -> dict[str, Any]:
    found = {}
    for path in root.rglob("*"):
        relative = path.relative_to(root)
        if path.is_file() and path.name not in _IGNORED and relative.parts[0] not in offline:
            content = _content(path, closed=closed)
            if content is not None:
                found[str(relative)] = content
    return found


def _content(path: Path, *, closed: bool) -> object:
    """As it is compared; None for what is not, or need not be there."""
    if path.suffix == ".deleted":
        # which segments are left is known; of one that is deleted twice the second may be empty
        return "there" if path.stem.endswith(".snapshot") else None
    if path.suffix in (".index", ".timeindex") and not closed:
        return None  # Kafka makes it on first use, with room for more; ours is in memory
    data = path.read_bytes()
    if path.suffix == ".snapshot":  # in the order of a hash table
        try:
            return {str(key): list(value) for key, value in read_snapshot(RealDisk(), str(path)).items()}
        except CorruptSnapshot:
            return data.hex()
    if path.name.endswith("checkpoint"):
        return sorted(data.splitlines()) if data not in (b"", b"0\n0\n") else None
    return data.hex() if data or path.suffix != ".txnindex" else None


async def run(
    kafka: LogLayer, folder: Path, *, seed: int, compact: bool = False, rounds: int = ROUNDS, steps: int = STEPS
) -> int:
    """How many commands were asked. Raises Different."""
    chance = Random(f"{seed} {compact}")
    settings = random_settings(chance, compact=compact)
    more = {
        "dedupe": chance.choice((100, 400, 1_000_000)) if compact else 1_000_000,
        "expiration": chance.choice((86_400_000, 86_400_000, 50_000)),
    }
    twins = Twins(kafka, folder)
    played = Round(twins.ask, chance, settings, _NOW_MS)
    await twins.load(settings, played.now_ms, **more)
    for _ in range(rounds):
        await played.start()
        for _ in range(chance.randrange(steps)):
            await played.step()
        is_closed = chance.random() < 0.6
        if is_closed:
            await twins.ask("close")
            twins.compare_files(closed=True)
        damage = Damage(chance, clean=is_closed and chance.random() < 0.5)
        twins.take(chance.choice(("kafka", "ours")), damage)
        played.now_ms += 1000
        loaded = await twins.load(settings, played.now_ms, is_damaged=damage.is_lasting, **more)
        if "error" in loaded or loaded["offline"] or damage.is_lasting:
            break
    return len(twins.asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a round, at most")
    parser.add_argument("--compact", action="store_true", help="with passes of the cleaner")
    given = parser.parse_args()
    commands = different = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with KafkaLogs(folder / "kafka.log") as kafka:
            for seed in range(given.seed, given.seed + given.runs):
                one = partial(run, seed=seed, compact=given.compact, rounds=given.rounds, steps=given.steps)
                try:
                    commands += trio.run(one, kafka, folder / str(seed))
                except Different as e:
                    different += 1
                    print(f"seed {seed}: {e}\n", flush=True)
                shutil.rmtree(folder / str(seed), ignore_errors=True)
    print(f"{given.runs} runs, {commands} commands; {different} differ")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
