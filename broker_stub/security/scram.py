"""SCRAM-SHA-256 and SCRAM-SHA-512: formulas, messages, and the text of a stored credential (rules B9.16-B9.18)."""

from __future__ import annotations

import base64
import binascii
import enum
import functools
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

_VALUE: Final = r"[\x01-\x2b\x2d-\x7f]+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE_SAFE: Final = r"[\x01-\x2b\x2d-\x3c\x3e-\x7f]+"
_BASE64: Final = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_RESERVED: Final = rf"(?:m={_VALUE},)?"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+={_VALUE})*"
_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,{_RESERVED}"
    rf"n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS})"
)
_SERVER_FIRST: Final = re.compile(
    rf"{_RESERVED}r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]+){_EXTENSIONS}"
)
_CLIENT_FINAL: Final = re.compile(
    rf"c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS},p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL: Final = re.compile(rf"e=(?P<error>{_VALUE_SAFE})|v=(?P<signature>{_BASE64}){_EXTENSIONS}")
_LARGEST_ITERATIONS: Final = 2**31 - 1
_NONCE_BITS: Final = 130
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class BadScramMessage(ValueError):
    """A message that is not of SCRAM's grammar. The text does not repeat it."""


class ScramMechanism(enum.Enum):
    """Values are (name, number in requests, digest)."""

    SHA_256 = ("SCRAM-SHA-256", 1, "sha256")
    SHA_512 = ("SCRAM-SHA-512", 2, "sha512")

    @property
    def mechanism_name(self) -> str:
        return self.value[0]

    @property
    def number(self) -> int:
        return self.value[1]

    @property
    def digest(self) -> str:
        return self.value[2]

    @classmethod
    def of_number(cls, number: int) -> ScramMechanism | None:
        return next((each for each in cls if each.number == number), None)

    @classmethod
    def of_name(cls, name: str) -> ScramMechanism | None:
        return next((each for each in cls if each.mechanism_name == name), None)

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.digest, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.digest)


#: rule B9.17, B9.21
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384


@functools.lru_cache(maxsize=64)
def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Rule B9.18. It takes some milliseconds, so that the last ones are remembered."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a broker knows of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of_salted(cls, mechanism: ScramMechanism, salt: bytes, salted: bytes, iterations: int) -> ScramCredential:
        stored = mechanism.hash(mechanism.hmac(salted, b"Client Key"))
        return cls(salt, stored, mechanism.hmac(salted, b"Server Key"), iterations)

    @classmethod
    def of_password(cls, mechanism: ScramMechanism, password: str, iterations: int, salt: bytes) -> ScramCredential:
        return cls.of_salted(mechanism, salt, salted_password(mechanism, password, salt, iterations), iterations)

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        """Of the text in ZooKeeper. Raises ValueError."""
        fields: dict[str, str] = {}
        for part in text.split(","):
            key, separator, value = part.partition("=")
            if not separator:
                raise ValueError("a SCRAM credential has fields of the form key=value")
            fields[key.strip()] = value.strip()
        if fields.keys() != {"salt", "stored_key", "server_key", "iterations"}:
            raise ValueError("a SCRAM credential has salt, stored_key, server_key and iterations, and nothing else")
        salt, stored, server = (_decoded(fields[name]) for name in ("salt", "stored_key", "server_key"))
        return cls(salt, stored, server, int(fields["iterations"]))

    def __str__(self) -> str:
        return (
            f"salt={_encoded(self.salt)},stored_key={_encoded(self.stored_key)},"
            f"server_key={_encoded(self.server_key)},iterations={self.iterations}"
        )


def nonce(random: Random) -> str:
    """As Kafka's, 130 random bits in base 36."""
    value, text = random.getrandbits(_NONCE_BITS), ""
    while value:
        value, digit = divmod(value, 36)
        text = _DIGITS[digit] + text
    return text or "0"


