"""Two log layers that answer the same commands: Kafka's own classes in a JVM (java/Logs.java), and ours."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Protocol, Self
from unittest import mock

from kce.broker_stub.disk import content
from kce.broker_stub.errors import ApiException, BrokerFailure
from kce.broker_stub.log import Isolation, Log, LogConfig, Origin, UnexpectedOffset
from kce.broker_stub.log import cleaner as cleaning
from kce.broker_stub.log.cleaner import Cleanable, Cleaner
from kce.broker_stub.log.compaction import NO_OFFSET, Compaction
from kce.broker_stub.log.directory import LogDirectory
from kce.broker_stub.log.lookup import MAX_TIMESTAMP, find_max_timestamp, find_timestamp
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.broker_stub.log.names import CLEANER_OFFSET_CHECKPOINT
from kce.harness.world.real_disk import RealDisk
from kce.wire.errors import CorruptRecord
from kce.wire.vocabulary import TopicPartition
from tests.interop.kafka_java import kafka_java

Command = Mapping[str, Any]
Answer = dict[str, Any]

_TIMEOUT_S: Final = 60
_ISOLATIONS: Final = {
    "LOG_END": Isolation.LOG_END, "HIGH_WATERMARK": Isolation.HIGH_WATERMARK, "TXN_COMMITTED": Isolation.COMMITTED,
}  # fmt: skip
_ORIGINS: Final = {"CLIENT": Origin.CLIENT, "COORDINATOR": Origin.COORDINATOR}


class LogLayer(Protocol):
    """``error`` in an answer: the code that a client would get, or the name of an exception."""

    async def ask(self, command: Command) -> Answer: ...


class KafkaLogs:
    """Kafka's log layer, in a JVM of its own: a ``with`` block. An answer blocks whoever asks."""

    def __init__(self, log: Path) -> None:
        """``log``: what Kafka logs is written there."""
        self._log = log

    def __enter__(self) -> Self:
        command = [*kafka_java("-Xmx192m", "-ea"), str(Path(__file__).parent / "java" / "Logs.java")]
        with self._log.open("wb") as log:
            self._jvm = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, process_group=0
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._jvm:
            self._jvm.kill()

    async def ask(self, command: Command) -> Answer:
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        too_long = threading.Timer(_TIMEOUT_S, self._jvm.kill)
        too_long.start()
        try:
            self._jvm.stdin.write(json.dumps(command).encode() + b"\n")
            self._jvm.stdin.flush()
            line = self._jvm.stdout.readline()
        finally:
            too_long.cancel()
        assert line, f"{command} ended the JVM, or took {_TIMEOUT_S} s: {self._log}"
        answer: Answer = json.loads(line)
        return answer


