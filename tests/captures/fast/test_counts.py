"""The summary of the fast path against that of the messages: the same lines.

Covers: kce.captures.fast.counts
"""

from __future__ import annotations

import random

import pytest

from kce import wire
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.selection import Selection
from kce.captures.exchanges.summary import Summary
from kce.captures.fast.counts import count
from kce.captures.fast.messages import BulkDecoder
from kce.harness.cli import captures as cli
from kce.wire.registry import BY_NAME
from tests.captures.exchanges.test_exactness import CASES, tap_of
from tests.captures.fast.test_lines import WINDOW, capture_file, dialogue
from tests.captures.fast.test_messages import SMALL_WINDOW
from tests.captures.samples import CAPTURES, unzipped
from tests.captures.wiretap import Wiretap, observe


def check(data, window_bytes=WINDOW, **filters):
    """The summary's lines, and of how many messages objects were made for it."""
    made = []
    decoder, expected = Decoder(capture_file(data)), Summary()
    wanted = Selection(**filters)
    expected.count(message for message in decoder.messages() if message in wanted)
    fast, found = BulkDecoder(capture_file(data), window_bytes=window_bytes), Summary()
    observed = fast.cluster.observe
    fast.cluster.observe = lambda message: (made.append(message), observed(message))
    for _ in count(fast, found, wanted):
        pass
    lines = list(expected.lines(decoder.cluster, decoder.quality))
    assert list(found.lines(fast.cluster, fast.quality)) == lines
    return lines, len(made)


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("window_bytes", [SMALL_WINDOW, WINDOW])
def test_samples(name, window_bytes):
    lines, _ = check(unzipped(name), window_bytes)
    assert len(lines) > 4


@pytest.mark.parametrize("api", [None, "Fetch", "LeaderAndIsr"])
@pytest.mark.parametrize("name", ["kafka-3.9.1-tour", "kafka-3.9.1-zombie"])
def test_filters(name, api):
    decoder = Decoder(capture_file(unzipped(name)))
    times = sorted(message.place.time_ns for message in decoder.messages())
    keys = () if api is None else (BY_NAME[api].key,)
    check(unzipped(name), api_keys=keys)
    middle = {"since_ns": times[len(times) // 3], "until_ns": times[len(times) * 2 // 3]}
    check(unzipped(name), api_keys=keys, **middle)


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
def test_imperfect_captures(case):
    check(observe(tap_of(0), 0, **CASES[case]).pcap, SMALL_WINDOW)


@pytest.mark.heavy
def test_holes_that_span_windows():
    check(observe(Wiretap(7, talks=4, exchanges=800), 7, loss=0.01).pcap, SMALL_WINDOW)


@pytest.mark.parametrize("seed", range(6))
def test_spoilt_bytes(seed):
    rng = random.Random(seed)
    data = bytearray(unzipped("kafka-3.9.1-zombie"))
    for _ in range(rng.choice([1, 5, 40])):
        data[rng.randrange(24, len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    check(bytes(data))


def test_no_objects_of_ordinary_messages():
    """Only of the first one, of those that the slow path began with, of errors and of a controller's requests."""
    beat, refused = wire.HeartbeatRequest(), wire.HeartbeatResponse(error_code=wire.ErrorCode.UNKNOWN_MEMBER_ID)
    plain = [(beat, wire.HeartbeatResponse(), 0)] * 50
    lines, made = check(dialogue(*plain))
    assert lines[-1].startswith("Heartbeat v0: 51 requests, 51 responses")
    more, made_more = check(dialogue(*plain, *plain, (beat, refused, 0)))
    assert more[-1].endswith("; 1 UNKNOWN_MEMBER_ID")
    assert made_more == made + 1
    assert made < 20


def test_no_traffic():
    assert len(check(unzipped("kafka-3.9.1-tour"), since_ns=2**62)[0]) > 1


def test_the_command(monkeypatch, capsys):
    path = str(CAPTURES["kafka-2.8.2-tour"])
    cli.decode.main([path, "--summary"], standalone_mode=False)
    expected = capsys.readouterr().out
    taken = []
    monkeypatch.setattr("kce.captures.fast.counts.count", lambda *args: (taken.append(1), *count(*args)))
    monkeypatch.setattr(cli, "BULK_FROM_BYTES", 1)
    cli.decode.main([path, "--summary"], standalone_mode=False)
    assert capsys.readouterr().out == expected
    assert taken == [1]


def test_tags_of_another_version_are_refused():
    fetch = wire.FetchRequest, wire.FetchResponse, 14
    update = wire.UpdateMetadataRequest, wire.UpdateMetadataResponse, 7
    turns = []
    for (asks, answers, version), tag in ((fetch, 1), (fetch, 9), (update, 0), (update, 9)):
        request = asks()
        object.__setattr__(request, "_unknown_tagged_fields", (wire.TaggedField(tag, b"\0"),))
        turns.append((request, answers(), version))
    lines, _ = check(dialogue(*turns))
    assert ", 2 not decoded" in lines[0]
