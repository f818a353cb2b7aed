"""What the requests of clients may do: the one place where handlers ask (section 9 of docs/broker-semantics.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import Final

from kce.broker_stub.errors import Refused
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.operations import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    TOPIC,
    Operation,
    ResourceType,
    bit_field,
)
from kce.wire import ErrorCode
from kce.wire.steps import STEP_MASK, Steps

#: what a denied request or item gets
DENIED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_NOTHING: Final[frozenset[str]] = frozenset()


class Authorization:
    """Without an authorizer everything is allowed (rule B9.26)."""

    def __init__(self, authorizer: AclAuthorizer | None = None) -> None:
        self.authorizer = authorizer
        #: whether anything can be denied
        self.is_on = authorizer is not None

    def allows(
        self,
        context: RequestContext,
        operation: Operation,
        kind: ResourceType,
        name: str,
        *,
        log_denied: bool = True,
        count: int = 1,
    ) -> bool:
        return self.authorizer is None or self.authorizer.authorize(
            context, operation, kind, name, log_denied=log_denied, count=count
        )

    def allows_on_cluster(self, context: RequestContext, operation: Operation, *, log_denied: bool = True) -> bool:
        return self.allows(context, operation, ResourceType.CLUSTER, CLUSTER_NAME, log_denied=log_denied)

    def allows_on_any(self, context: RequestContext, operation: Operation, kind: ResourceType) -> bool:
        """Rule B9.34."""
        return self.authorizer is None or self.authorizer.authorize_by_resource_type(context, operation, kind)

    def check(self, context: RequestContext, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raises Refused with the error of the type, for the whole request."""
        if self.authorizer is not None and not self.allows(context, operation, kind, name):
            raise Refused(DENIED[kind], f"{context.principal} may not {operation.label} {kind.label} {name!r}")

    def check_cluster(self, context: RequestContext, operation: Operation) -> None:
        """Raises Refused."""
        self.check(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def denied(
        self,
        context: RequestContext,
        operation: Operation,
        kind: ResourceType,
        names: Iterable[str],
        *,
        log_denied: bool = True,
    ) -> Container[str]:
        """Those of the names on which it is denied; each is judged once."""
        if self.authorizer is None:
            return _NOTHING
        return {
            name
            for name, count in Counter(iter(names)).items()  # of a mapping, Counter takes the values for counts
            if not self.allows(context, operation, kind, name, log_denied=log_denied, count=count)
        }

    def denied_in_steps(
        self, context: RequestContext, operation: Operation, kind: ResourceType, names: Iterable[str]
    ) -> Steps[Container[str]]:
        """``denied`` of names that may be very many."""
        if self.authorizer is None:
            return _NOTHING
        counts = Counter[str]()
        for i, name in enumerate(names, 1):
            counts[name] += 1
            if not i & STEP_MASK:
                yield
        denied = set()
        for i, (name, count) in enumerate(counts.items(), 1):
            if not self.allows(context, operation, kind, name, count=count):
                denied.add(name)
            if not i & STEP_MASK:
                yield
        return denied

    async def denied_in_turns(
        self, context: RequestContext, operation: Operation, names: Iterable[str], *, log_denied: bool = True
    ) -> Container[str]:
        """``denied_topics`` of names that may be very many, in turns with other requests."""
        if self.authorizer is None:
            return _NOTHING
        counts = Counter[str]()
        async for name in context.paced(names):
            counts[name] += 1
        return {
            name
            async for name, count in context.paced(counts.items())
            if not self.allows(context, operation, ResourceType.TOPIC, name, log_denied=log_denied, count=count)
        }

    def denied_topics(
        self, context: RequestContext, operation: Operation, names: Iterable[str], *, log_denied: bool = True
    ) -> Container[str]:
        return self.denied(context, operation, TOPIC, names, log_denied=log_denied)

    def operations(self, context: RequestContext, kind: ResourceType, name: str) -> int:
        """The field authorized_operations (rule B9.37)."""
        supported = SUPPORTED_OPERATIONS[kind]
        authorizer = self.authorizer
        if authorizer is None:
            return _ALL[kind]
        return bit_field(
            operation
            for operation in supported
            if authorizer.authorize(context, operation, kind, name, log_allowed=False, log_denied=False)
        )

    def cluster_operations(self, context: RequestContext) -> int:
        """None of them without Describe."""
        if not self.allows_on_cluster(context, Operation.DESCRIBE):
            return 0
        return self.operations(context, ResourceType.CLUSTER, CLUSTER_NAME)


_ALL: Final = {kind: bit_field(operations) for kind, operations in SUPPORTED_OPERATIONS.items()}
NO_AUTHORIZATION: Final = Authorization()
