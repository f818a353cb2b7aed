"""Text that is not UTF-8. That these are Java's answers is in test_records_against_kafka.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce.wire.java_text import decode_like_java

NOT_UTF_8 = "\ufffd"


@given(st.text())
def test_utf_8_is_itself(text: str) -> None:
    assert decode_like_java(text.encode()) == text


@given(st.binary())
def test_everything_is_read(data: bytes) -> None:
    assert len(decode_like_java(data)) <= len(data)
    decode_like_java(data).encode()


@pytest.mark.parametrize(
    ("data", "characters"),
    [
        (b"\xff", 1),
        (b"\xc3", 1),
        (b"\xe2\x98", 1),
        (b"\xe0\x80\x80", 3),  # longer than needed
        (b"\xf4\x90\x80\x80", 4),  # above U+10FFFF
        (b"\xed\xa0\x80", 1),  # a surrogate
        (b"\xed\xa0", 1),
        (b"\xed\xbf\xed\xa0\x80", 2),
        (b"\xed", 1),
        (b"\xed\x7f", 1),
    ],
)
def test_each_malformed_sequence_is_one_character(data: bytes, characters: int) -> None:
    assert decode_like_java(b"a" + data + b"b").replace("\x7f", "") == f"a{NOT_UTF_8 * characters}b"
