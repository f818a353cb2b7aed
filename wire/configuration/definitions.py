"""Definitions of settings: type, default, allowed values, changes at run time, and their effect in this project.

Values are Kafka's strings throughout: as in server.properties, in ZooKeeper and in DescribeConfigs.
"""

from __future__ import annotations

import contextlib
import enum
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol, TypeAlias

#: a parsed value
Value: TypeAlias = bool | int | float | str | tuple[str, ...]


class ConfigError(ValueError):
    """The value of a setting is not allowed. The text is one line: key, value, what is allowed.

    ``words`` are Kafka's, for answers: tools print them.
    """

    def __init__(self, text: str, words: str | None = None) -> None:
        super().__init__(text)
        self.words = text if words is None else words


class ConfigType(enum.IntEnum):
    """The numbers are those of DescribeConfigs responses."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


#: the largest value of each type of whole numbers
LARGEST: Final = {ConfigType.SHORT: 2**15 - 1, ConfigType.INT: 2**31 - 1, ConfigType.LONG: 2**63 - 1}


class Dynamic(enum.Enum):
    """The scope in which Kafka allows changes of a setting while the broker runs (rule B7.29)."""

    STATIC = "static"
    BROKER = "broker"  # for one broker only
    CLUSTER = "cluster"  # for one broker, and as a default for all


class Support(enum.Enum):
    """The effect of a setting in this project."""

    LIVE = "live"  # takes effect, also when it changes while the broker runs
    HONOURED = "honoured"  # takes effect when the broker starts
    REFUSED = "refused"  # a limit that does not exist here: only its default is accepted
    PROTECTION = "protection"  # a protection that does not exist here: only its default is accepted
    IGNORED = "ignored"  # accepted without effect, with a warning


class Allowed(Protocol):
    """The values that a setting, or each element of a list, may have. Its text continues "must be"."""

    def __contains__(self, value: object, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Anything:
    def __contains__(self, value: object) -> bool:
        return True

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers in one of the ``ranges``: pairs of the least and the greatest."""

    ranges: tuple[tuple[float, float], ...]

    def __contains__(self, value: object) -> bool:
        """NaN is, for it is neither too small nor too large."""
        return isinstance(value, (int, float)) and any(
            not (value < least or value > most) for least, most in self.ranges
        )

    def __str__(self) -> str:
        return " or ".join(str(least) if least == most else f"from {least} to {most}" for least, most in self.ranges)


@dataclass(frozen=True, slots=True)
class OneOf:
    values: tuple[str, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return f"one of {', '.join(self.values)}"


@dataclass(frozen=True, slots=True)
class Matching:
    """Texts that match ``pattern`` completely; ``description`` is for error messages, ``words`` are Kafka's."""

    pattern: re.Pattern[str]
    description: str
    words: str | None = None

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and self.pattern.fullmatch(value) is not None

    def __str__(self) -> str:
        return self.description


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDef:
    """One setting. ``default`` is None if it has none."""

    name: str
    type: ConfigType
    default: str | None
    allowed: Allowed
    support: Support

    def parse(self, text: str) -> Value:
        """Raises ConfigError."""
        text = text.strip()
        words = None
        shown, problem = text, _UNPARSABLE.get(self.type, "Not a number of type {}").format(self.type.name)
        with contextlib.suppress(ValueError):
            value = _parse(self.type, text)
            elements = _elements(text) if isinstance(value, tuple) else (value,)
            wrong = [element for element in elements if element not in self.allowed]
            if not wrong:
                return value
            shown, problem = self._shown(wrong[0], text), self._problem(wrong[0])
            words = _REQUIREMENTS.get(self.name)
        expected = f"{_EXPECTED.get(self.type, '')} {self.allowed}".strip()
        raise ConfigError(
            f"{self.name}={text}: must be {expected}",
            words or f"Invalid value {shown} for configuration {self.name}: {problem}",
        )

    def written(self, text: str) -> str:
        """As Kafka writes a value that it has read: 1000 for ` +1000 `. A text that is no value stays as it is."""
        if text == self.default:
            return text
        try:
            value = self.parse(text)
        except ConfigError:
            return text
        match value:
            case bool():
                return str(value).lower()
            case float():
                return java_double(value)
            case tuple():
                return ",".join(_elements(text.strip()))
        return str(value)

    def _shown(self, wrong: Value, text: str) -> str:
        """What Kafka says is wrong: the value that it has read, or an element of a list."""
        if isinstance(self.allowed, Matching):
            return f"[{', '.join(_elements(text))}]" if self.type is ConfigType.LIST else text
        return java_double(wrong) if isinstance(wrong, float) else str(wrong)

    def _problem(self, value: object) -> str:
        """Why an element is not allowed, in Kafka's words."""
        if isinstance(self.allowed, OneOf):
            return f"String must be {self.allowed}".replace("one of", "one of:")
        if isinstance(self.allowed, Matching) and self.allowed.words is not None:
            return f"{self.name} {self.allowed.words}"
        if isinstance(self.allowed, Numbers) and isinstance(value, (int, float)):
            if self.name.endswith(_WITH_A_GAP):
                (default, _), (low, high) = self.allowed.ranges
                return f"Value must be between {low} and {high} or equal to {default}"
            least, most = self.allowed.ranges[0][0], self.allowed.ranges[-1][1]
            if value < least:
                return f"Value must be at least {least}"
            if value > most:
                return f"Value must be no more than {most}"
        return f"Value must be {self.allowed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfigDef(ConfigDef):
    """``described``: DescribeConfigs lists it also where it is not set. ``readers`` parse it when a node starts."""

    dynamic: Dynamic
    described: bool
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigDef(ConfigDef):
    """``synonyms``: the broker's settings that apply if the topic has no value, the finer unit first, each with the
    factor from its unit to the topic's."""

    synonyms: tuple[tuple[str, int], ...]


_UNPARSABLE: Final = {
    ConfigType.BOOLEAN: "Expected value to be either true or false",
    ConfigType.CLASS: "Class  could not be found.",
}
#: what Kafka says of numbers whose limits it checks only in a whole configuration
_REQUIREMENTS: Final = {
    "log.roll.jitter.ms": "requirement failed: log.roll.jitter.ms must be greater than or equal to 0",
    "log.roll.ms": "requirement failed: log.roll.ms must be greater than or equal to 1",
}
#: numbers as Java reads them
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
#: what Kafka checks with two conditions
_WITH_A_GAP: Final = "compression.gzip.level"
_EXPECTED: Final = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.SHORT: "a whole number",
    ConfigType.INT: "a whole number",
    ConfigType.LONG: "a whole number",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list, each element",
    ConfigType.CLASS: "the name of a class",
}


