"""What errors say of themselves: in responses, and in logs."""

from __future__ import annotations

import pytest

from kce.broker_stub.errors import ApiException, InvalidRecord, InvalidTimestamp, KafkaStorageError, Refused, error_code
from kce.broker_stub.log.appending import UnexpectedOffset
from kce.wire import ErrorCode
from kce.zookeeper.store import BadVersion, MultiFailed
from kce.zookeeper.topic_plans import AdminError

BAD = ((3, "no key"),)


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (Refused(ErrorCode.INVALID_REQUEST), "INVALID_REQUEST", ErrorCode.INVALID_REQUEST),
        (Refused(ErrorCode.INVALID_REQUEST, "because"), "because", ErrorCode.INVALID_REQUEST),
        (InvalidRecord("one is bad", BAD), "one is bad", ErrorCode.INVALID_RECORD),
        (InvalidTimestamp("it is late", BAD), "it is late", ErrorCode.INVALID_TIMESTAMP),
        (UnexpectedOffset("not the end", 5, 9), "not the end", ErrorCode.UNKNOWN_SERVER_ERROR),
        (KafkaStorageError("broken"), "broken", ErrorCode.KAFKA_STORAGE_ERROR),
        (ApiException("what?"), "what?", ErrorCode.UNKNOWN_SERVER_ERROR),
        (AdminError("no", ErrorCode.INVALID_CONFIG), "no", ErrorCode.UNKNOWN_SERVER_ERROR),  # none of an API
        (MultiFailed(2, BadVersion("/a")), "operation 2 of a multi: BadVersion: /a", ErrorCode.UNKNOWN_SERVER_ERROR),
        (OSError("disk"), "disk", ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_their_texts_and_codes(error: Exception, text: str, code: ErrorCode) -> None:  # rule B1.31
    assert (str(error), error_code(error)) == (text, code)


def test_what_else_they_know() -> None:
    assert (InvalidRecord("x").records, InvalidRecord("x", BAD).records) == ((), BAD)
    unexpected = UnexpectedOffset("x", 5, 9)
    assert (unexpected.first_offset, unexpected.last_offset) == (5, 9)
    assert (AdminError("x").code, AdminError("x", ErrorCode.INVALID_CONFIG).code) == (
        ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_CONFIG
    )  # fmt: skip
