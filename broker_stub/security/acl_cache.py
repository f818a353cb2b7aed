"""All ACLs in memory, and the decision (rules B9.30 to B9.34)."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from kce.broker_stub.security.operations import (
    IMPLIED_BY,
    WILDCARD_HOST,
    WILDCARD_PRINCIPAL,
    WILDCARD_RESOURCE,
    Operation,
    PermissionType,
    ResourceType,
)
from kce.zookeeper.security_nodes import NO_ACLS, AccessControlEntry, PatternType, ResourcePattern, VersionedAcls

#: how many (principal, host, operation, permission) are remembered with the entries that match them
_REMEMBERED: Final = 4096

_Entries = frozenset[AccessControlEntry]
_Names = dict[AccessControlEntry, set[str]]


@functools.lru_cache(_REMEMBERED)
def _matching(
    principal: str, host: str, operations: tuple[Operation, ...], permission: PermissionType
) -> tuple[AccessControlEntry, ...]:
    """All entries that match (rule B9.32)."""
    return tuple(
        AccessControlEntry(whose, where, operation.label, permission.label)
        for operation in (*operations, Operation.ALL)
        for whose in (principal, WILDCARD_PRINCIPAL)
        for where in (host, WILDCARD_HOST)
    )


def _denying(principal: str, host: str, operation: Operation) -> tuple[AccessControlEntry, ...]:
    return _matching(principal, host, (operation,), PermissionType.DENY)


def _allowing(principal: str, host: str, operation: Operation) -> tuple[AccessControlEntry, ...]:
    return _matching(principal, host, (operation, *IMPLIED_BY.get(operation, ())), PermissionType.ALLOW)


class _OfType:
    """The ACLs of one type of resource.

    The patterns that concern a name are found by look-ups: the name, the wildcard, and the name's beginnings of those
    lengths that prefixes have.
    """

    def __init__(self) -> None:
        self.entries: dict[PatternType, dict[str, _Entries]] = {pattern: {} for pattern in PatternType}
        #: which names an entry is for (rule B9.34)
        self.names: dict[PatternType, _Names] = {pattern: {} for pattern in PatternType}
        self._literal = self.entries[PatternType.LITERAL]
        self._prefixed = self.entries[PatternType.PREFIXED]
        self._counts: Counter[int] = Counter()
        self._lengths: tuple[int, ...] = ()

    def put(self, pattern: PatternType, name: str, entries: _Entries) -> None:
        before = self.entries[pattern].pop(name, frozenset())
        if entries:
            self.entries[pattern][name] = entries
        if pattern is PatternType.PREFIXED and bool(before) != bool(entries):
            self._counts[len(name)] += 1 if entries else -1
            self._lengths = tuple(sorted(length for length, count in self._counts.items() if count))
        names = self.names[pattern]
        for entry in entries - before:
            names.setdefault(entry, set()).add(name)
        for entry in before - entries:
            names[entry].discard(name)
            if not names[entry]:
                del names[entry]

    def concerning(self, name: str) -> list[_Entries]:
        literal, prefixed = self._literal, self._prefixed
        found = [entries for key in (name, WILDCARD_RESOURCE) if (entries := literal.get(key)) is not None]
        for length in self._lengths:
            if length > len(name):
                break
            entries = prefixed.get(name[:length])
            if entries is not None:
                found.append(entries)
        return found

    def granted(self, pattern: PatternType, wanted: Iterable[AccessControlEntry]) -> set[str]:
        """The names that one of these entries is for."""
        names = self.names[pattern]
        return set().union(*(names[entry] for entry in wanted if entry in names))


class AclCache:
    """What the authorizer knows of the ACLs in ZooKeeper."""

    def __init__(self) -> None:
        self._types: dict[str, _OfType] = {kind.label: _OfType() for kind in ResourceType}
        self._versions: dict[ResourcePattern, int] = {}

    def get(self, resource: ResourcePattern) -> VersionedAcls:
        version = self._versions.get(resource)
        if version is None:
            return NO_ACLS
        return VersionedAcls(self._types[resource.type].entries[resource.pattern][resource.name], version)

    def resources(self) -> list[ResourcePattern]:
        return list(self._versions)

    def put(self, resource: ResourcePattern, acls: VersionedAcls) -> None:
        """Ignores a resource of an unknown type."""
        of_type = self._types.get(resource.type)
        if of_type is None:
            return
        of_type.put(resource.pattern, resource.name, acls.acls)
        if acls.acls:
            self._versions[resource] = acls.version
        else:
            self._versions.pop(resource, None)

    def entries(self) -> Iterator[tuple[ResourcePattern, AccessControlEntry]]:
        for resource in self._versions:
            for entry in self._types[resource.type].entries[resource.pattern][resource.name]:
                yield resource, entry

    def allows(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str, *, if_none: bool
    ) -> bool:
        """Rules B9.30 to B9.33. ``if_none``: the answer if there are no ACLs for the resource (rule B9.31)."""
        found = self._types[kind.label].concerning(name)
        if not found:
            return if_none
        denying = _denying(principal, host, operation)
        if not all(entries.isdisjoint(denying) for entries in found):
            return False
        allowing = _allowing(principal, host, operation)
        return not all(entries.isdisjoint(allowing) for entries in found)

    def allows_any(self, principal: str, host: str, operation: Operation, kind: ResourceType, *, if_none: bool) -> bool:
        """Whether the operation is allowed on any resource of the type, which need not exist (rule B9.34).

        No operation implies another here.
        """
        of_type = self._types[kind.label]
        denying = _denying(principal, host, operation)
        denied = of_type.granted(PatternType.LITERAL, denying)
        if WILDCARD_RESOURCE in denied:
            return False
        if if_none:
            return True
        denied_prefixes = of_type.granted(PatternType.PREFIXED, denying)
        allowing = _matching(principal, host, (operation,), PermissionType.ALLOW)

        def is_dominated(name: str) -> bool:
            return any(name[:length] in denied_prefixes for length in range(1, len(name) + 1))

        if not all(map(is_dominated, of_type.granted(PatternType.PREFIXED, allowing))):
            return True
        allowed = of_type.granted(PatternType.LITERAL, allowing)
        return WILDCARD_RESOURCE in allowed or not all(map(is_dominated, allowed - denied))
