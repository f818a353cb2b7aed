"""server.properties, as java.util.Properties reads it."""

from __future__ import annotations

import pytest

from kce.wire.configuration.property_file import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb = 2 \n c:3\nd 4", {"a": "1", "b": "2 ", "c": "3", "d": "4"}),
        ("# no\n! no\n\n  # no\na=#yes", {"a": "#yes"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1,\\\n   2,\\\n   3", {"a": "1,2,3"}),
        ("a\\=b=c\\\\\nd=e", {"a=b": "c\\", "d": "e"}),
        (r"a=\u0041\t\:", {"a": "A\t:"}),
        ("a", {"a": ""}),
        ("a=b\\", {"a": "b"}),
        ("", {}),
    ],
)
def test_files(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected
