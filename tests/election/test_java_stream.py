"""The bytes of a leader node, against Java itself (section 2)."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce.election.java_stream import LeaderNodeFormatError, decode_leader_node, encode_leader_node
from kce.election.zookeeper import read_leader_node
from kce.java import find_java

ID = UUID("01234567-89ab-cdef-fedc-ba9876543210")
EXAMPLE = bytes.fromhex(
    "aced0005 7710 000e 6c6f63616c686f73743a39303932 7372 000e 6a6176612e7574696c2e55554944 bc9903f7986d852f 02 0002"
    "4a 000c 6c6561737453696742697473 4a 000b 6d6f737453696742697473 78 70 fedcba9876543210 0123456789abcdef"
)
UUID_OBJECT = EXAMPLE[22:]
HEADER = EXAMPLE[:4]


def test_worked_example() -> None:  # rules E2.5-E2.7
    assert encode_leader_node("localhost:9092", ID) == EXAMPLE
    assert decode_leader_node(EXAMPLE) == ("localhost:9092", ID)
    assert len(EXAMPLE) == 84 + len("localhost:9092")


def test_golden_bytes() -> None:  # rule E2.8
    empty = encode_leader_node("", UUID(int=0))
    assert (len(empty), empty[:8].hex(), empty[-16:]) == (84, "aced000577020000", bytes(16))
    assert encode_leader_node("é\0😀", ID)[4:18].hex() == "770c000ac3a9c080eda0bdedb880"
    assert decode_leader_node(bytes.fromhex("aced0005770500 03666f6f70")) == ("foo", None)


@pytest.mark.parametrize(
    ("n", "blocks"),
    [
        (253, "77ff"), (254, "7a00000100"), (1022, "7a00000400"), (1023, "7a00000400 7701"),
        (2000, "7a00000400 7a000003d2"), (65535, None),
    ],
)  # fmt: skip
def test_blocks(n: int, blocks: str | None) -> None:  # rule E2.3
    data = encode_leader_node("x" * n, ID)
    assert decode_leader_node(data) == ("x" * n, ID)
    at, found = 4, []
    while data[at] in (0x77, 0x7A):
        head, size = (2, data[at + 1]) if data[at] == 0x77 else (5, struct.unpack_from(">I", data, at + 1)[0])
        found.append(data[at : at + head].hex())
        at += head + size
    assert blocks is None or found == blocks.split()
    assert data[at:] == UUID_OBJECT


def test_an_address_that_is_too_long() -> None:  # rule E2.4
    for address in ("x" * 65536, "é" * 32768):
        with pytest.raises(ValueError, match="65536 bytes, more than the 65535"):
            encode_leader_node(address, ID)


def test_no_data_is_no_leader() -> None:  # rule E2.9
    assert read_leader_node(None).is_empty
    assert read_leader_node(b"").is_empty
    with pytest.raises(LeaderNodeFormatError, match="no session id beside the address 'foo'"):  # rule E8.8
        read_leader_node(bytes.fromhex("aced000577050003666f6f70"))


@given(st.text(alphabet=st.characters(codec="utf-16", categories=None), max_size=400), st.uuids())
def test_there_and_back(address: str, session_id: UUID) -> None:
    assert decode_leader_node(encode_leader_node(address, session_id)) == (address, session_id)


@given(st.binary(max_size=300))
def test_malformed_data_raises_one_exception(data: bytes) -> None:  # rule E2.12
    for candidate in (data, HEADER + data, EXAMPLE[:22] + data):
        offset = 0
        try:
            decode_leader_node(candidate)
        except LeaderNodeFormatError as e:
            offset = e.offset
        assert 0 <= offset <= len(candidate)


def test_errors_of_truncated_data_have_the_offset() -> None:
    for end in range(len(EXAMPLE)):
        with pytest.raises(LeaderNodeFormatError, match=r"offset \d+: ends") as raised:
            decode_leader_node(EXAMPLE[:end])
        assert raised.value.offset == end


def blocks_of(payload: bytes, sizes: list[int], *, long: bool = False) -> bytes:
    """The payload cut into blocks of these sizes, and one of what is left."""
    out = b""
    for size in [*sizes, len(payload)]:
        block, payload = payload[:size], payload[size:]
        out += (struct.pack(">BI", 0x7A, len(block)) if long else struct.pack(">BB", 0x77, len(block))) + block
        if not payload:
            break
    return out


def stream(text: bytes, *, obj: bytes = UUID_OBJECT, length: int | None = None) -> bytes:
    payload = struct.pack(">H", len(text) if length is None else length) + text
    return HEADER + blocks_of(payload, []) + obj


FIELDS_SWAPPED = UUID_OBJECT.replace(
    bytes.fromhex("4a000c6c6561737453696742697473 4a000b6d6f737453696742697473"),
    bytes.fromhex("4a000b6d6f737453696742697473 4a000c6c6561737453696742697473"),
)
EXTRA_FIELD = (
    UUID_OBJECT[:25].replace(b"\x02\x00\x02", b"\x02\x00\x03") + bytes.fromhex("49000161") + UUID_OBJECT[27:-16]
)


def _with_fields(fields: list[tuple[str, str]], values: bytes) -> bytes:
    """A UUID object whose class has these fields."""
    described = b"".join(t.encode() + struct.pack(">H", len(n)) + n.encode() for t, n in fields)
    return UUID_OBJECT[:27] + struct.pack(">h", len(fields)) + described + b"\x78\x70" + values


ADDRESS = b"localhost:9092"
PAYLOAD = b"\0\x0e" + ADDRESS
ACCEPTED = {  # rule E2.10
    "example": EXAMPLE,
    "blocks of one byte": HEADER + blocks_of(PAYLOAD, [1] * 16) + UUID_OBJECT,
    "long blocks": HEADER + blocks_of(PAYLOAD, [3, 5], long=True) + UUID_OBJECT,
    "empty blocks": HEADER + b"\x77\0\x7a\0\0\0\0" + blocks_of(PAYLOAD, [2, 0, 4, 0, 0]) + UUID_OBJECT,
    "reset before the object": HEADER + blocks_of(PAYLOAD, []) + b"\x79\x79" + UUID_OBJECT,
    "reset before the block": HEADER + b"\x79" + blocks_of(PAYLOAD, []) + UUID_OBJECT,
    "anything after": EXAMPLE + b"anything",
    "null id": EXAMPLE[:22] + b"\x70",
    "fields in the other order": stream(ADDRESS, obj=FIELDS_SWAPPED),
    "more primitive fields": stream(
        ADDRESS,
        obj=_with_fields([("I", "a"), ("J", "leastSigBits"), ("Z", "b"), ("J", "mostSigBits")], bytes(range(21))),
    ),
    "a field is missing": stream(ADDRESS, obj=_with_fields([("J", "mostSigBits")], bytes(range(8)))),
    "no fields": stream(ADDRESS, obj=_with_fields([], b"")),
    "NUL as one byte": stream(b"a\0b"),
    "overlong": stream(b"\xc1\x81\xe0\x81\x81"),
    "lone surrogate": stream(b"\xed\xa0\xbd"),
}
FIRST_HALF = UUID("00010203-0405-0607-0000-000000000000")
#: what is read from those that are not the example in other bytes
READ = {
    "null id": ("localhost:9092", None),
    "more primitive fields": ("localhost:9092", UUID("0d0e0f10-1112-1314-0405-060708090a0b")),
    "a field is missing": ("localhost:9092", FIRST_HALF),
    "no fields": ("localhost:9092", UUID(int=0)),
    "NUL as one byte": ("a\0b", ID),
    "overlong": ("AA", ID),
    "lone surrogate": ("\ud83d", ID),
    "fields in the other order": ("localhost:9092", UUID("fedcba98-7654-3210-0123-456789abcdef")),
}
REFUSED = {  # rule E2.11
    "nothing": b"",
    "magic": b"\xac\xee" + EXAMPLE[2:],
    "version": b"\xac\xed\0\6" + EXAMPLE[4:],
    "negative block": HEADER + b"\x7a\xff\xff\xff\xff" + UUID_OBJECT,
    "unread bytes in the block": HEADER + b"\x77\x11" + PAYLOAD + b"!" + UUID_OBJECT,
    "empty block before the object": EXAMPLE[:22] + b"\x77\0" + UUID_OBJECT,
    "block before the object": EXAMPLE[:22] + b"\x77\1x" + UUID_OBJECT,
    "the address ends early": stream(b"abc", length=4),
    "address as a string object": HEADER + b"\x74\0\x03abc" + UUID_OBJECT,
    "id as a string": EXAMPLE[:22] + b"\x74\0\x03abc",
    "another class": EXAMPLE.replace(b"java.util.UUID", b"java.util.Date"),
    "another serialVersionUID": EXAMPLE.replace(bytes.fromhex("bc9903f7986d852f"), bytes(8)),
    "UTF-8 of four bytes": stream("😀".encode()),
    "a continuation alone": stream(b"a\x80"),
    "a continuation missing": stream(b"\xc3a"),
    "cut in a character": stream(b"\xe2\x82"),
    "an int as half an id": stream(ADDRESS, obj=_with_fields([("I", "mostSigBits")], bytes(4))),
    "a reference": EXAMPLE[:22] + b"\x71\0\x7e\0\0",
    "not serializable": stream(ADDRESS, obj=UUID_OBJECT.replace(b"\x2f\x02\0\2", b"\x2f\x00\0\2")),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:  # `test_java_writes_and_reads_the_same_bytes` asks Java, too
    assert decode_leader_node(ACCEPTED[name]) == READ.get(name, ("localhost:9092", ID))


def test_a_negative_block_is_named() -> None:
    with pytest.raises(LeaderNodeFormatError, match="offset 4: a block of -1 bytes"):
        decode_leader_node(REFUSED["negative block"])


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in REFUSED.items()])
def test_refused(data: bytes) -> None:
    with pytest.raises(LeaderNodeFormatError, match="leader node, offset"):
        decode_leader_node(data)


class Java:
    """The program beside this file, which stays up."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("LeaderNode.java")
        self.process = subprocess.Popen(
            [find_java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", str(program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, questions: list[str]) -> list[str]:
        answers, _ = self.process.communicate("".join(f"{q}\n" for q in questions), timeout=60)
        return answers.splitlines()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def java() -> Iterator[Java]:
    program = Java()
    yield program
    program.close()


def utf16(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").hex()


def line(address: str, session_id: UUID | None) -> str:
    return f"{utf16(address)} {session_id or 'null'}"


@pytest.mark.slow
def test_java_writes_and_reads_the_same_bytes(java: Java) -> None:  # rules E2.1-E2.12, both ways
    chance = random.Random(6)
    alphabet = "ab:/.0é\0€\uffff😀\ud800"
    addresses = ["", "localhost:9092", *("x" * n for n in (253, 254, 1021, 1022, 1023, 2046, 2047, 65535))]
    addresses += ["".join(chance.choices(alphabet, k=chance.randrange(300))) for _ in range(200)]
    pairs = [(address, uuid4()) for address in addresses]
    ours = [encode_leader_node(*pair) for pair in pairs]
    mutants = []
    for _ in range(2000):  # one byte is another, one is missing, or one is there twice
        data = bytearray(chance.choice(list(ACCEPTED.values())))
        at = chance.randrange(len(data))
        data[at : at + 1] = chance.choice([bytes([chance.randrange(256)]), b"", bytes([data[at]] * 2)])
        mutants.append(bytes(data))
    candidates = [*ACCEPTED.values(), *REFUSED.values(), *mutants]
    questions = [f"write {utf16(a)} {i}" for a, i in pairs] + [f"read {d.hex()}" for d in ours + candidates]
    answers = java.ask(questions)
    assert len(answers) == len(questions)
    assert answers[: len(ours)] == [d.hex() for d in ours]
    assert answers[len(ours) : 2 * len(ours)] == [line(*pair) for pair in pairs]
    names = [*ACCEPTED, *REFUSED, *("a mutant" for _ in mutants)]
    differing = []
    for name, data, answer in zip(names, candidates, answers[2 * len(ours) :], strict=True):
        try:
            decoded = line(*decode_leader_node(data))
        except LeaderNodeFormatError as e:
            decoded = f"refused {e}"
        if decoded != answer and not (decoded.startswith("refused") and answer.startswith("refused")):
            differing.append((name, data.hex(), answer, decoded))
    assert not differing, "\n".join(map(str, differing))
