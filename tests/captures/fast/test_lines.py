"""Lines printed by kernels against those of the renderer: the same text.

Covers: kce.captures.fast.line_kernels, kce.captures.fast.sheets, kce.captures.fast.text_kernels,
    kce.captures.fast.text_programs
"""

from __future__ import annotations

import io
import itertools
import random
import struct
import uuid
from collections import Counter

import pytest

from kce import wire
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request
from kce.captures.exchanges.render import Renderer
from kce.captures.exchanges.selection import Selection
from kce.captures.fast import lines as of_lines
from kce.captures.fast.lines import lines
from kce.captures.fast.messages import BulkDecoder
from kce.captures.files.pcap import CaptureFile
from kce.captures.record.recorder import Recorder
from kce.harness.cli import captures as cli
from kce.wire.registry import API_KEYS, BY_NAME, message_class
from tests.captures.exchanges.test_decode import decode
from tests.captures.exchanges.test_exactness import CASES, tap_of
from tests.captures.fast.test_messages import SMALL_WINDOW
from tests.captures.samples import CAPTURES, unzipped
from tests.captures.wiretap import Wiretap, observe
from tests.wire import seeded

WINDOW = 1 << 20
SERVER = ("127.0.0.1", 9093)


class Renders(Renderer):
    """Counts the messages that it is given."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.given = Counter()

    def describe(self, message):
        request = message if isinstance(message, Request) else message.request
        self.given[request.api_name, request is message] += 1
        return super().describe(message)


def capture_file(data):
    return CaptureFile(io.BytesIO(data), "x")


def check(data, window_bytes=WINDOW, brokers=(), **filters):
    """Lines, and how many messages the renderer was given for them, by API and direction."""
    decoder = Decoder(capture_file(data))
    for _ in decoder.messages():
        pass
    wanted = Selection(brokers=brokers, cluster=decoder.cluster, **filters)
    decoder = Decoder(capture_file(data))
    renderer = Renders(decoder.cluster)
    expected = [renderer.line(message) for message in decoder.messages() if message in wanted]
    fast = BulkDecoder(capture_file(data), window_bytes=window_bytes)
    given = Renders(fast.cluster)
    found = b"".join(lines(fast, given, wanted)).decode()
    assert found.splitlines() == expected
    assert found.count("\n") == len(expected)
    assert fast.quality.to_json() == decoder.quality.to_json()
    return expected, given.given, renderer.given


def dialogue(*turns, step_ns=1_234_567, begin_ns=10**18):
    """A capture of (request, response, version) on one connection. Bodies may be bytes."""
    target = io.BytesIO()
    clock = itertools.count(begin_ns, step_ns)
    tap = Recorder(target, clock=clock.__next__).connection(("127.0.0.1", 40001), SERVER)
    # a message that the slow path begins with
    for number, (request, response, version) in enumerate(
        [(wire.HeartbeatRequest(), wire.HeartbeatResponse(), 0), *turns]
    ):
        asked = wire.encode_request(request, api_version=version, correlation_id=number, client_id="it")
        tap.sent("client", wire.frame(asked))
        if response is not None:
            tap.sent("server", wire.frame(wire.encode_response(response, api_version=version, correlation_id=number)))
    return target.getvalue()


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("window_bytes", [SMALL_WINDOW, WINDOW])
def test_samples(name, window_bytes):
    found, given, of_all = check(unzipped(name), window_bytes)
    assert len(found) == of_all.total() > given.total()


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("window_bytes", [SMALL_WINDOW, WINDOW])
def test_imperfect_captures(case, window_bytes):
    check(observe(tap_of(0), 0, **CASES[case]).pcap, window_bytes)


@pytest.mark.heavy
def test_holes_that_span_windows():
    """Messages behind a hole are held until the next window."""
    check(observe(Wiretap(7, talks=4, exchanges=800), 7, loss=0.01).pcap, SMALL_WINDOW)


@pytest.mark.parametrize("seed", range(9))
def test_spoilt_bytes(seed):
    rng = random.Random(seed)
    data = bytearray(unzipped("kafka-3.9.1-zombie"))
    for _ in range(rng.choice([1, 5, 40])):
        data[rng.randrange(24, len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    check(bytes(data), rng.choice([SMALL_WINDOW, WINDOW]))


#: what the renderer alone says
OF_RENDERER = {
    "ApiVersions": (True, False), "LeaderAndIsr": (True,), "UpdateMetadata": (True,), "StopReplica": (True,),
    "ControlledShutdown": (True, False), "AlterPartition": (True, False), "Metadata": (True, False),
}  # fmt: skip


@pytest.mark.parametrize("letters", ["abcd-._", seeded._LETTERS, "ab'\\\"\x7f\n "])
def test_any_body_of_any_version(letters, monkeypatch):
    monkeypatch.setattr(seeded, "_LETTERS", letters)
    chance = random.Random(19)
    turns = []
    for api in API_KEYS:
        classes = message_class(api.key, "request"), message_class(api.key, "response")
        if not api.zk_broker or None in classes or api.name == "SaslHandshake":
            continue
        for version in api.versions:
            for _ in range(6):
                bodies = [seeded.message(chance, cls, version, unknown=True) for cls in classes]
                if api.name == "Produce" and bodies[0].acks == 0:
                    continue
                turns.append((*bodies, version))
    _, given, of_all = check(dialogue(*turns))
    assert of_all.total() == 2 * len(turns) + 2
    if letters.isprintable() and letters.isascii():
        unprinted = {kind for kind, count in given.items() if count == of_all[kind]}
        assert unprinted == {(name, asks) for name, directions in OF_RENDERER.items() for asks in directions}


def produced(*record_sets, error_code=0):
    """A Produce request with a partition for each record set, and its response."""
    sent = tuple(wire.PartitionProduceData(index=i, records=r) for i, r in enumerate(record_sets))
    done = tuple(
        wire.PartitionProduceResponse(index=i, error_code=error_code, base_offset=i) for i in range(len(record_sets))
    )
    request = wire.ProduceRequest(acks=-1, topic_data=(wire.TopicProduceData(name="orders", partition_data=sent),))
    topics = (wire.TopicProduceResponse(name="orders", partition_responses=done),)
    return request, wire.ProduceResponse(responses=topics), 8


def batch(magic, *, size=70, length=None, count=3, attributes=0):
    """The beginning of a record batch, or a message of an old format."""
    length = size - 12 if length is None else length
    head = struct.pack(">qiiBB", 5, length, 0, magic, attributes)
    return (head + bytes(39) + struct.pack(">i", count) + bytes(size))[:size]


def test_record_sets_are_outlined():
    sets = [
        None, b"", bytes(16), bytes(17), batch(0) + batch(1), batch(1) + batch(1, attributes=1), batch(3),
        batch(1, size=25), batch(1, size=26), batch(2), batch(2) + batch(2, count=-2), batch(2)[:-1],
        batch(2) + batch(2)[:30], batch(2, length=48), batch(2, length=-1), batch(2, size=61),
        batch(2, size=17, length=5), batch(2, count=2**31 - 1) * 3,
    ]  # fmt: skip
    found, given, _ = check(dialogue(*[produced(records) for records in sets]))
    assert not given["Produce", True]
    assert not given["Produce", False]
    assert any("orders-0 6442450941 records in 210 bytes" in line for line in found)


@pytest.mark.parametrize("partitions", range(7))
def test_partitions_are_counted_from_the_fifth_on(partitions):
    found, given, _ = check(dialogue(produced(*[batch(2)] * partitions), produced(*[b""] * partitions, error_code=6)))
    assert sum("more" in line for line in found) == (4 if partitions > 4 else 0)
    assert given.total() <= 2


@pytest.mark.parametrize("step_ns", [0, 1, 499, 500, 501, 1500, 999_999, 1_234_567_890_123, -1000])
@pytest.mark.parametrize("begin_ns", [951_782_399_999_000_000, 4_107_542_399_999_999_999, 10**6])
def test_times_and_latencies(step_ns, begin_ns):
    check(dialogue(*[produced(b"")] * 9, step_ns=step_ns, begin_ns=begin_ns))


TOPICS = {"orders": uuid.UUID(int=7 << 64 | 9), "other": uuid.UUID(int=(1 << 127) + 5)}


def fetched(*ids, replica=-1, version=17):
    asked = tuple(
        wire.FetchTopic(topic_id=i, partitions=(wire.FetchPartition(partition=0, fetch_offset=5),)) for i in ids
    )
    state = wire.ReplicaState(replica_id=replica)
    answered = (wire.FetchResponsePartitionData(partition_index=0, high_watermark=2**62, records=batch(2)),)
    topics = tuple(wire.FetchableTopicResponse(topic_id=i, partitions=answered) for i in ids)
    return wire.FetchRequest(topics=asked, replica_state=state), wire.FetchResponse(responses=topics), version


def named(listener="DATA", **topics):
    states = tuple(
        wire.UpdateMetadataTopicState(
            topic_name=name, topic_id=i, partition_states=(wire.UpdateMetadataPartitionState(partition_index=0),)
        )
        for name, i in topics.items()
    )
    end = wire.UpdateMetadataEndpoint(port=SERVER[1], host=SERVER[0], listener=listener)
    brokers = (wire.UpdateMetadataBroker(id=3, endpoints=(end,)),)
    return wire.UpdateMetadataRequest(topic_states=states, live_brokers=brokers), wire.UpdateMetadataResponse(), 8


@pytest.mark.parametrize("listener", ["DATA", "DÄTA"])
def test_names_are_those_known_so_far(listener):
    """What teaches them is of the slow path if it is not ASCII."""
    orders, other = TOPICS.values()
    asked = wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name=None, topic_id=orders),))
    found, given, _ = check(
        dialogue(
            fetched(orders, other), named(listener, orders=orders), (asked, wire.MetadataResponse(), 12),
            fetched(orders, other), named(listener, other=other), fetched(other, orders, replica=2),
            named(listener, third=orders), fetched(orders),
        )
    )  # fmt: skip
    assert not given["Fetch", True]
    assert not given["Fetch", False]
    of_fetches = [line for line in found if "request  Fetch" in line]
    assert f"{orders}-0 from 5; {other}-0 from 5" in of_fetches[0]
    assert "(broker" not in of_fetches[0]
    assert (
        f"(broker 3 {listener}) request  Fetch v17            #4     client 'it', orders-0 from 5; {other}"
        in of_fetches[1]
    )
    assert any("request  Metadata v12" in line and line.endswith("topics orders") for line in found)
    assert "replica 2, other-0 from 5; orders-0 from 5" in of_fetches[2]
    assert "third-0 from 5" in of_fetches[3]


def test_many_topics():
    ids = [uuid.UUID(int=random.Random(i).getrandbits(128)) for i in range(300)]
    named_ = {f"topic{i}": id_ for i, id_ in enumerate(ids)}
    _, given, _ = check(dialogue(named(**named_), *[fetched(*ids[i : i + 3]) for i in range(298)]))
    assert not given["Fetch", True]


def test_filters():
    data = unzipped("kafka-3.9.1-tour")
    everything, _, _ = check(data)
    times = [line.split()[0] for line in everything]
    middle = cli.selection.time_ns(times[len(times) // 2].rstrip("Z"))
    for filters in (
        {"api_keys": {BY_NAME["Fetch"].key}}, {"api_keys": {BY_NAME["LeaderAndIsr"].key, BY_NAME["Produce"].key}},
        {"since_ns": middle}, {"until_ns": middle}, {"brokers": {"2"}},
        {"api_keys": {BY_NAME["Fetch"].key}, "brokers": {"1", "3"}, "since_ns": middle},
    ):  # fmt: skip
        for window_bytes in (SMALL_WINDOW, WINDOW):
            found, _, _ = check(data, window_bytes, **filters)
            assert 0 < len(found) < len(everything)


def test_ends_are_looked_up_once_for_each_window(monkeypatch):
    """Every connection begins on the slow path, which must not look up all the others again."""
    looked_up, windows = [], []
    names, windows_of = of_lines._Names.ends, of_lines.sheets
    monkeypatch.setattr(of_lines._Names, "ends", lambda self, talks: looked_up.append(len(talks)) or names(self, talks))
    monkeypatch.setattr(
        of_lines, "sheets", lambda decoder: (windows.append(len(s.window.talks)) or s for s in windows_of(decoder))
    )
    check(observe(Wiretap(5, talks=40, exchanges=4), 5).pcap)
    assert windows[0] > 30
    assert looked_up == windows


def test_texts_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(of_lines, "_MAX_TEXTS_BYTES", 0)
    check(unzipped("kafka-2.8.2-tour"), SMALL_WINDOW)


def test_a_line_needs_more_room_than_there_is(monkeypatch):
    monkeypatch.setattr(of_lines, "_OUT_BYTES", 16)
    check(unzipped("kafka-3.9.1-zombie"))


def test_the_command(monkeypatch, capsys):
    path = str(CAPTURES["kafka-2.8.2-tour"])
    _, expected, _ = decode(path)
    printed = []

    def noticed(*args):
        for some in lines(*args):
            printed.append(some)
            yield some

    monkeypatch.setattr(of_lines, "lines", noticed)
    monkeypatch.setattr(cli, "BULK_FROM_BYTES", 1)
    cli.decode.main([path], standalone_mode=False)
    assert capsys.readouterr().out == b"".join(printed).decode() == expected