def _parse(kind: ConfigType, text: str) -> Value:
    """Raises ValueError."""
    if kind in LARGEST:
        if not _WHOLE.fullmatch(text) or not -LARGEST[kind] - 1 <= int(text) <= LARGEST[kind]:
            raise ValueError(text)
        return int(text)
    if kind is ConfigType.DOUBLE:
        return _double(text)
    if kind is ConfigType.LIST:
        return tuple(list_of(text))
    if kind is ConfigType.CLASS and not text:
        raise ValueError(text)
    if kind is ConfigType.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return text


def _double(text: str) -> float:
    """Raises ValueError."""
    if hexadecimal := _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(hexadecimal[1])
        except OverflowError:
            return -math.inf if text.startswith("-") else math.inf
    if not _DECIMAL.fullmatch(text):
        raise ValueError(text)
    return float(text.rstrip("fFdD"))


def whole_number(text: str) -> int | None:
    """As Java's Integer.parseInt reads it; None for what it refuses."""
    value = int(text) if _WHOLE.fullmatch(text) else None
    most = LARGEST[ConfigType.INT]
    return value if value is not None and -most - 1 <= value <= most else None


def java_double(value: float) -> str:
    """As Java writes it."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return text
    digits, _, exponent = f"{Decimal(text).normalize():E}".partition("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def _elements(text: str) -> tuple[str, ...]:
    """Those of a list with the empty ones, which are checked, too."""
    return tuple(part.strip() for part in text.split(",")) if text else ()


def list_of(text: str) -> list[str]:
    """The elements of a comma-separated list, stripped, without empty ones."""
    return [part.strip() for part in text.split(",") if part.strip()]


def allowed_values(text: str, kind: ConfigType) -> Allowed:
    """Parse the notation of the tables: ``any``; ``a|b|c``; for numbers ``1..``, ``1..9`` or ``-1|1..9``."""
    most = LARGEST.get(kind)
    if text == "any":
        return Anything() if most is None else Numbers(((-most - 1, most),))
    alternatives = text.split("|")
    if most is None and kind is not ConfigType.DOUBLE:
        return OneOf(tuple(alternatives))
    return Numbers(tuple(_range(alternative, math.inf if most is None else most) for alternative in alternatives))


def _range(text: str, largest: float) -> tuple[float, float]:
    least, dots, most = text.partition("..")
    if not dots:
        return _number(least), _number(least)
    return _number(least), _number(most) if most else largest


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
