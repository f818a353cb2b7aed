"""How much of what can be recovered from imperfect captures is recovered, and whether anything is invented.

The judge is ``wiretap``, which shares no code with what it judges.
"""

from __future__ import annotations

import functools
import io
from collections import Counter

import pytest

from kce import wire
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request
from kce.captures.files.pcap import CaptureFile
from tests.captures.wiretap import CONTROL, Key, Sent, Wiretap, counted, observe

SEEDS = range(4)

CASES = {
    "whole": {},
    "0.01% lost": {"loss": 0.0001},
    "0.1% lost": {"loss": 0.001},
    "1% lost": {"loss": 0.01},
    "40 swapped": {"swaps": 40},
    "joined in the middle": {"joined_after": 1.0},
    "all of it": {"loss": 0.01, "swaps": 40, "joined_after": 0.7},
}

tap_of = functools.cache(Wiretap)


def decoded(pcap):
    """[(key, message)], quality."""
    decoder = Decoder(CaptureFile(io.BytesIO(pcap), "x"))
    found = []
    for message in decoder.messages():
        request = message if isinstance(message, Request) else message.request
        kind = "request" if message is request else "response"
        port = request.peers.client[1]
        key = Key(kind, port, request.api_name, request.version, request.correlation_id, message.frame_bytes)
        found.append((key, message))
    return found, decoder.quality


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
def test_what_is_recoverable_is_recovered_and_nothing_is_invented(case, record_property):
    recoverable: Counter[Key] = Counter()
    missing: Counter[Key] = Counter()
    for seed in SEEDS:
        tap = tap_of(seed)
        seen = observe(tap, seed, **CASES[case])
        found, quality = decoded(seen.pcap)
        wanted = counted(seen.recoverable)
        recoverable += wanted
        missing += wanted - Counter(key for key, message in found if message.error is None)
        assert not Counter(key for key, _ in found) - counted(tap.sent), "invented"
        assert (quality.gaps > 0) == (seen.lost > 0)
        frames = {(sent.key, sent.frame) for sent in tap.sent}
        for key, message in found:
            if key.api in CONTROL and message.error is None:
                assert (key, encoded(key, message)) in frames
    share = 1 - missing.total() / recoverable.total()
    record_property("recovered", f"{recoverable.total() - missing.total()} of {recoverable.total()}")
    print(f"{case}: {recoverable.total() - missing.total()} of {recoverable.total()} recovered, {share:.4%}")
    assert share >= 0.9999, missing


LONG_CASES = ({"loss": 0.0001}, {"loss": 0.001}, {"loss": 0.005}, {"loss": 0.01}, {"displaced": 40}, {})


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(100, 120))
def test_long_connections(seed, record_property):
    """5,000 exchanges on each connection: many responses are captured while the stream of requests waits for a gap."""
    case = LONG_CASES[seed % len(LONG_CASES)]
    tap = Wiretap(seed, talks=2, exchanges=5_000)
    seen = observe(tap, seed, **case)
    found, _ = decoded(seen.pcap)
    wanted = counted(seen.recoverable)
    missing = wanted - Counter(key for key, message in found if message.error is None)
    assert not Counter(key for key, _ in found) - counted(tap.sent), "invented"
    record_property("recovered", f"{wanted.total() - missing.total()} of {wanted.total()}")
    assert 1 - missing.total() / wanted.total() >= 0.9999, (case, missing.total())


def encoded(key, message):
    if key.kind == "response":
        return wire.encode_response(message.body, api_version=key.version, correlation_id=key.correlation_id)
    return wire.encode_request(
        message.body, api_version=key.version, correlation_id=key.correlation_id, client_id=message.client_id
    )


def test_the_judge_knows_what_was_lost():
    tap = tap_of(0)
    whole = observe(tap, 0)
    assert len(whole.recoverable) == len(tap.sent)
    assert whole.lost == 0
    seen = observe(tap, 0, loss=0.05)
    assert 0.5 < len(seen.recoverable) / len(tap.sent) < 0.99
    assert seen.lost > 50
    assert observe(tap, 0, loss=0.05).pcap == seen.pcap
    requests: dict[int, Sent] = {id(sent): sent for sent in seen.recoverable}
    assert all(sent.about is None or id(sent.about) in requests for sent in seen.recoverable)
