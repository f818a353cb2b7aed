"""The identity of a connection (rule B9.2)."""

from __future__ import annotations

from typing import Final, NamedTuple


class KafkaPrincipal(NamedTuple):
    """Compared by type and name. The only type is "User"."""

    principal_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"


USER_TYPE: Final = "User"
#: the principal of a connection without authentication
ANONYMOUS: Final = KafkaPrincipal(USER_TYPE, "ANONYMOUS")
