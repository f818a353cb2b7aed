"""Names of topics, and why a text is none, in Kafka's words."""

from __future__ import annotations

import pytest

from kce.wire.vocabulary import is_valid_topic_name, topic_name_problem

LETTERS = "'{}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "...", "x" * 249])
def test_names(name: str) -> None:
    assert is_valid_topic_name(name)
    assert topic_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
        ("/" * 250, f"the length of '{'/' * 250}' is longer than the max allowed length 249"),
        ("a/b", LETTERS.format("a/b")),
        ("ä", LETTERS.format("ä")),
        ("a\n", LETTERS.format("a\n")),
    ],
)
def test_what_is_no_name(name: str, problem: str) -> None:
    assert not is_valid_topic_name(name)
    assert topic_name_problem(name) == problem
