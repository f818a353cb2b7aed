"""OAUTHBEARER with unsecured tokens: its messages, and the checks of Kafka's default validator."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_KEY: Final = r"[A-Za-z]+"
_VALUE: Final = r"[\x21-\x7e \t\r\n]+"
_PAIRS: Final = rf"(?:{_KEY}={_VALUE}\x01)*"
_INITIAL: Final = re.compile(rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,\x01(?P<pairs>{_PAIRS})\x01")
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_\.a-zA-Z0-9]+)", re.ASCII)
_PREFIX: Final = "unsecuredValidator"
_LOGIN: Final = "unsecuredLogin"
_LIFE_SECONDS: Final = "3600"
#: claims that are always made
_RESERVED: Final = ("iat", "exp")
_WHOLE: Final = re.compile(r"[-+]?[0-9]+")
#: Java rounds a time beyond it to it
_LATEST_MS: Final = 2**63 - 1
#: what a client answers to an error
CONTROL_A: Final = b"\x01"


class BadToken(ValueError):
    """A token that is not accepted. ``scope`` is what is required, if the token lacks some of it."""

    def __init__(self, reason: str, scope: Sequence[str] | None = None) -> None:
        super().__init__(reason)
        self.scope = scope


class NoAlgorithm(ValueError):
    """A token whose header names no algorithm."""


class UnknownScheme(Exception):
    """A first message whose token is not a bearer's; Kafka breaks as it tells so."""


@dataclass(frozen=True, slots=True)
class InitialResponse:
    """The client's only message."""

    token: str
    authorization_id: str = ""

    @classmethod
    def parse(cls, message: bytes) -> InitialResponse:
        """Raises ValueError, UnknownScheme."""
        match = _INITIAL.fullmatch(message.decode("utf-8", "replace"))
        if match is None:
            raise ValueError("invalid first message of OAUTHBEARER")
        pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
        found = _AUTH.fullmatch(pairs.get("auth", ""))
        if found is None:
            raise ValueError("the first message of OAUTHBEARER has no token")
        if found["scheme"].lower() != "bearer":
            raise UnknownScheme("the first message of OAUTHBEARER has a token that is not a bearer's")
        authzid = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
        return cls(found["token"], authzid)

    def encode(self) -> bytes:
        name = self.authorization_id.replace("=", "=3D").replace(",", "=2C")
        return f"n,{f'a={name}' if name else ''},\x01auth=Bearer {self.token}\x01\x01".encode()


@dataclass(frozen=True, slots=True)
class Token:
    """``expires_at_ms``: since 1970."""

    principal: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class UnsecuredValidator:
    """Kafka's OAuthBearerUnsecuredValidatorCallbackHandler."""

    principal_claim: str
    scope_claim: str
    required_scope: Sequence[str]
    clock_skew_ms: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> UnsecuredValidator:
        """Of the options of the login module. Raises ValueError."""

        def option(name: str, default: str = "") -> str:
            return options.get(_PREFIX + name, "").strip() or default

        skew = option("AllowableClockSkewMs", "0")
        if not skew.isdecimal():
            raise ValueError(f"{_PREFIX}AllowableClockSkewMs={skew}: must be a whole number, at least 0")
        scope = option("RequiredScope").split()
        return cls(option("PrincipalClaimName", "sub"), option("ScopeClaimName", "scope"), scope, int(skew))

    def validate(self, token: str, now_ms: int) -> Token:
        """Raises BadToken, NoAlgorithm."""
        claims = unsecured_claims(token)
        principal = claims.get(self.principal_claim)
        if not isinstance(principal, str) or not principal.strip():
            raise BadToken(f"the claim {self.principal_claim} is missing")
        issued = _seconds(claims, "iat", required=False)
        if issued is not None and now_ms + self.clock_skew_ms < 1000 * issued:
            raise BadToken("the token is issued in the future")
        expires = _seconds(claims, "exp", required=True)
        assert expires is not None
        if now_ms - self.clock_skew_ms >= 1000 * expires:
            raise BadToken("the token has expired")
        if issued is not None and expires <= issued:
            raise BadToken("the token expires before it is issued")
        scope = self._scope(claims)
        for required in self.required_scope:
            if required not in scope:
                raise BadToken(f"the scope {required} is missing", self.required_scope)
        return Token(principal, round(min(1000 * expires, _LATEST_MS)))

    def _scope(self, claims: Mapping[str, Any]) -> set[str]:
        found = claims.get(self.scope_claim, ())
        if isinstance(found, (int, float)):
            raise BadToken(f"the claim {self.scope_claim} is a number")
        return {each.strip() for each in ([found] if isinstance(found, str) else found) if each.strip()}


