"""The decision about ACLs, against rules B9.30 to B9.34 written down plainly, for random ACLs and their changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kce.broker_stub.security.acl_cache import AclCache
from kce.broker_stub.security.filters import AclBinding, AclBindingFilter
from kce.broker_stub.security.operations import IMPLIED_BY, Operation, PatternTypeFilter, PermissionType, ResourceType
from kce.zookeeper.security_nodes import NO_ACLS, AccessControlEntry, PatternType, ResourcePattern, VersionedAcls

PRINCIPALS, HOSTS = ("User:a", "User:b"), ("h1", "h2")
NAMES = ("a", "ab", "abc", "b", "ba")
OPERATIONS = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
KINDS = ResourceType.TOPIC, ResourceType.GROUP

entries = st.builds(
    AccessControlEntry,
    st.sampled_from((*PRINCIPALS, "User:*")),
    st.sampled_from((*HOSTS, "*")),
    st.sampled_from([operation.label for operation in (*OPERATIONS, Operation.ALL)]),
    st.sampled_from(("Allow", "Deny")),
)
resources = st.builds(
    ResourcePattern,
    st.sampled_from([kind.label for kind in KINDS]),
    st.sampled_from((*NAMES, "*")),
    st.sampled_from(PatternType),
)
changes = st.lists(st.tuples(resources, st.frozensets(entries, max_size=4)), max_size=8)

Acls = dict[ResourcePattern, frozenset[AccessControlEntry]]


def concerns(resource: ResourcePattern, kind: ResourceType, name: str) -> bool:
    if resource.type != kind.label:
        return False
    if resource.pattern is PatternType.PREFIXED:
        return name.startswith(resource.name)
    return resource.name in (name, "*")


def says(
    acl: AccessControlEntry, permission: str, principal: str, host: str, operations: tuple[Operation, ...]
) -> bool:
    return (
        acl.permission == permission
        and acl.principal in (principal, "User:*")
        and acl.host in (host, "*")
        and acl.operation in [operation.label for operation in (*operations, Operation.ALL)]
    )


def allowed(
    acls: Acls, principal: str, host: str, operation: Operation, kind: ResourceType, name: str, *, if_none: bool
) -> bool:
    found = [acl for resource, given in acls.items() if concerns(resource, kind, name) for acl in given]
    if not found:
        return if_none
    if any(says(acl, "Deny", principal, host, (operation,)) for acl in found):
        return False
    implied_by = (operation, *IMPLIED_BY.get(operation, ()))
    return any(says(acl, "Allow", principal, host, implied_by) for acl in found)


def allowed_on_any(
    acls: Acls, principal: str, host: str, operation: Operation, kind: ResourceType, *, if_none: bool
) -> bool:
    """Of some name that has an ACL, or that a pattern with an ACL is for, no Deny concerns it."""

    def patterns(permission: str) -> set[ResourcePattern]:
        return {
            resource
            for resource, given in acls.items()
            if resource.type == kind.label
            and any(says(acl, permission, principal, host, (operation,)) for acl in given)
        }

    denying = patterns("Deny")
    literally = {one.name for one in denying if one.pattern is PatternType.LITERAL}
    prefixes = [one.name for one in denying if one.pattern is PatternType.PREFIXED]
    if "*" in literally:
        return False
    if if_none:
        return True
    for one in patterns("Allow"):
        is_literal = one.pattern is PatternType.LITERAL
        if is_literal and one.name == "*":
            return True
        if is_literal and one.name in literally:
            continue
        if not any(one.name.startswith(prefix) for prefix in prefixes):
            return True
    return False


def filled(given_changes: list[tuple[ResourcePattern, frozenset[AccessControlEntry]]]) -> tuple[AclCache, Acls]:
    cache, acls = AclCache(), Acls()
    for version, (resource, now) in enumerate(given_changes):
        cache.put(resource, VersionedAcls(now, version))
        acls.pop(resource, None)
        if now:
            acls[resource] = now
    return cache, acls


@settings(max_examples=100, deadline=None)
@given(changes, st.booleans())
def test_decisions(given_changes: list[tuple[ResourcePattern, frozenset[AccessControlEntry]]], if_none: bool) -> None:
    cache, acls = filled(given_changes)
    for principal in PRINCIPALS:
        for host in HOSTS:
            for operation in OPERATIONS:
                for kind in KINDS:
                    asked = principal, host, operation, kind
                    assert cache.allows_any(*asked, if_none=if_none) == allowed_on_any(acls, *asked, if_none=if_none)
                    for name in NAMES:
                        expected = allowed(acls, *asked, name, if_none=if_none)
                        assert cache.allows(*asked, name, if_none=if_none) == expected


@settings(max_examples=100, deadline=None)
@given(changes)
def test_what_is_known(given_changes: list[tuple[ResourcePattern, frozenset[AccessControlEntry]]]) -> None:
    cache, acls = filled(given_changes)
    assert set(cache.resources()) == acls.keys()
    assert sorted(cache.entries(), key=str) == sorted(((r, e) for r, es in acls.items() for e in es), key=str)
    for resource, _ in given_changes:
        known = cache.get(resource)
        if resource in acls:
            versions = [version for version, (one, _) in enumerate(given_changes) if one == resource]
            assert known == VersionedAcls(acls[resource], versions[-1])
        else:
            assert known == NO_ACLS


def test_a_resource_of_an_unknown_type_is_ignored() -> None:
    cache = AclCache()
    acl = AccessControlEntry("User:a", "*", "Read", "Allow")
    cache.put(ResourcePattern("Planet", "earth"), VersionedAcls(frozenset({acl}), 0))
    assert cache.resources() == []


filters = st.builds(
    AclBindingFilter,
    st.sampled_from((ResourceType.ANY, ResourceType.UNKNOWN, *KINDS)),
    st.sampled_from((None, "", *NAMES, "*")),
    st.sampled_from(PatternTypeFilter),
    st.sampled_from((None, *PRINCIPALS, "User:*")),
    st.sampled_from((None, *HOSTS, "*")),
    st.sampled_from((Operation.UNKNOWN, Operation.ANY, Operation.ALL, Operation.READ)),
    st.sampled_from(PermissionType),
)


@settings(max_examples=200, deadline=None)
@given(filters, resources, entries)
def test_filters(wanted: AclBindingFilter, resource: ResourcePattern, acl: AccessControlEntry) -> None:
    by_name = {
        PatternTypeFilter.UNKNOWN: False,
        PatternTypeFilter.ANY: wanted.name in (None, resource.name),
        PatternTypeFilter.LITERAL: resource.pattern is PatternType.LITERAL and wanted.name in (None, resource.name),
        PatternTypeFilter.PREFIXED: resource.pattern is PatternType.PREFIXED and wanted.name in (None, resource.name),
        PatternTypeFilter.MATCH: wanted.name is None
        or concerns(resource, ResourceType.of_label(resource.type), wanted.name),
    }[wanted.pattern]
    by_type = wanted.type is ResourceType.ANY or wanted.type.label == resource.type
    assert wanted.matches_pattern(resource) == (by_name and by_type)
    by_entry = (
        wanted.principal in (None, acl.principal)
        and wanted.host in (None, acl.host)
        and (wanted.operation is Operation.ANY or wanted.operation.label == acl.operation)
        and (wanted.permission is PermissionType.ANY or wanted.permission.label == acl.permission)
    )
    assert wanted.matches_entry(acl) == by_entry
    assert wanted.matches(AclBinding(resource, acl)) == (by_name and by_type and by_entry)


@settings(max_examples=200, deadline=None)
@given(filters)
def test_the_patterns_that_a_filter_names(wanted: AclBindingFilter) -> None:
    patterns = {
        PatternTypeFilter.ANY: tuple(PatternType),
        PatternTypeFilter.LITERAL: (PatternType.LITERAL,),
        PatternTypeFilter.PREFIXED: (PatternType.PREFIXED,),
    }.get(wanted.pattern, ())
    expected = [
        ResourcePattern(kind.label, wanted.name, pattern)
        for kind in KINDS
        for pattern in patterns
        if wanted.type is kind and wanted.name is not None
    ]
    assert list(wanted.patterns()) == expected
