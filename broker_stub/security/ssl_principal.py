"""The principal of a client's certificate: its subject as Java prints it, and `ssl.principal.mapping.rules` (B9.2)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Final, NamedTuple

_RULE_PATTERN: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_RULE_SPLITTER: Final = re.compile(rf"\s*({_RULE_PATTERN})\s*(,\s*|$)")
_RULE_PARSER: Final = re.compile(_RULE_PATTERN)
#: $1 or ${name} in a replacement, a dollar sign of neither, or a character that a backslash makes ordinary
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)|\$(?:\{([A-Za-z][A-Za-z0-9]*)\})?", re.DOTALL)
#: a named group in Java's notation
_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")

_UNIVERSAL_INTEGER, _SEQUENCE, _OID, _VERSION_TAG = 0x02, 0x30, 0x06, 0xA0
_OCTETS, _EXTENSIONS_TAG = 0x04, 0xA3
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
#: tags of what Java takes for a text; it reads all of them as UTF-8, also a BMPString
_TEXTS: Final = (0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E)
#: RFC 2253 has these keywords; other attributes are written as numbers
_KEYWORDS: Final = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC",
}  # fmt: skip
_ESCAPED: Final = ',=+<>#;"\\'


class NoMatchingRule(ValueError):
    """No rule applies to a subject, or one that refers to a group that its pattern does not have."""


class _Rule(NamedTuple):
    """``pattern`` None is DEFAULT: the subject as it is."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        result = self.pattern.sub(self._replaced, subject)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)

    def _replaced(self, match: re.Match[str]) -> str:
        groups = match.re.groups

        def reference(found: re.Match[str]) -> str:
            if found[1] is not None:
                return found[1]
            digits = found[2]
            if digits is None or (groups == 0 and digits[0] != "0"):  # Kafka lets only numbers be, and of groups
                if found[3] not in match.re.groupindex:
                    raise NoMatchingRule(f"a rule refers to a group that is not there: {self.replacement}")
                return match[found[3]] or ""
            number = digits
            while int(number) > groups and len(number) > 1:  # $12 is $1 and 2 where there is no twelfth group
                number = number[:-1]
            if int(number) > groups:
                return found[0]
            return (match[int(number)] or "") + digits[len(number) :]

        return _REFERENCE.sub(reference, self.replacement)


class SslPrincipalMapper:
    """`ssl.principal.mapping.rules`: the first rule that matches the whole subject makes the name."""

    def __init__(self, rules: str) -> None:
        """Raises ValueError."""
        self._rules = [rule for text in _split(rules) if (rule := _parse(text)) is not None]

    def name(self, subject: str) -> str:
        """Raises NoMatchingRule."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise NoMatchingRule(f"no rule applies to {subject}")


def _split(rules: str) -> Iterator[str]:
    for match in _RULE_SPLITTER.finditer(rules.strip()):
        yield match[1]


def _parse(text: str) -> _Rule | None:
    """None for an empty rule, which is ignored."""
    match = _RULE_PARSER.match(text)
    if match is None or match.end() != len(text):
        raise ValueError(f"invalid rule {text!r}")
    if match[1] is not None:
        return _Rule(None)
    if match[2] is None:
        return None
    try:
        with warnings.catch_warnings():  # of sets in sets, which Python reads otherwise than Java
            warnings.simplefilter("error", FutureWarning)
            pattern = re.compile(_NAMED_GROUP.sub("(?P<", match[2]), re.ASCII)  # Java's \w is a letter of ASCII
    except (re.error, FutureWarning) as e:
        raise ValueError(f"invalid pattern {match[2]!r}: {e}") from None
    return _Rule(pattern, match[3], match[4])


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER, as RFC 2253 and Java's X500Principal.getName write it.

    Raises ValueError for bytes that are no certificate.
    """
    _, subject = _fields(certificate)[4]
    names = ["+".join(_attribute(content) for _, content in _elements(relative)) for _, relative in _elements(subject)]
    return ",".join(reversed(names))


def alternative_names(certificate: bytes) -> frozenset[tuple[int, bytes]]:
    """The subject's other names in a certificate in DER: the kind of each, and its bytes.

    Raises ValueError for bytes that are no certificate.
    """
    for tag, extensions in _fields(certificate)[5:]:
        if tag != _EXTENSIONS_TAG:
            continue
        for _, extension in _elements(_element(extensions, 0)[1]):
            (_, oid), *rest = _elements(extension)
            if _dotted(oid) == _ALTERNATIVE_NAMES and rest and rest[-1][0] == _OCTETS:
                return frozenset(_elements(_element(rest[-1][1], 0)[1]))
    return frozenset()


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of what is signed, from the serial number on. Raises ValueError."""
    _, whole, _ = _element(certificate, 0)
    _, signed, _ = _element(whole, 0)
    fields = list(_elements(signed))
    if fields and fields[0][0] == _VERSION_TAG:
        del fields[0]
    if len(fields) < 5 or fields[0][0] != _UNIVERSAL_INTEGER or fields[4][0] != _SEQUENCE:
        raise ValueError("this is not a certificate")
    return fields


def _attribute(content: bytes) -> str:
    tag, oid, value_at = _element(content, 0)
    value_tag, value, _ = _element(content, value_at)
    if tag != _OID:
        raise ValueError("an attribute of the subject has no type")
    dotted = _dotted(oid)
    keyword = _KEYWORDS.get(dotted)
    if keyword is None or value_tag not in _TEXTS:
        return f"{keyword or dotted}=#{content[value_at:].hex()}"
    return f"{keyword}={_escaped(value.decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    body = "".join(f"\\{c}" if c in _ESCAPED else "\\00" if c == "\0" else c for c in text)
    leading = len(body) - len(body.lstrip(" \r"))
    if leading == len(body):
        return "".join(f"\\{c}" for c in body)
    trailing = len(body) - len(body.rstrip(" \r"))
    end = len(body) - trailing
    start, stop = "".join(f"\\{c}" for c in body[:leading]), "".join(f"\\{c}" for c in body[end:])
    return start + body[leading:end] + stop


def _dotted(oid: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in oid:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        raise ValueError("an attribute of the subject has an empty type")
    first = min(numbers[0] // 40, 2)
    return ".".join(str(number) for number in (first, numbers[0] - 40 * first, *numbers[1:]))


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(content):
        tag, value, at = _element(content, at)
        yield tag, value


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag and content of the DER element at ``at``, and where the next one begins. Raises ValueError."""
    if len(data) < at + 2:
        raise ValueError("a certificate is cut off")
    tag, length, at = data[at], data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[at : at + count], "big")
        at += count
    if len(data) < at + length:
        raise ValueError("a certificate is cut off")
    return tag, data[at : at + length], at + length