@dataclass(frozen=True, slots=True)
class UnsecuredLogin:
    """Kafka's OAuthBearerUnsecuredLoginCallbackHandler, which makes its own tokens."""

    claims: Mapping[str, str | float | Sequence[str]]
    life_seconds: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> UnsecuredLogin:
        """Of the options of the login module. Raises ValueError, also for those of a token without a principal."""
        life = options.get(f"{_LOGIN}LifetimeSeconds", _LIFE_SECONDS)
        if not _WHOLE.fullmatch(life):
            raise ValueError(f"{_LOGIN}LifetimeSeconds={life}: must be a whole number")
        claims: dict[str, str | float | Sequence[str]] = {}
        for kind, read in (("String", str), ("Number", float), ("List", _elements)):
            prefix = f"{_LOGIN}{kind}Claim_"
            for option, text in options.items():
                name = option.removeprefix(prefix)
                if name in ("", option):
                    continue
                if name in _RESERVED:
                    raise ValueError(f"{option}: this claim is always made, and cannot be set")
                try:
                    claims[name] = read(text)
                except ValueError:
                    raise ValueError(f"{option}={text}: must be a number") from None
        principal_claim = options.get(f"{_LOGIN}PrincipalClaimName", "").strip() or "sub"
        principal = claims.get(principal_claim)
        if not isinstance(principal, str) or not principal.strip():
            raise ValueError(f"{_LOGIN}StringClaim_{principal_claim} is missing")
        return cls(claims, int(life))

    def token(self, now_ms: int) -> str:
        now = now_ms / 1000
        return unsecured_token({**self.claims, "iat": now, "exp": now + self.life_seconds})


def _elements(text: str) -> Sequence[str]:
    """Of a list, whose first character is what divides the others."""
    return text[1:].split(text[0]) if len(text) > 1 else ()


def unsecured_claims(token: str) -> dict[str, Any]:
    """The claims of a token with algorithm "none" and no signature. Raises BadToken, NoAlgorithm."""
    parts = token.split(".")
    if len(parts) != 3 or ".." in token:
        raise BadToken("the token has not three parts")
    header, claims = (_json(part) for part in parts[:2])
    if "alg" not in header:
        raise NoAlgorithm("the token's header has no algorithm")
    if header["alg"] != "none":
        raise BadToken("the token's algorithm is not none")
    if parts[2]:
        raise BadToken("the token has a signature")
    return claims


def unsecured_token(claims: Mapping[str, Any]) -> str:
    """A token with algorithm "none"."""
    header, body = (
        base64.urlsafe_b64encode(orjson.dumps(part)).decode().rstrip("=") for part in ({"alg": "none"}, claims)
    )
    return f"{header}.{body}."


def _json(part: str) -> dict[str, Any]:
    """Empty for what is no object, like Kafka's. Raises BadToken, also for the characters - and _, as Kafka does."""
    if not part:
        return {}
    try:
        found = _first_json(base64.b64decode(part + "=" * (-len(part) % 4), validate=True).decode())
    except (binascii.Error, ValueError) as e:
        raise BadToken(f"a part of the token is malformed: {e}") from None
    return {name: _claim(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _claim(value: Any) -> Any:
    """As Kafka takes it: a number, a list of texts, or a text."""
    if isinstance(value, list):
        return [_text(each) for each in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else _text(value)


def _text(value: Any) -> str:
    """Objects, and lists in lists, are empty."""
    if isinstance(value, (dict, list)):
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _first_json(text: str) -> Any:
    """Of what comes after the first value, Kafka knows nothing. Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as e:
        return orjson.loads(text[: e.pos])


def _seconds(claims: Mapping[str, Any], name: str, *, required: bool) -> float | None:
    value = claims.get(name)
    if name not in claims and not required:
        return None
    if not isinstance(value, (int, float)):
        raise BadToken(f"the claim {name} is missing or no number")
    return float(value)
