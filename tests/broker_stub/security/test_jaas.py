"""JAAS entries (rule B9.15): the cases of Kafka's JaasContextTest that concern one text."""

from __future__ import annotations

import pytest

from kce.broker_stub.security.jaas import parse_jaas


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a.B required;", {}),
        ("a.B REQUIRED user=alice;", {"user": "alice"}),
        ("a.B requisite user_a=\"x y\" user_b='z';", {"user_a": "x y", "user_b": "z"}),
        (r'a.B optional password="a\"b\\c\x3d";', {"password": 'a"b\\cx3d'}),
        ('a.B sufficient\n  k$1="v;=" // no k2=v2;\n /* k3=v3 */ n5=a-5.b ;', {"k$1": "v;=", "n5": "a-5.b"}),
        ("a.B required mail='alice@example.com' useKeyTab=true;", {"mail": "alice@example.com", "useKeyTab": "true"}),
        ('a.B required dc="" é="ü";', {"dc": "", "é": "ü"}),
    ],
)
def test_an_entry(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == ("a.B", options)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no login module"),
        ("a.B", "one of required"),
        ("a.B necessary;", "one of required"),
        ("a.B required", "does not end with a semicolon"),
        ("a.B required user=alice", "does not end with a semicolon"),
        ("a.B required user;", "option user of a.B has no value"),
        ("a.B required user=;", "option user of a.B has no value"),
        ("a.B required user alice;", "option user of a.B has no value"),
        ("a.B required user=5;", "option user of a.B has no value"),  # a number, which is not a text
        ("a.B required user=-1.5e3;", "option user of a.B has no value"),
        ("a.B required user=.b;", "option user of a.B has no value"),
        ("a.B required; c.D required;", "2 login modules"),
        ("= required;", "name of a login module is missing"),
    ],
)
def test_a_malformed_entry(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_jaas(text)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\a\b\f\n\r\t\v", "\a\b\f\n\r\t\v"), (r"\101\0\7\77", "A\0\7?"), (r"\377\400", "\xff 0"), (r"\8\'\"", "8'\""),
    ],
)  # fmt: skip
def test_escapes(escaped: str, text: str) -> None:
    assert parse_jaas(f'a.B required k="{escaped}";').options == {"k": text}
