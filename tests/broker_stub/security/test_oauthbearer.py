"""Unsecured tokens: their messages, and what Kafka's default validator makes of their claims."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kce.broker_stub.security.oauthbearer import (
    BadToken,
    InitialResponse,
    NoAlgorithm,
    Token,
    UnsecuredValidator,
    unsecured_token,
)

NOW_MS = 1_000_000
CLAIMS = {"sub": "alice", "exp": 1001, "iat": 999, "scope": ["a", " b "]}


def validated(claims: dict[str, Any], **options: str) -> Token:
    given = {f"unsecuredValidator{name}": text for name, text in options.items()}
    return UnsecuredValidator.of(given).validate(unsecured_token(claims), NOW_MS)


def test_a_token() -> None:
    assert validated(CLAIMS) == Token("alice", 1_001_000)
    assert validated({"who": "bob", "exp": 1000.5}, PrincipalClaimName="who") == Token("bob", 1_000_500)
    assert validated(CLAIMS, RequiredScope="a b") == Token("alice", 1_001_000)
    assert validated(CLAIMS | {"roles": "x"}, RequiredScope="x", ScopeClaimName="roles").principal == "alice"
    late = CLAIMS | {"exp": 999.5}
    assert validated(late, AllowableClockSkewMs="600") == Token("alice", 999_500)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sub": ""}, "the claim sub is missing"), ({"sub": 5}, "the claim sub is missing"),
        ({"exp": None}, "the claim exp is missing"), ({"exp": True}, "the claim exp is missing or no number"),
        ({"exp": 1000}, "the token has expired"), ({"iat": 1000.1}, "the token is issued in the future"),
        ({"exp": 1001, "iat": "x"}, "the claim iat is missing or no number"),
        ({"exp": 1001, "iat": None}, "the claim iat is missing or no number"),
    ],
)  # fmt: skip
def test_claims_that_are_not_accepted(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(BadToken, match=why) as caught:
        validated(CLAIMS | changed)
    assert caught.value.scope is None


def test_a_scope_that_is_missing() -> None:
    for scope in (["a"], "b", None, True, {"a": "b"}, ["a", ["b"]], []):
        with pytest.raises(BadToken, match=r"the scope . is missing") as caught:
            validated(CLAIMS | {"scope": scope}, RequiredScope="a b")
        assert caught.value.scope == ["a", "b"]


def test_a_token_that_expires_before_it_is_issued() -> None:
    with pytest.raises(BadToken, match="expires before it is issued"):
        validated(CLAIMS | {"exp": 999.9, "iat": 999.95}, AllowableClockSkewMs="500")


def part(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


BEGIN = '{"exp": 2000, "sub": '
NULL, NONE = '{"alg": null}', '{"alg": "none"}'


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("a.b", "three parts"), (f"{part(NULL)}.{part('{}')}.", "algorithm is not none"),
        (unsecured_token(CLAIMS) + "sig", "has a signature"), (f"{part(NONE)}..", "three parts"),
        (f"{part('{')}.{part('{}')}.", "malformed"), ("a.b.", "malformed"), (f"_w.{part('{}')}.", "malformed"),
        (f"{part(NONE)}.{part('[]')}.", "the claim sub is missing"),
        (unsecured_token(CLAIMS | {"sub": ">>>"}), "malformed"),
        (unsecured_token(CLAIMS | {"sub": "???"}), "malformed"),
    ],
)  # fmt: skip
def test_what_is_no_unsecured_token(token: str, why: str) -> None:
    with pytest.raises(BadToken, match=why):
        UnsecuredValidator.of({}).validate(token, NOW_MS)


def test_a_scope_is_read_as_kafka_does() -> None:
    """Words and numbers in a list are texts, which a number by itself is not. Measured."""
    validated(CLAIMS | {"scope": [1, True, None, 1.5]}, RequiredScope="1 true null 1.5")
    with pytest.raises(BadToken, match="the claim scope is a number") as caught:
        validated(CLAIMS | {"scope": 5}, RequiredScope="5")
    assert caught.value.scope is None


@pytest.mark.parametrize(
    ("claims", "principal"),
    [('"alice"', "alice"), ("true", "true"), ("null", "null"), (r'"\u00e9"} {', "é"), ('"alice"} }', "alice")],
)
def test_a_principal_is_read_as_kafka_does(claims: str, principal: str) -> None:
    """Words are texts, and what comes after the claims is not read. Measured."""
    token = f"{part(NONE + ' x')}.{part(BEGIN + claims + '}')}."
    assert UnsecuredValidator.of({}).validate(token, NOW_MS).principal == principal


@pytest.mark.parametrize("header", ["", "{}", "[]", "null", "5"])
def test_a_header_without_an_algorithm(header: str) -> None:
    with pytest.raises(NoAlgorithm):
        UnsecuredValidator.of({}).validate(f"{part(header)}.{part('{}')}.", NOW_MS)


@pytest.mark.parametrize("skew", ["-1", "x", "1.5"])
def test_a_clock_skew_is_a_number(skew: str) -> None:
    with pytest.raises(ValueError, match="AllowableClockSkewMs"):
        UnsecuredValidator.of({"unsecuredValidatorAllowableClockSkewMs": skew})


def test_the_first_message() -> None:
    for response in (InitialResponse("a.b."), InitialResponse("a.b.", "x=y,z")):
        assert InitialResponse.parse(response.encode()) == response
    extended = b"n,,\x01traceId=123\x01auth=bearer  a.b.\x01other=x y\x01\x01"
    assert InitialResponse.parse(extended) == InitialResponse("a.b.")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "invalid first message"), (b"p,,\x01auth=Bearer a\x01\x01", "invalid first message"),
        (b"n,,\x01\x01", "has no token"), (b"n,,\x01auth=Bearer\x01\x01", "has no token"),
        (b"n,,\x01auth=Bearer a\x01", "invalid first message"),
    ],
)  # fmt: skip
def test_a_malformed_first_message(message: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        InitialResponse.parse(message)


@pytest.mark.parametrize("expires", [1e16, 1e300, 1e307])
def test_a_token_that_expires_after_all_time(expires: float) -> None:
    """What is left of its time fits the field of SaslAuthenticate's response."""
    assert validated({"sub": "a", "exp": expires}).expires_at_ms == 2**63 - 1


def test_the_limits_of_a_token_in_time() -> None:
    """At 1000 s: the last moment in which it is issued, and the first in which it has expired."""
    assert validated({"sub": "a", "iat": 1000, "exp": 1000.001}).expires_at_ms == 1_000_001
    skew = {"AllowableClockSkewMs": "500"}
    assert validated({"sub": "a", "iat": 1000.5, "exp": 1001}, **skew).expires_at_ms == 1_001_000
    for claims, why in (
        ({"iat": 1000.501, "exp": 1002}, "issued in the future"), ({"exp": 999.5}, "has expired"),
        ({"iat": 999.9, "exp": 999.9}, "expires before it is issued"),
    ):  # fmt: skip
        with pytest.raises(BadToken, match=why):
            validated({"sub": "a", **claims}, **skew)
    assert validated({"sub": "a", "exp": 999.501}, **skew).expires_at_ms == 999_501
    found = UnsecuredValidator.of({})
    assert (found.principal_claim, found.scope_claim, found.required_scope, found.clock_skew_ms) == (
        "sub", "scope", [], 0,
    )  # fmt: skip
