"""Random operations on one log, the same for several log layers."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from kce.wire import Codec, EndTransactionMarker, Record, RecordBatch
from kce.wire.records import write_records
from tests.interop.log_layers import Answer

PARTITION: Final = "t-0"
_BEYOND_ANY: Final = 2**40
_TRANSACTIONAL: Final = (6, 7)
_PRODUCERS: Final = (None, None, 5, *_TRANSACTIONAL, 2**40)


def random_settings(chance: Random, *, compact: bool) -> dict[str, str]:
    """Of a topic whose segments are small. Indexes have room for few entries or for all."""
    settings = {
        "segment.bytes": str(chance.choice((400, 1000, 3000, 20_000))),
        "index.interval.bytes": str(chance.choice((0, 100, 300, 1000))),
        "segment.index.bytes": str(4096 if compact else chance.choice((100, 4096))),
        "segment.ms": str(chance.choice((2000, 60_000, 10**9))),
        "retention.bytes": str(chance.choice((-1, -1, 2000))),
        "retention.ms": str(chance.choice((-1, 10**9, 200_000))),
        "message.timestamp.type": chance.choice(("CreateTime", "CreateTime", "CreateTime", "LogAppendTime")),
    }
    if compact:
        settings |= {
            "cleanup.policy": chance.choice(("compact", "compact", "compact,delete")),
            "min.cleanable.dirty.ratio": chance.choice(("0.01", "0.3")),
            "delete.retention.ms": chance.choice(("0", "3000", "200000")),
            "min.compaction.lag.ms": chance.choice(("0", "0", "3000", "100000")),
            "max.compaction.lag.ms": chance.choice((str(2**63 - 1), "200000")),
        }
    return settings


def has_small_indexes(settings: dict[str, str]) -> bool:
    """Kafka fails where a follower's append, or a recovery, has an entry more than there is room for."""
    return int(settings["segment.index.bytes"]) < 1000


