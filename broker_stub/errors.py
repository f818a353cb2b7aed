"""What a broker's own code raises to be answered with a certain error code."""

from __future__ import annotations

from wire import ErrorCode


class ApiError(Exception):
    """Ends a request, or one partition of it, with ``code``; everything else that escapes is UNKNOWN_SERVER_ERROR."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class KafkaStorageError(ApiError):
    """A log directory failed, or a log cannot be had because one failed."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class InvalidRequest(ApiError):
    """The request contradicts itself or its version."""

    code = ErrorCode.INVALID_REQUEST


class InvalidConfig(ApiError):
    """A setting that there is not, or not with that value."""

    code = ErrorCode.INVALID_CONFIG


class UnknownTopicOrPartition(ApiError):
    """The metadata cache has no such topic."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def error_code(error: Exception) -> ErrorCode:
    """The code that an exception is answered with (rule B1.31)."""
    return error.code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR
