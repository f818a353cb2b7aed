"""How the coordinator's appends and reads reach the logs of a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kce.broker_stub.log import Origin
from kce.broker_stub.transaction_config import TransactionConfig
from kce.broker_stub.transactions.storage import ReplicatedTransactionLog
from kce.wire.configuration import Properties
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import a_log, append

STATE = [TopicPartition("__transaction_state", number) for number in range(6)]


def test_the_log_of_transactions() -> None:
    appends: list[Any] = []
    reads: list[Any] = []
    log = a_log(max_message_bytes=1234)
    append(log, b"0")

    def read_bytes(*args: Any) -> Any:
        reads.append(args)
        return log.read_bytes(*args)

    seen = SimpleNamespace(log_start_offset=0, log_end_offset=1, config=log.config, read_bytes=read_bytes)
    led = SimpleNamespace(log=seen, is_leader=True, leader_log=lambda: seen)
    hosted = {STATE[3]: led, STATE[4]: SimpleNamespace(log=None)}
    plane: Any = SimpleNamespace(partition=hosted.__getitem__, hosted=SimpleNamespace(partitions=hosted))
    to_partitions: Any = SimpleNamespace(append_one=lambda *args, **more: appends.append((args[:4], more)), plane=plane)
    config = TransactionConfig.from_properties(Properties({"transaction.state.log.load.buffer.size": "4321"}))
    stored = ReplicatedTransactionLog(config, to_partitions)
    assert [stored.max_batch_bytes(number) for number in (3, 4, 5)] == [1234, None, None]
    stored.append(3, b"records", 77, lambda offset, code: None)
    assert appends == [((STATE[3], b"records", -1, 77), {"origin": Origin.COORDINATOR, "guard": None})]
    assert [found.base_offset for found in stored.read(3)] == [0]
    assert reads == [(0, 4321)]