class Round:
    """Plays on a log that all have loaded; ``ask`` returns their answer, which is the same."""

    def __init__(
        self, ask: Callable[..., Awaitable[Answer]], chance: Random, settings: dict[str, str], now_ms: int
    ) -> None:
        self.now_ms = now_ms
        self._ask = ask
        self._chance = chance
        self._is_compact = "cleanup.policy" in settings
        self._is_small = has_small_indexes(settings)
        self._epoch = 0
        #: next sequence and epoch, by producer id
        self._producers: dict[int, list[int]] = {}
        self._state: Answer = {}
        #: where appends began
        self._begins: list[int] = []

    async def start(self) -> None:
        await self._ask("use", partition=PARTITION)
        self._begins.clear()
        self._state = await self._ask("state")
        self._epoch = max([self._epoch, *(epoch for epoch, _ in self._state["epochs"])])

    async def step(self) -> None:
        """One operation, and what the log is then."""
        often = {
            "append": 16.0, "follow": 0 if self._is_small else 8, "marker": 6, "advance": 3, "high_watermark": 4,
            "truncate": 1, "truncate_fully": 0.1, "start": 1,
            "roll": 1, "flush": 1, "retain": 1, "expire": 0.5, "timestamp": 3, "read": 3,
            "clean": 2 if self._is_compact else 0,
        }  # fmt: skip
        await self._do(self._chance.choices(list(often), list(often.values()))[0])
        self._state = await self._ask("state")

    async def _do(self, kind: str) -> None:
        chance, ask = self._chance, self._ask
        start, end = self._state["start"], self._state["end"]
        match kind:
            case "append":
                await self._append(self._batch(0, chance.choice(_PRODUCERS)), "CLIENT")
            case "marker":
                await self._append(self._marker(0), "COORDINATOR")
            case "follow":
                await self._follow(end)
            case "advance":
                ms = chance.choice((1, 500, 5000, 100_000))
                self.now_ms += ms
                await ask(kind, ms=ms)
            case "high_watermark":
                await ask(kind, offset=chance.choice((end, end, end, chance.randint(start, end))))
            case "truncate":
                self._forget_producers()
                # not into a gap, behind which Kafka takes the log end for the LSO once the log starts there
                await ask(kind, offset=chance.choice([end, *self._begins[-4:]]))
                # until then Kafka has the LSO of before
                await ask("high_watermark", offset=self._state["high_watermark"])
            case "truncate_fully":
                self._forget_producers()
                self._begins.clear()
                await ask(kind, offset=chance.choice((0, end, end + 5)))
            case "start":
                await ask(kind, offset=chance.randint(start, min(end + 1, start + 20)))
            case "read":
                await ask(
                    kind, offset=chance.randint(max(0, start - 2), end + 1), bytes=chance.choice((1, 100, 1000)),
                    isolation=chance.choice(("LOG_END", "HIGH_WATERMARK", "TXN_COMMITTED")), one=chance.random() < 0.5,
                )  # fmt: skip
            case "timestamp":
                if all(size for _, size, *_ in self._state["segments"][:-1]):  # or it is as young as its file in Kafka
                    past = self.now_ms - chance.randrange(200_000)
                    await ask(kind, timestamp=chance.choice((-3, self._time(), past)))
            case _:
                await ask(kind)

    def _forget_producers(self) -> None:
        """What they wrote may be cut off; in the log of a leader their epochs never go back."""
        for known in self._producers.values():
            known[:] = 0, known[1] + 1

    def _time(self) -> int:
        now, chance = self.now_ms, self._chance
        return chance.choice((now, now, now - chance.randrange(3000), now + chance.randrange(3000)))

    def _records(self, base: int, count: int) -> list[Record]:
        chance = self._chance
        return [
            Record(
                offset=base + i,
                timestamp=self._time(),
                key=None if chance.random() < 0.3 and not self._is_compact else b"key %d" % chance.randrange(12),
                value=None if chance.random() < 0.2 else chance.randbytes(chance.randrange(60)),
            )
            for i in range(count)
        ]

    def _batch(self, base: int, producer: int | None, epoch: int = -1) -> bytes:
        """A compaction compresses what it changes as its libraries do: it gets none that is compressed."""
        chance = self._chance
        records = self._records(base, chance.randrange(1, 5))
        codec = Codec.NONE if self._is_compact else chance.choice((Codec.NONE, Codec.NONE, *Codec))
        if producer is None:
            return write_records(RecordBatch.of(*records, codec=codec, partition_leader_epoch=epoch))
        known = self._producers.setdefault(producer, [0, 0])
        if chance.random() < 0.05:
            known[:] = 0, known[1] + 1
        sequence = max(0, known[0] + (chance.choice((-1, 1)) if chance.random() < 0.04 else 0))
        known[0] = sequence + len(records)
        return write_records(
            RecordBatch.of(
                *records, codec=codec, producer_id=producer, producer_epoch=known[1], base_sequence=sequence,
                is_transactional=producer in _TRANSACTIONAL, partition_leader_epoch=epoch,
            )
        )  # fmt: skip

    def _marker(self, base: int, epoch: int = -1) -> bytes:
        """The end of a transaction, or of none."""
        chance = self._chance
        producer = chance.choice(_TRANSACTIONAL)
        known = self._producers.setdefault(producer, [0, 0])
        if chance.random() < 0.1:
            known[:] = 0, known[1] + 1
        end = EndTransactionMarker(committed=chance.random() < 0.5, coordinator_epoch=chance.choice((0, 0, 0, 1)))
        return write_records(
            RecordBatch.of(
                end.to_record(offset=base, timestamp=self.now_ms), producer_id=producer, producer_epoch=known[1],
                is_transactional=True, is_control=True, partition_leader_epoch=epoch,
            )
        )  # fmt: skip

    async def _append(self, batch: bytes, origin: str) -> None:
        if self._chance.random() < 0.03:
            self._epoch += 1
        done = await self._ask("append", records=_text(batch), epoch=self._epoch, origin=origin)
        if done.get("first", -1) >= 0:
            self._begins.append(done["first"])
        if self._chance.random() < 0.6:
            await self._ask("high_watermark", offset=_BEYOND_ANY)

    async def _follow(self, end: int) -> None:
        """Batches of a leader, with gaps; those of the next leader may be among them."""
        chance, at, data = self._chance, end, b""
        asked = self._epoch
        if chance.random() < 0.05:
            at = max(0, at - 1)
        for _ in range(chance.randrange(1, 6)):
            # what is 2**31 offsets apart must not come together
            at += chance.choice((0, 0, 0, 0, 1, 10, 2**31 if not data and chance.random() < 0.05 else 0))
            if chance.random() < 0.05:
                self._epoch += 1
            if chance.random() < 0.3:
                data += self._marker(at, self._epoch)
                at += 1
            else:
                made = self._batch(at, chance.choice(_PRODUCERS), self._epoch)
                data += made
                at += int.from_bytes(made[23:27]) + 1  # its last offset is relative to the first
        await self._ask("follow", records=_text(data), epoch=chance.choice((asked, self._epoch)))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
