"""The SCRAM credentials of users, as `/config/users` has them (rules B9.18, B9.19), and those of delegation tokens."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kce.broker_stub.security.scram import ScramCredential, ScramMechanism

log = logging.getLogger(__name__)

_DEFAULT_ENTITY: Final = "<default>"


class TokenCredential(NamedTuple):
    """Of a delegation token, whose HMAC is the password. ``owner`` is the name of a User."""

    owner: str
    credential: ScramCredential
    expires_at_ms: int


#: (id of a delegation token, mechanism) -> its credential; None if there is no such token
TokenLookup = Callable[[str, ScramMechanism], TokenCredential | None]


def no_tokens(token_id: str, mechanism: ScramMechanism) -> TokenCredential | None:
    """Without `delegation.token.secret.key` (rule B9.22)."""
    return None


class CredentialCache:
    """Only memory: a login never reads ZooKeeper."""

    def __init__(self) -> None:
        #: set by who keeps delegation tokens
        self.token_lookup: TokenLookup = no_tokens
        self._credentials: dict[ScramMechanism, dict[str, ScramCredential]] = {each: {} for each in ScramMechanism}

    def get(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        return self._credentials[mechanism].get(user)

    def config_changed(self, name: str, config: Mapping[str, str]) -> None:
        """The configuration of `/config/users/<name>`: a missing key removes the credential."""
        if name == _DEFAULT_ENTITY or "/" in name:
            return
        user = urllib.parse.unquote(name)
        for mechanism, known in self._credentials.items():
            text = config.get(mechanism.mechanism_name)
            known.pop(user, None)
            if text is None:
                continue
            try:
                known[user] = ScramCredential.parse(text)
            except ValueError as e:
                log.error("the %s credential of user %s is not used: %s", mechanism.mechanism_name, user, e)