def sasl_name(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def username(name: str) -> str:
    """Raises BadScramMessage for an equals sign that escapes nothing."""
    user = name.replace("=2C", ",")
    if "=" in user.replace("=3D", ""):
        raise BadScramMessage("the user name has an invalid escape")
    return user.replace("=3D", "=")


@dataclass(frozen=True, slots=True)
class ClientFirst:
    sasl_name: str
    nonce: str
    authorization_id: str
    extensions: Mapping[str, str]

    @classmethod
    def parse(cls, message: bytes) -> ClientFirst:
        """Raises BadScramMessage."""
        match = _matched(_CLIENT_FIRST, message, "client first")
        extensions = {}
        for extension in match["extensions"].split(",")[1:]:
            key, _, value = extension.partition("=")
            extensions[key] = value
        return cls(match["name"], match["nonce"], match["authzid"] or "", extensions)

    @property
    def bare(self) -> str:
        extensions = ",".join(f"{key}={value}" for key, value in self.extensions.items())
        return f"n={self.sasl_name},r={self.nonce}{f',{extensions}' if extensions else ''}"

    def encode(self) -> bytes:
        return f"n,,{self.bare}".encode()


@dataclass(frozen=True, slots=True)
class ServerFirst:
    nonce: str
    salt: bytes
    iterations: int

    @classmethod
    def parse(cls, message: bytes) -> ServerFirst:
        """Raises BadScramMessage."""
        match = _matched(_SERVER_FIRST, message, "server first")
        digits = match["iterations"].lstrip("0")
        if not digits or len(digits) > len(str(_LARGEST_ITERATIONS)) or int(digits) > _LARGEST_ITERATIONS:
            raise BadScramMessage("the server first message has an invalid number of iterations")
        return cls(match["nonce"], _decoded(match["salt"]), int(digits))

    @property
    def text(self) -> str:
        return f"r={self.nonce},s={_encoded(self.salt)},i={self.iterations}"

    def encode(self) -> bytes:
        return self.text.encode()


@dataclass(frozen=True, slots=True)
class ClientFinal:
    nonce: str
    channel_binding: bytes = b"n,,"
    proof: bytes = b""

    @classmethod
    def parse(cls, message: bytes) -> ClientFinal:
        """Raises BadScramMessage."""
        match = _matched(_CLIENT_FINAL, message, "client final")
        return cls(match["nonce"], _decoded(match["channel"]), _decoded(match["proof"]))

    @property
    def without_proof(self) -> str:
        return f"c={_encoded(self.channel_binding)},r={self.nonce}"

    def encode(self) -> bytes:
        return f"{self.without_proof},p={_encoded(self.proof)}".encode()


@dataclass(frozen=True, slots=True)
class ServerFinal:
    """One of both."""

    error: str | None
    signature: bytes | None

    @classmethod
    def parse(cls, message: bytes) -> ServerFinal:
        """Raises BadScramMessage."""
        match = _matched(_SERVER_FINAL, message, "server final")
        if match["error"] is not None:
            return cls(match["error"], None)
        return cls(None, _decoded(match["signature"]))

    def encode(self) -> bytes:
        if self.signature is None:
            return f"e={self.error}".encode()
        return f"v={_encoded(self.signature)}".encode()


def auth_message(client_first: ClientFirst, server_first: ServerFirst, client_final: ClientFinal) -> bytes:
    """What both ends sign."""
    return f"{client_first.bare},{server_first.text},{client_final.without_proof}".encode()


def xor(first: bytes, second: bytes) -> bytes:
    """Raises BadScramMessage for different lengths."""
    if len(first) != len(second):
        raise BadScramMessage("the proof has a wrong length")
    return (int.from_bytes(first) ^ int.from_bytes(second)).to_bytes(len(first))


def client_proof(mechanism: ScramMechanism, salted: bytes, signed: bytes) -> bytes:
    key = mechanism.hmac(salted, b"Client Key")
    return xor(key, mechanism.hmac(mechanism.hash(key), signed))


def _matched(pattern: re.Pattern[str], message: bytes, what: str) -> re.Match[str]:
    match = pattern.fullmatch(message.decode("utf-8", "replace"))
    if match is None:
        raise BadScramMessage(f"invalid format of SCRAM's {what} message")
    return match


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise BadScramMessage(f"invalid base64: {e}") from None
