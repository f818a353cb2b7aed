"""Parsing and checking of single values."""

from __future__ import annotations

import pytest

from kce.wire.configuration.definitions import (
    ConfigDef,
    ConfigError,
    ConfigType,
    Support,
    Value,
    allowed_values,
)


def definition(kind: ConfigType, allowed: str) -> ConfigDef:
    return ConfigDef(name="k", type=kind, default=None, allowed=allowed_values(allowed, kind), support=Support.IGNORED)


@pytest.mark.parametrize(
    ("kind", "allowed", "text", "value"),
    [
        (ConfigType.BOOLEAN, "any", " TRUE ", True),
        (ConfigType.BOOLEAN, "any", "false", False),
        (ConfigType.INT, "any", "-2147483648", -(2**31)),
        (ConfigType.INT, "1..", "2147483647", 2**31 - 1),
        (ConfigType.INT, "-1|1..9", "-1", -1),
        (ConfigType.INT, "-1|1..9", "9", 9),
        (ConfigType.LONG, "1..", "2147483648", 2**31),
        (ConfigType.SHORT, "10..1000", "10", 10),
        (ConfigType.DOUBLE, "any", "1.7976931348623157E308", 1.7976931348623157e308),
        (ConfigType.DOUBLE, "0..0.5", "0.5", 0.5),
        (ConfigType.DOUBLE, "0..0.5", "0x1p-2", 0.25),
        (ConfigType.LIST, "a|b", " b , a", ("b", "a")),
        (ConfigType.LIST, "a|b", "", ()),
        (ConfigType.STRING, "any", " text ", "text"),
        (ConfigType.STRING, "a|b", "b", "b"),
    ],
)
def test_allowed_values_are_parsed(kind: ConfigType, allowed: str, text: str, value: Value) -> None:
    assert definition(kind, allowed).parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "written"),
    [
        (ConfigType.BOOLEAN, " TRUE ", "true"),
        (ConfigType.LONG, " +05 ", "5"),
        (ConfigType.LIST, " b , a,,c ", "b,a,,c"),
        (ConfigType.LIST, " ", ""),
        (ConfigType.STRING, " a b ", "a b"),
        (ConfigType.INT, "x ", "x "),
        # as Java's Double.toString
        (ConfigType.DOUBLE, "1", "1.0"),
        (ConfigType.DOUBLE, "0", "0.0"),
        (ConfigType.DOUBLE, "0.001", "0.001"),
        (ConfigType.DOUBLE, "0.00012", "1.2E-4"),
        (ConfigType.DOUBLE, "9999999", "9999999.0"),
        (ConfigType.DOUBLE, "10000000", "1.0E7"),
        (ConfigType.DOUBLE, "9223372036854775807", "9.223372036854776E18"),
        (ConfigType.DOUBLE, "-1e300", "-1.0E300"),
        # as Java's Double.parseDouble
        (ConfigType.DOUBLE, "NaN", "NaN"),
        (ConfigType.DOUBLE, "+Infinity", "Infinity"),
        (ConfigType.DOUBLE, "1e400", "Infinity"),
        (ConfigType.DOUBLE, "-0x1p4000", "-Infinity"),
        (ConfigType.DOUBLE, "0x1.8p-1d", "0.75"),
        (ConfigType.DOUBLE, "0x.8P1", "1.0"),
        (ConfigType.DOUBLE, "nan", "nan"),
        (ConfigType.DOUBLE, "0x1", "0x1"),
        (ConfigType.DOUBLE, "Infinityd", "Infinityd"),
    ],
)
def test_values_are_written_as_kafka_writes_them(kind: ConfigType, text: str, written: str) -> None:  # rule B7.25
    assert definition(kind, "any").written(text) == written


@pytest.mark.parametrize(
    ("kind", "allowed", "text", "message"),
    [
        (ConfigType.BOOLEAN, "any", "yes", "k=yes: must be true or false"),
        (ConfigType.INT, "any", "2147483648", "k=2147483648: must be a whole number from -2147483648 to 2147483647"),
        (ConfigType.INT, "1..", "0", "k=0: must be a whole number from 1 to 2147483647"),
        (ConfigType.INT, "1..", "1.5", "k=1.5: must be a whole number from 1 to 2147483647"),
        (ConfigType.INT, "1..", "", "k=: must be a whole number from 1 to 2147483647"),
        (ConfigType.INT, "-1|1..9", "0", "k=0: must be a whole number -1 or from 1 to 9"),
        (ConfigType.SHORT, "any", "32768", "k=32768: must be a whole number from -32768 to 32767"),
        (ConfigType.LONG, "1..", "9223372036854775808", "must be a whole number from 1 to 9223372036854775807"),
        (ConfigType.DOUBLE, "0..0.5", "0.6", "k=0.6: must be a number from 0 to 0.5"),
        (ConfigType.DOUBLE, "any", "x", "k=x: must be a number"),
        (ConfigType.LIST, "a|b", "a,c", "k=a,c: must be a list, each element one of a, b"),
        (ConfigType.STRING, "a|b", "A", "k=A: must be one of a, b"),
    ],
)
def test_other_values_are_refused_with_what_is_allowed(kind: ConfigType, allowed: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        definition(kind, allowed).parse(text)
    assert str(refused.value).endswith(message)
