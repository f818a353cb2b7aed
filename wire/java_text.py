"""UTF-8 as Kafka reads it: U+FFFD for what is not UTF-8, once for each malformed sequence as Java counts them."""

from __future__ import annotations

import codecs
from typing import Final

_REPLACED: Final = "kce-java"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    data, start = error.object, error.start
    if data[start] == 0xED and 0xA0 <= data[start + 1 : start + 2].ljust(1)[0] <= 0xBF:
        # the two or three bytes of a surrogate, in which Python sees as many errors
        has_third = 0x80 <= data[start + 2 : start + 3].ljust(1)[0] <= 0xBF
        return "\ufffd", start + (3 if has_third else 2)
    return "\ufffd", error.end


codecs.register_error(_REPLACED, _replaced)


def decode_like_java(data: bytes) -> str:
    """Java's ``new String(data, UTF_8)``, which Kafka calls for every text of a request or record: it never fails."""
    return data.decode("utf-8", _REPLACED)
