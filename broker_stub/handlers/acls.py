"""Shared by the handlers of ACLs: codes of the protocol to bindings and filters, and back."""

from __future__ import annotations

from typing import Final, Protocol

from kce.broker_stub.errors import ApiException, Refused
from kce.broker_stub.handlers.base import Services
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.filters import AclBinding, AclBindingFilter
from kce.broker_stub.security.operations import Operation, PatternTypeFilter, PermissionType, ResourceType
from kce.wire import AclCreation, ErrorCode
from kce.zookeeper.security_nodes import AccessControlEntry, PatternType, ResourcePattern

UNKNOWN: Final = 0


class Filter(Protocol):
    """A filter in the requests of both APIs."""

    @property
    def resource_type_filter(self) -> int: ...
    @property
    def resource_name_filter(self) -> str | None: ...
    @property
    def pattern_type_filter(self) -> int: ...
    @property
    def principal_filter(self) -> str | None: ...
    @property
    def host_filter(self) -> str | None: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


def authorizer_of(services: Services) -> AclAuthorizer:
    """Raises Refused (rule B9.26)."""
    authorizer = services.authorization.authorizer
    if authorizer is None:
        raise Refused(ErrorCode.SECURITY_DISABLED, "no authorizer is configured")
    return authorizer


def text_of(error: ErrorCode) -> str:
    """What kafka-acls prints: of a broker without authorizer, it should be understood."""
    return "No Authorizer is configured." if error is ErrorCode.SECURITY_DISABLED else error.name


def has_unknown(*codes: int) -> bool:
    """Whether Kafka takes the request for one that it cannot parse, and closes the connection."""
    return UNKNOWN in codes


def filter_is_unknown(given: Filter) -> bool:
    return has_unknown(given.pattern_type_filter, given.resource_type_filter, given.operation, given.permission_type)


def binding_filter(given: Filter) -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.of_code(given.resource_type_filter),
        given.resource_name_filter,
        PatternTypeFilter.of_code(given.pattern_type_filter),
        given.principal_filter,
        given.host_filter,
        Operation.of_code(given.operation),
        PermissionType.of_code(given.permission_type),
    )


def binding(creation: AclCreation) -> AclBinding | None:
    """None for codes that this version does not know. Raises ApiException for what only a filter can have."""
    kind = ResourceType.of_code(creation.resource_type)
    pattern = PatternTypeFilter.of_code(creation.resource_pattern_type)
    operation, permission = Operation.of_code(creation.operation), PermissionType.of_code(creation.permission_type)
    only_filters = PatternTypeFilter.ANY, PatternTypeFilter.MATCH
    if pattern in only_filters or ResourceType.ANY in (kind, operation, permission):
        raise ApiException("an ACL is for one type, pattern, operation and permission")
    if UNKNOWN in (kind, pattern, operation, permission):
        return None
    return AclBinding(
        ResourcePattern(kind.label, creation.resource_name, PatternType[pattern.name]),
        AccessControlEntry(creation.principal, creation.host, operation.label, permission.label),
    )


def resource_codes(resource: ResourcePattern) -> tuple[int, str, int]:
    """Type, name and pattern type."""
    return ResourceType.of_label(resource.type), resource.name, PatternTypeFilter[resource.pattern.name]


def entry_codes(entry: AccessControlEntry) -> tuple[str, str, int, int]:
    """Principal, host, operation and permission."""
    return entry.principal, entry.host, Operation.of_label(entry.operation), PermissionType.of_label(entry.permission)
