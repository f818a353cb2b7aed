"""Exceptions that become error codes of responses."""

from __future__ import annotations

from kce.wire import ErrorCode


class ApiException(Exception):
    """Fails a request, or one partition of it, with ``code``. Any other exception becomes UNKNOWN_SERVER_ERROR."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


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


class BrokerFailure(Exception):
    """A broker cannot start or continue. The text is one line: what is wrong, where, and what to do."""


def error_code(error: Exception) -> ErrorCode:
    """The error code for an exception (rule B1.31)."""
    return error.code if isinstance(error, ApiException) else ErrorCode.UNKNOWN_SERVER_ERROR
