"""Exchanges as rows that fit the tables."""

from __future__ import annotations

import pytest

from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request, Response
from kce.captures.files.pcap import CaptureFile
from kce.captures.tables.rows import DECODED
from kce.captures.tables.tabulate import decoded_row, quality_row
from tests.captures.samples import CAPTURES


@pytest.mark.parametrize("name", CAPTURES)
def test_every_exchange_fits_the_schema(name):
    with CaptureFile(CAPTURES[name]) as capture:
        messages = list(Decoder(capture).messages())
    rows = [decoded_row(m.request, m) for m in messages if isinstance(m, Response)]
    rows += [decoded_row(m, None) for m in messages if isinstance(m, Request)]
    batch = DECODED.batch([*rows, quality_row("{}")])
    assert batch.num_rows == len(rows) + 1
    control = [row for row in batch.to_pylist() if row["is_control"]]
    assert all(row["controller_epoch"] >= 1 for row in control)
    assert all(len(row["states"]) == row["partition_count"] for row in control)
    assert all(row["live_brokers"] for row in control if row["api"] == "UpdateMetadata")
