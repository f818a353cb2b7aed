"""AlterClientQuotas and DescribeClientQuotas, in short forms. None as a name is the default entity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kce import wire
from kce.wire import ErrorCode
from tests.harness.conformance.records import Clients

#: types and names, sorted
Key = tuple[tuple[str, str | None], ...]
Entity = Mapping[str, str | None]

EXACT, DEFAULT, ANY = 0, 1, 2


def key_of(entity: Entity) -> Key:
    return tuple(sorted(entity.items()))


def alteration(
    quotas: Iterable[tuple[Entity, Mapping[str, float | None]]], *, validate_only: bool = False
) -> wire.AlterClientQuotasRequest:
    """None removes."""
    return wire.AlterClientQuotasRequest(
        entries=tuple(
            wire.AlterClientQuotasRequestEntryData(
                entity=tuple(
                    wire.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ),
                ops=tuple(
                    wire.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()
                ),
            )
            for entity, changes in quotas
        ),
        validate_only=validate_only,
    )


def results(answer: wire.AlterClientQuotasResponse) -> dict[Key, tuple[ErrorCode, str | None]]:
    return {
        key_of({each.entity_type: each.entity_name for each in entry.entity}): (
            ErrorCode(entry.error_code),
            entry.error_message,
        )
        for entry in answer.entries
    }


def component(kind: str, match: str | type[Any] | None) -> wire.ComponentData:
    """``match``: a name, None for the default entity, ``Any`` for all that have the type."""
    if match is Any:
        return wire.ComponentData(entity_type=kind, match_type=ANY)
    if match is None:
        return wire.ComponentData(entity_type=kind, match_type=DEFAULT)
    return wire.ComponentData(entity_type=kind, match_type=EXACT, match=str(match))


def quotas_of(answer: wire.DescribeClientQuotasResponse) -> dict[Key, dict[str, float]]:
    assert answer.error_code == ErrorCode.NONE
    return {
        key_of({each.entity_type: each.entity_name for each in entry.entity}): {
            each.key: each.value for each in entry.values
        }
        for entry in answer.entries or ()
    }


class Quotas:
    """Of the cluster; node 1 is asked."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def try_alter(
        self, entity: Entity, validate_only: bool = False, **changes: float | None
    ) -> tuple[ErrorCode, str | None]:
        answer = await self._clients.ask(1, alteration([(entity, changes)], validate_only=validate_only), 1)
        ((key, result),) = results(answer).items()
        assert key == key_of(entity)
        return result

    async def alter(self, entity: Entity, validate_only: bool = False, **changes: float | None) -> None:
        assert await self.try_alter(entity, validate_only, **changes) == (ErrorCode.NONE, None)

    async def ask(self, *components: wire.ComponentData, strict: bool) -> wire.DescribeClientQuotasResponse:
        request = wire.DescribeClientQuotasRequest(components=components, strict=strict)
        answer = await self._clients.ask(1, request, 1)
        assert isinstance(answer, wire.DescribeClientQuotasResponse)
        return answer

    async def describe(self, *components: wire.ComponentData, strict: bool) -> dict[Key, dict[str, float]]:
        return quotas_of(await self.ask(*components, strict=strict))

    async def of(self, entity: Entity) -> dict[str, float]:
        """Of exactly this entity."""
        found = await self.describe(*(component(*each) for each in entity.items()), strict=True)
        assert found.keys() <= {key_of(entity)}
        return found.get(key_of(entity), {})
