"""What an ACL speaks of: operations, types of resources, of patterns and of permissions, with their codes and names."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, Self

#: rule B9.35: the name of the only resource of type Cluster
CLUSTER_NAME: Final = "kafka-cluster"
WILDCARD_RESOURCE: Final = "*"
WILDCARD_HOST: Final = "*"
WILDCARD_PRINCIPAL: Final = "User:*"
#: of an authorized_operations field that was not asked for (rule B7.8)
NO_OPERATIONS: Final = -(2**31)


class _Coded(enum.IntEnum):
    """A code of the protocol. ``label`` is the name in ZooKeeper and in logs."""

    label: str

    def __new__(cls, code: int) -> Self:
        made = int.__new__(cls, code)
        made._value_ = code
        return made

    def __init__(self, code: int) -> None:
        self.label = "".join(part.capitalize() for part in self.name.split("_"))

    @classmethod
    def of_code(cls, code: int) -> Self:
        """UNKNOWN, whose code is 0, for a code that is none."""
        return cls(code) if code in cls._value2member_map_ else cls(0)

    @classmethod
    def of_label(cls, label: str) -> Self:
        return next((member for member in cls if member.label == label), cls(0))


class Operation(_Coded):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


#: to read a member of an enum's class takes ten times as long in Python 3.11
READ: Final = Operation.READ
WRITE: Final = Operation.WRITE


class ResourceType(_Coded):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP


class PatternTypeFilter(_Coded):
    """How a filter looks for resources; LITERAL and PREFIXED are also what a resource pattern can be."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class PermissionType(_Coded):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


#: rule B9.33: an Allow of one of these implies it
IMPLIED_BY: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}

#: rule B9.37
SUPPORTED_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE, Operation.ALTER,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE, Operation.ALTER, Operation.DESCRIBE,
    ),
}  # fmt: skip


def bit_field(operations: Iterable[Operation]) -> int:
    """The authorized_operations field (rule B9.37)."""
    return sum(1 << operation for operation in set(operations))
