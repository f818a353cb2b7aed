"""Passwords of a dynamic configuration, as Kafka stores them in ZooKeeper: encrypted by `password.encoder.secret`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from kce.extras import require
from kce.wire.configuration import Properties

_SALT_BYTES: Final = 256
_BLOCK_BYTES: Final = 16
#: Java's names of key factories -> those of hashes
_HASHES: Final[Mapping[str, str]] = {
    "PBKDF2WithHmacSHA1": "sha1",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA512": "sha512",
}
_CIPHER: Final = "AES/CBC/PKCS5Padding"
_KEY_BITS: Final = (128, 192, 256)
_MOST_ITERATIONS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordEncoder:
    """Decodes what any settings but the secret have encoded, and encodes with these."""

    secret: str
    key_factory: str
    cipher: str
    key_bits: int
    iterations: int

    @classmethod
    def of(cls, read: Properties) -> PasswordEncoder | None:
        """None without a secret. Raises ConfigError."""
        secret = read.text("password.encoder.secret")
        if not secret:
            return None
        return cls(
            secret=secret,
            key_factory=read.text("password.encoder.keyfactory.algorithm") or "PBKDF2WithHmacSHA512",
            cipher=read.required("password.encoder.cipher.algorithm"),
            key_bits=read.integer("password.encoder.key.length"),
            iterations=read.integer("password.encoder.iterations"),
        )

    def encode(self, password: str, random: Random) -> str:
        salt, vector = random.randbytes(_SALT_BYTES), random.randbytes(_BLOCK_BYTES)
        key = _key(self.secret, self.key_factory, salt, self.iterations, self.key_bits)
        entries = {
            "keyFactoryAlgorithm": self.key_factory,
            "cipherAlgorithm": self.cipher,
            "keyLength": self.key_bits,
            "salt": _text(salt),
            "iterations": self.iterations,
            "encryptedPassword": _text(_encrypted(key, vector, password.encode())),
            "passwordLength": _java_length(password),
            "initializationVector": _text(vector),
        }
        return ",".join(f"{name}:{value}" for name, value in entries.items())

    def decode(self, encoded: str) -> str:
        """Raises ValueError."""
        entries = dict(entry.strip().rpartition(":")[::2] for entry in encoded.split(","))
        try:
            factory, cipher = entries["keyFactoryAlgorithm"], entries["cipherAlgorithm"]
            key_bits, iterations = int(entries["keyLength"]), int(entries["iterations"])
            salt, vector, encrypted = (
                base64.b64decode(entries[name], validate=True)
                for name in ("salt", "initializationVector", "encryptedPassword")
            )
            length = int(entries["passwordLength"])
        except KeyError as e:
            raise ValueError(f"it has no {e}") from None
        if factory not in _HASHES or cipher != _CIPHER or key_bits not in _KEY_BITS:
            raise ValueError(f"{factory} with {cipher} and keys of {key_bits} bits is not supported here")
        if not 1 <= iterations <= _MOST_ITERATIONS:
            raise ValueError(f"{iterations} iterations")
        password = _decrypted(_key(self.secret, factory, salt, iterations, key_bits), vector, encrypted).decode()
        if _java_length(password) != length:
            raise ValueError("its length is wrong")
        return password


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _java_length(text: str) -> int:
    return len(text.encode("utf-16-be")) // 2


def _key(secret: str, factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
    return hashlib.pbkdf2_hmac(_HASHES[factory], secret.encode(), salt, iterations, bits // 8)


def _encrypted(key: bytes, vector: bytes, content: bytes) -> bytes:
    require("cryptography", purpose="password.encoder.secret")
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    missing = _BLOCK_BYTES - len(content) % _BLOCK_BYTES
    encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    return encryptor.update(content + bytes([missing]) * missing) + encryptor.finalize()


def _decrypted(key: bytes, vector: bytes, content: bytes) -> bytes:
    """Raises ValueError."""
    require("cryptography", purpose="password.encoder.secret")
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    padded = decryptor.update(content) + decryptor.finalize()
    missing = padded[-1] if padded else 0
    if not 1 <= missing <= _BLOCK_BYTES or padded[-missing:] != bytes([missing]) * missing:
        raise ValueError("it was not encoded with this secret")
    return padded[:-missing]
