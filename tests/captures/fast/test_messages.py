"""The fast decoder against the decoder: the same messages in the same order, the same lines, the same quality."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.render import JsonRenderer, Renderer
from kce.captures.fast.messages import BulkDecoder
from kce.captures.files import linking
from kce.captures.files.pcap import CaptureFile
from kce.captures.tcp.incident import Incident
from kce.harness.cli import captures as cli
from tests.captures.exchanges.test_decode import in_process
from tests.captures.exchanges.test_exactness import CASES, tap_of
from tests.captures.made_files import pcap
from tests.captures.samples import CAPTURES, unzipped
from tests.captures.wiretap import Wiretap, observe

#: so small that messages, connections and holes span windows
SMALL_WINDOW = 20_000


def lines(decoder):
    text, as_json = Renderer(decoder.cluster), JsonRenderer(decoder.cluster)
    return [(text.line(message), as_json.line(message)) for message in decoder.messages()], decoder.quality


def both(capture, window_bytes):
    expected, quality = lines(Decoder(CaptureFile(io.BytesIO(capture), "x")))
    found, counted = lines(BulkDecoder(CaptureFile(io.BytesIO(capture), "x"), window_bytes=window_bytes))
    assert found == expected
    assert counted.to_json() == quality.to_json()
    return found


@pytest.mark.parametrize("name", CAPTURES)
def test_samples(name):
    assert both(unzipped(name), SMALL_WINDOW)


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("window_bytes", [SMALL_WINDOW, 1 << 20])
def test_imperfect_captures(case, window_bytes):
    assert both(observe(tap_of(0), 0, **CASES[case]).pcap, window_bytes)


@pytest.mark.heavy
def test_holes_that_span_windows():
    """A window has 4,096 packets at least. Messages behind a hole are older than others of the next window."""
    capture = observe(Wiretap(7, talks=4, exchanges=800), 7, loss=0.01).pcap
    windows = list(BulkDecoder(CaptureFile(io.BytesIO(capture), "x"), window_bytes=SMALL_WINDOW).path.windows())
    assert len(windows) > 3
    assert both(capture, SMALL_WINDOW)


def test_a_clock_that_is_set_back_is_remarked(tmp_path):
    """As in files that were joined in a wrong order."""
    with CaptureFile(CAPTURES["kafka-3.9.1-tour"]) as capture:
        packets = [(packet.time_ns, packet.data) for packet in capture]
    path = str(tmp_path / "joined.pcap")
    Path(path).write_bytes(pcap(packets[1500:] + packets[:1500], nanoseconds=True))
    with CaptureFile(path) as slow, CaptureFile(path) as fast:
        decoders = [Decoder(slow), BulkDecoder(fast, window_bytes=50_000), Decoder(Incident([path]))]
        for decoder in decoders:
            assert len(list(decoder.messages())) < 1038  # requests have lost their connections
            (remark,) = decoder.quality.sources
            assert remark.startswith(f"{path}: time goes back once by 2")  # to the next one in the block
            assert " s at 2026-11-21T02:44:45Z" in remark
            assert remark in decoder.quality.lines()


def test_the_command_takes_it_for_large_files(monkeypatch):
    path = str(CAPTURES["kafka-2.8.2-tour"])
    expected = in_process(path)
    taken = []

    class Noticed(BulkDecoder):
        def __init__(self, *args, **options):
            taken.append(args)
            super().__init__(*args, **options)

    monkeypatch.setattr("kce.captures.fast.messages.BulkDecoder", Noticed)
    assert (in_process(path), taken) == (expected, [])
    monkeypatch.setattr(cli, "BULK_FROM_BYTES", 1)
    assert in_process(path) == expected
    assert len(taken) == 1
    monkeypatch.setattr(
        linking, "_mprotect", lambda *_: -1
    )  # as where SELinux or systemd forbids code that was written
    assert in_process(path) == expected
    assert len(taken) == 1
