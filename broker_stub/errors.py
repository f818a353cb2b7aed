"""Exceptions that become error codes of responses."""

from __future__ import annotations

from kce.wire import ErrorCode


class ApiException(Exception):
    """Fails a request, or one partition of it, with ``code``. Any other exception becomes UNKNOWN_SERVER_ERROR."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class Refused(ApiException):
    """Refused with a code that needs no class of its own."""

    def __init__(self, code: ErrorCode, text: str = "") -> None:
        super().__init__(text or code.name)
        self.code = code


class KafkaStorageError(ApiException):
    """A log directory failed, or a log is unavailable because of that."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class InvalidRequest(ApiException):
    """The request contradicts itself or its version."""

    code = ErrorCode.INVALID_REQUEST


class InvalidConfig(ApiException):
    """Unknown setting, or a value that is not allowed."""

    code = ErrorCode.INVALID_CONFIG


class UnknownTopicOrPartition(ApiException):
    """The topic is not in the metadata cache."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class OffsetOutOfRange(ApiException):
    """Below the log's start or beyond its end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessage(ApiException):
    """A batch whose checksum or size is wrong."""

    code = ErrorCode.CORRUPT_MESSAGE


class MessageTooLarge(ApiException):
    """A batch larger than `max.message.bytes`."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class RecordListTooLarge(ApiException):
    """Batches larger than a segment."""

    code = ErrorCode.RECORD_LIST_TOO_LARGE


class UnsupportedForMessageFormat(ApiException):
    """The format of the records lacks what they need."""

    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class UnsupportedCompressionType(ApiException):
    """The version of the request, or of the protocol between brokers, is older than the codec."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class InvalidRecord(ApiException):
    """Rule B3.29. ``records``: index and what is wrong, of each bad record."""

    code = ErrorCode.INVALID_RECORD

    def __init__(self, text: str, records: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(text)
        self.records = records


class InvalidTimestamp(InvalidRecord):
    """A timestamp too far from now, or of the wrong type."""

    code = ErrorCode.INVALID_TIMESTAMP


class OutOfOrderSequence(ApiException):
    """A gap in the sequence numbers of an idempotent producer, or one of long ago."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(ApiException):
    """A producer with a newer epoch has written."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnState(ApiException):
    """The producer's transaction does not allow this operation."""

    code = ErrorCode.INVALID_TXN_STATE


class VerificationFailed(ApiException):
    """The coordinator does not confirm that a partition is in the transaction. ``text``: for the client, if any."""

    def __init__(self, code: ErrorCode, text: str | None = None) -> None:
        super().__init__(text or code.name)
        self.code = code
        self.text = text


class TransactionCoordinatorFenced(ApiException):
    """The end of a transaction, from a coordinator that is none any more."""

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class InconsistentTopicId(ApiException):
    """The log belongs to another topic of that name."""

    code = ErrorCode.INCONSISTENT_TOPIC_ID


class BrokerFailure(Exception):
    """A broker cannot start or continue. The text is one line: what is wrong, where, and what to do."""


def error_code(error: Exception) -> ErrorCode:
    """The error code for an exception (rule B1.31)."""
    return error.code if isinstance(error, ApiException) else ErrorCode.UNKNOWN_SERVER_ERROR
