"""CreateTopics (key 19), versions 0-7: the active controller's broker writes to the metadata store (rules 10.1-10.9).

The response waits until the controller has elected leaders and this broker's metadata cache has them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from kce import wire
from kce.broker_stub.config_entries import BrokerSettings, ConfigEntry, topic_entries
from kce.broker_stub.handlers.admin import CLUSTER_METADATA_TOPIC, answering_mutations, has_leaders, wait_for_leaders
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.metadata_cache import MetadataSnapshot
from kce.broker_stub.quotas.mutations import MutationQuota
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import Operation
from kce.wire import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    ErrorCode,
)

_FIRST_VERSION_WITH_CONFIGS: Final = 5
_FIRST_VERSION_WITH_QUOTA_ERROR: Final = 6
#: those of each node of the process, and some that have been
_SETTINGS_REMEMBERED: Final = 32


async def respond(
    message: CreateTopicsRequest, context: RequestContext, services: Services, quota: MutationQuota
) -> CreateTopicsResponse:
    if not services.controller.is_active:
        refused = [
            CreatableTopicResult(name=topic.name, error_code=ErrorCode.NOT_CONTROLLER)
            async for topic in context.paced(message.topics)
        ]
        return CreateTopicsResponse(topics=tuple(refused))  # their message is "", Kafka's default, not null
    times = Counter[str]()
    async for topic in context.paced(message.topics):
        times[topic.name] += 1
    snapshot = services.metadata_cache.snapshot
    results: dict[str, CreatableTopicResult] = {}
    denied, hidden = await _denied(times, context, services)
    wanted = []
    async for topic in context.paced(message.topics):
        if topic.name == CLUSTER_METADATA_TOPIC:
            why = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
            results[topic.name] = _refusal(topic, ErrorCode.INVALID_REQUEST, why)
        elif times[topic.name] > 1:
            results[topic.name] = _refusal(topic, ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic.")
        elif topic.name in denied:
            results[topic.name] = _refusal(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
        elif (refusal := _refused(topic, snapshot, services)) is not None:
            results[topic.name] = refusal
        else:
            wanted.append(topic if topic.assignments else _resolved(topic, services))
    results.update(await _create(wanted, context, services, quota, validate_only=message.validate_only))
    if not message.validate_only:
        created = {
            topic.name: _partitions(results[topic.name], topic)
            async for topic in context.paced(message.topics)
            if results[topic.name].error_code == ErrorCode.NONE
        }
        await wait_for_leaders(services, message.timeout_ms, created)
        snapshot = services.metadata_cache.snapshot
        async for name, partitions in context.paced(created.items()):
            if message.timeout_ms <= 0 or not has_leaders(snapshot, name, partitions):  # rule 10.8
                results[name] = _timed_out(results[name])
    # a topic that the request names twice is answered twice
    topics = [
        _seen(results[topic.name], hidden, is_repeated=times[topic.name] > 1)
        async for topic in context.paced(message.topics)
    ]
    return CreateTopicsResponse(topics=tuple(topics))


def _partitions(result: CreatableTopicResult, topic: CreatableTopic) -> range:
    return range(len(topic.assignments) or result.num_partitions)


async def _denied(
    names: Iterable[str], context: RequestContext, services: Services
) -> tuple[Container[str], Container[str]]:
    """The topics that the client may not create, and those of which it may not see the settings."""
    authorization = services.authorization
    names = [name for name in names if name != CLUSTER_METADATA_TOPIC]
    denied: Container[str] = ()
    if not authorization.allows_on_cluster(context, Operation.CREATE, log_denied=False):
        denied = await authorization.denied_in_turns(context, Operation.CREATE, names)
    return denied, await authorization.denied_in_turns(context, Operation.DESCRIBE_CONFIGS, names, log_denied=False)


def _seen(result: CreatableTopicResult, hidden: Container[str], *, is_repeated: bool) -> CreatableTopicResult:
    """Without what the client may not see: the settings, with them the sizes, and the id.

    That they are hidden is told if the topic was created, or was not even tried.
    """
    if result.name not in hidden:
        return result
    is_told = is_repeated or result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_told else ErrorCode.NONE
    return CreatableTopicResult(
        name=result.name,
        error_code=result.error_code,
        error_message=result.error_message,
        topic_config_error_code=error,
    )


def _refused(topic: CreatableTopic, snapshot: MetadataSnapshot, services: Services) -> CreatableTopicResult | None:
    if topic.name in snapshot.topics:
        return _refusal(topic, ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    if services.controller.is_queued_for_deletion(topic.name):
        return _refusal(topic, ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' is marked for deletion.")
    return None


async def _create(
    topics: Sequence[CreatableTopic],
    context: RequestContext,
    services: Services,
    quota: MutationQuota,
    *,
    validate_only: bool,
) -> dict[str, CreatableTopicResult]:
    """The results by topic."""
    if not topics:
        return {}
    alive = services.metadata_cache.snapshot.alive_brokers.values()
    created = await services.admin.create_topics(
        topics, {broker.broker_id: broker.rack for broker in alive}, validate_only=validate_only, permit=quota.record
    )
    results = {result.name: result for result in created}
    settings = services.dynamic_config.by_source
    inherited = _inherited_configs(settings, context.api_version)
    async for topic in context.paced(topics):
        result = results[topic.name]
        if result.error_code == ErrorCode.NONE:
            own = {entry.name: entry.value or "" for entry in topic.configs}
            configs: Any = _configs(topic_entries(own, settings)) if own else inherited
            results[topic.name] = replace(result, configs=configs, error_message=None)
    return results


@functools.lru_cache(maxsize=_SETTINGS_REMEMBERED)
def _inherited_configs(settings: BrokerSettings, version: int) -> wire.Encoded:
    """The settings of topics that have none of their own, encoded once."""
    if version < _FIRST_VERSION_WITH_CONFIGS:
        return wire.Encoded(0, ())
    key = CreateTopicsRequest.__api_key__
    pieces = [wire.encode_part(one, api_key=key, api_version=version) for one in _configs(settings.inherited)]
    return wire.Encoded(len(pieces), [b"".join(pieces)])


def _configs(entries: Iterable[ConfigEntry]) -> tuple[CreatableTopicConfigs, ...]:
    return tuple(
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in entries
    )


def _resolved(topic: CreatableTopic, services: Services) -> CreatableTopic:
    """Replace -1 by the broker's defaults (rule 10.3)."""
    partitions, replication_factor = topic.num_partitions, topic.replication_factor
    return replace(
        topic,
        num_partitions=services.config.num_partitions if partitions == -1 else partitions,
        replication_factor=(
            services.config.default_replication_factor if replication_factor == -1 else replication_factor
        ),
    )


def _refusal(topic: CreatableTopic, error: ErrorCode, why: str | None = None) -> CreatableTopicResult:
    return CreatableTopicResult(name=topic.name, error_code=error, error_message=why)


def _timed_out(result: CreatableTopicResult) -> CreatableTopicResult:
    """The topic exists, and has its id, but no leaders yet."""
    return CreatableTopicResult(
        name=result.name, topic_id=result.topic_id, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=None
    )


def error_response(message: CreateTopicsRequest, context: RequestContext, error: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=tuple(_refusal(topic, error) for topic in message.topics))


HANDLER: Final = Handler(
    CreateTopicsRequest, answering_mutations(respond, strict_from=_FIRST_VERSION_WITH_QUOTA_ERROR), error_response
)
