"""DeleteTopics (key 20), versions 0-6."""

import uuid

from kce.wire.primitives import INT16, INT32, STRING, UUID
from kce.wire.schema import Message, Struct, field, request, response, struct

__all__ = ["DeletableTopicResult", "DeleteTopicState", "DeleteTopicsRequest", "DeleteTopicsResponse"]


@struct
class DeleteTopicState(Struct):
    name: str | None = field(STRING, "6+", default=None, nullable="6+")
    topic_id: uuid.UUID = field(UUID, "6+")


@request(api_key=20, versions="0-6", flexible="4+")
class DeleteTopicsRequest(Message):
    topics: tuple[DeleteTopicState, ...] = field([DeleteTopicState], "6+")
    topic_names: tuple[str, ...] = field([STRING], "0-5", ignorable=True)
    timeout_ms: int = field(INT32, "0+")


@struct
class DeletableTopicResult(Struct):
    name: str | None = field(STRING, "0+", nullable="6+")
    topic_id: uuid.UUID = field(UUID, "6+", ignorable=True)
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "5+", default=None, nullable="5+", ignorable=True)


@response(api_key=20, versions="0-6", flexible="4+")
class DeleteTopicsResponse(Message):
    throttle_time_ms: int = field(INT32, "1+", ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = field([DeletableTopicResult], "0+")