class OurLogs:
    """Our log layer. What differs on purpose in compactions is as in Kafka: the last batch of a pass may go."""

    def __init__(self) -> None:
        self._manager: LogManager | None = None
        self._log: Log | None = None
        self._now_ms = 0

    async def ask(self, command: Command) -> Answer:
        try:
            answer = await self._answer(**{key.replace("do", "kind"): value for key, value in command.items()})
        except UnexpectedOffset:
            return {"error": "UnexpectedAppendOffsetException"}
        except ApiException as e:
            return {"error": e.code.name, "text": str(e)}
        except CorruptRecord as e:
            return {"error": "CORRUPT_MESSAGE", "text": str(e)}
        except BrokerFailure as e:
            return {"error": "BrokerFailure", "text": str(e)}
        finally:
            await self._do_due()
        return answer

    @property
    def manager(self) -> LogManager:
        assert self._manager is not None
        return self._manager

    @property
    def log(self) -> Log:
        assert self._log is not None
        return self._log

    async def _do_due(self) -> None:
        """What `LogManager.run` would do."""
        for directory in self.manager.online:
            await directory.flush_due()
            directory.delete_due()

    async def _answer(self, kind: str, **given: Any) -> Answer:
        match kind:
            case "load":
                return await self._load(**given)
            case "use":
                topic, _, number = given["partition"].rpartition("-")
                self._log = self.manager.logs[TopicPartition(topic, int(number))]
            case "advance":
                self._now_ms += given["ms"]
            case "append":
                origin = _ORIGINS[given["origin"]]
                done = self.log.append_as_leader(_bytes(given), given["epoch"], origin=origin)
                return {"first": done.first_offset, "last": done.last_offset}
            case "follow":
                done = self.log.append_as_follower(_bytes(given), given["epoch"])
                return {"first": done.first_offset, "last": done.last_offset}
            case "high_watermark":
                return {"offset": self.log.set_high_watermark(given["offset"])}
            case "truncate":
                return {"done": self.log.truncate_to(given["offset"])}
            case "truncate_fully":
                self.log.truncate_fully(given["offset"])
            case "start":
                return {"done": self.log.increment_log_start_offset(given["offset"])}
            case "roll":
                self.log.roll()
            case "flush":
                self.log.flush()
            case "retain":
                return {"count": self.log.delete_old_segments()}
            case "expire":
                self.log.remove_expired_producers()
            case "timestamp":
                timestamp = given["timestamp"]
                found = (
                    find_max_timestamp(self.log) if timestamp == MAX_TIMESTAMP else find_timestamp(self.log, timestamp)
                )
                return {"found": None if found is None else list(found)}
            case "read":
                return self._read(**given)
            case "state":
                return state(self.log)
            case "clean":
                return await self._clean()
            case "close":
                self.manager.close()
            case _:
                raise ValueError(kind)
        return {}

    async def _load(self, dirs: list[str], now: int, settings: dict[str, str], dedupe: int, expiration: int) -> Answer:
        if self._manager is not None:
            self._manager.abandon()
        self._now_ms = now
        config = LogManagerConfig.of({"producer.id.expiration.ms": str(expiration)})
        topic = LogConfig.of(settings)
        self._manager = LogManager(
            RealDisk(), dirs, config, now_ms=lambda: self._now_ms, random=Random(1), config_of=lambda _: topic
        )
        self._log = None
        self._manager._cleaner = _Cleaner(self._manager.logs, lambda: self._now_ms, dedupe)
        await self._manager.load()
        logs = {*self._manager.logs.values(), *self._manager.future.logs.values()}
        offline = [Path(directory.path).name for directory in self._manager.directories if directory.is_offline]
        return {"offline": offline, "logs": {"/".join(Path(log.folder).parts[-2:]): state(log) for log in logs}}

    def _read(self, offset: int, bytes: int, isolation: str, *, one: bool) -> Answer:
        read = self.log.read(offset, bytes, _ISOLATIONS[isolation], at_least_one=one)
        return {
            "start": list(read.start),
            "records": base64.b64encode(content(read.records)).decode(),
            "incomplete": read.is_incomplete,
            "aborted": [[found.producer_id, found.first_offset] for found in read.aborted],
        }

    async def _clean(self) -> Answer:
        def as_kafka(*given: Any, **more: Any) -> Compaction:
            return Compaction(*given[:5], NO_OFFSET, **more)

        cleaner = self.manager._cleaner
        assert isinstance(cleaner, _Cleaner)
        with mock.patch.object(cleaning, "Compaction", as_kafka):
            cleaned = await cleaner.clean_next()
        if cleaned is None:
            return {}
        directory, one = cleaned.context, cleaner.found[cleaned]
        assert isinstance(directory, LogDirectory)
        assert one is not None
        directory.write_checkpoint(CLEANER_OFFSET_CHECKPOINT, self.manager._cleaned_in(directory))
        answer: Answer = {
            "partition": str(cleaned.partition),
            "range": [one.first_dirty, one.end],
            "bytes": [one.clean_bytes, one.dirty_bytes],
            "end": cleaner.ends.get(cleaned.partition),
        }
        return answer | ({"failed": ""} if cleaned.partition in cleaner._uncleanable else {})


class _Cleaner(Cleaner):
    """``found``: of each log that was looked at, what may be compacted."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.found: dict[Log, Cleanable | None] = {}

    def _cleanable(self, found: Log) -> Cleanable | None:
        self.found[found] = super()._cleanable(found)
        return self.found[found]


def _bytes(given: Mapping[str, Any]) -> bytes:
    return base64.b64decode(given["records"])


def state(log: Log) -> Answer:
    """All that can be asked of a log."""
    return {
        "start": log.log_start_offset,
        "end": log.log_end_offset,
        "recovery": log.recovery_point,
        "high_watermark": log.high_watermark,
        "stable": log.last_stable_offset,
        "topic_id": None if log.topic_id is None else _text(log.topic_id),
        "epochs": [list(entry) for entry in log.leader_epochs],
        "segments": [
            [
                segment.base_offset, segment.size, segment.max_timestamp.timestamp,
                [list(one) for one in segment.txn_index.transactions],
            ]
            for segment in log.segments
        ],
        "producers": {
            str(producer_id): [
                known.epoch, known.coordinator_epoch, known.last_timestamp,
                -1 if known.transaction is None else known.transaction, [list(batch) for batch in known.batches],
            ]
            for producer_id, known in log.known_producers().items()
        },
    }  # fmt: skip


def _text(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
