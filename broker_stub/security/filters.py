"""ACL bindings, and the filters that select them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from kce.broker_stub.security.operations import (
    WILDCARD_RESOURCE,
    Operation,
    PatternTypeFilter,
    PermissionType,
    ResourceType,
)
from kce.zookeeper.security_nodes import AccessControlEntry, PatternType, ResourcePattern


class AclBinding(NamedTuple):
    """An entry, and the resources that it is for."""

    pattern: ResourcePattern
    entry: AccessControlEntry


class AclBindingFilter(NamedTuple):
    """None and ANY match everything."""

    type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternTypeFilter = PatternTypeFilter.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: PermissionType = PermissionType.ANY

    def matches(self, binding: AclBinding) -> bool:
        return self.matches_pattern(binding.pattern) and self.matches_entry(binding.entry)

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        if self.type not in (ResourceType.ANY, ResourceType.of_label(pattern.type)):
            return False
        wanted = _WANTED.get(self.pattern, ())
        if pattern.pattern not in wanted:
            return False
        if self.name is None:
            return True
        if self.pattern is not PatternTypeFilter.MATCH:
            return self.name == pattern.name
        if pattern.pattern is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD_RESOURCE)

    def matches_entry(self, entry: AccessControlEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, Operation.of_label(entry.operation))
            and self.permission in (PermissionType.ANY, PermissionType.of_label(entry.permission))
        )

    def patterns(self) -> Collection[ResourcePattern]:
        """The patterns that it can match, if it names them; they need not exist."""
        is_named = self.type not in (ResourceType.ANY, ResourceType.UNKNOWN) and self.name is not None
        if not is_named or self.pattern is PatternTypeFilter.MATCH:
            return ()
        return [ResourcePattern(self.type.label, self.name or "", pattern) for pattern in _WANTED.get(self.pattern, ())]


_WANTED: Final = {
    PatternTypeFilter.ANY: tuple(PatternType),
    PatternTypeFilter.MATCH: tuple(PatternType),
    PatternTypeFilter.LITERAL: (PatternType.LITERAL,),
    PatternTypeFilter.PREFIXED: (PatternType.PREFIXED,),
}
