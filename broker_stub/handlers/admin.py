"""Shared by the handlers that change topics: their quota, and waiting for the metadata cache."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import trio

from kce.broker_stub.handlers.base import Answer, Services, answer_later
from kce.broker_stub.metadata_cache import MetadataSnapshot
from kce.broker_stub.quotas.mutations import MutationQuota
from kce.broker_stub.reactor import Request, RequestContext
from kce.wire.vocabulary import NO_LEADER, TopicPartition

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"


def answering_mutations(
    respond: Callable[[Any, RequestContext, Services, MutationQuota], Awaitable[Any]], *, strict_from: int
) -> Callable[[Request, Any, Services], None]:
    """Make a handler of a request that creates or deletes partitions, and is parked meanwhile (rule 10.11).

    ``strict_from``: the first version with THROTTLING_QUOTA_EXCEEDED.
    """

    def handle(request: Request, message: Any, services: Services) -> None:
        quota = services.quotas.mutations(request.context, strict=request.context.api_version >= strict_from)

        async def answer() -> Answer:
            response = await respond(message, request.context, services, quota)
            ms = quota.throttle_time_ms
            if ms:
                services.quotas.throttle_mutations(request, ms)
                response = replace(response, throttle_time_ms=ms)
            return Answer(response)

        answer_later(request, answer, services)

    return handle


async def wait_for(services: Services, timeout_ms: int, holds: Callable[[MetadataSnapshot], bool]) -> None:
    """Wait until ``holds`` of this broker's metadata cache, or for the timeout (rules B2.27-B2.29)."""
    if timeout_ms > 0:
        with trio.move_on_after(timeout_ms / 1000):
            await services.metadata_cache.wait_until(holds)


async def wait_for_leaders(services: Services, timeout_ms: int, topics: Mapping[str, Collection[int]]) -> None:
    """Wait until all these partitions of topics have leaders in this broker's metadata cache (rules 10.8, 10.16).

    A topic that lacked a leader is looked at first the next time: the cache changes often while many are made.
    """
    lacking: str | None = None

    def have_leaders(snapshot: MetadataSnapshot) -> bool:
        nonlocal lacking
        if lacking is None or has_leaders(snapshot, lacking, topics[lacking]):
            lacking = next((topic for topic in topics if not has_leaders(snapshot, topic, topics[topic])), None)
        return lacking is None

    await wait_for(services, timeout_ms, have_leaders)


def has_leaders(snapshot: MetadataSnapshot, topic: str, partitions: Iterable[int]) -> bool:
    """Rule 10.8."""
    states = (snapshot.partition(TopicPartition(topic, number)) for number in partitions)
    return all(state is not None and state.leader != NO_LEADER for state in states)
