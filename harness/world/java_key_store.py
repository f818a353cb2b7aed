"""Java's own format of key stores, JKS: private keys with their certificates, and certificates that are trusted.

Read without Java. Whatever `ssl.keystore.type` says, Java takes JKS for PKCS12 and the other way round, so it is the
content that tells.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Final, NamedTuple

_MAGIC: Final = b"\xfe\xed\xfe\xed"
_KEY, _CERTIFICATE = 1, 2
#: of a digest
_SIZE: Final = 20
#: what the digest of a store begins with, after the password
_WHITENER: Final = b"Mighty Aphrodite"
#: 1.3.6.1.4.1.42.2.17.1.1, the encryption of a key in JKS
_ALGORITHM: Final = bytes.fromhex("060a2b060104012a02110101")
_WRONG_PASSWORD: Final = "the password of the JKS store is wrong, or the store is damaged"  # noqa: S105


class KeyEntry(NamedTuple):
    """``encrypted``: an EncryptedPrivateKeyInfo in DER. ``chain``: certificates in DER."""

    encrypted: bytes
    chain: tuple[bytes, ...]

    def private_key(self, password: str) -> bytes:
        """In PKCS8 and DER. Raises ValueError."""
        at = self.encrypted.find(_ALGORITHM)
        if at < 0:
            raise ValueError("the key of the JKS store is encrypted in an unknown way")
        at += len(_ALGORITHM) + 2  # NULL
        content = self.encrypted[at + _length_bytes(self.encrypted, at) :]
        salt, body, check = content[:_SIZE], content[_SIZE:-_SIZE], content[-_SIZE:]
        secret, stream, block = password.encode("utf-16-be"), bytearray(), salt
        while len(stream) < len(body):
            block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
            stream += block
        key = bytes(one ^ other for one, other in zip(body, stream, strict=False))
        if not hmac.compare_digest(hashlib.sha1(secret + key, usedforsecurity=False).digest(), check):
            raise ValueError("the password of the key in the JKS store is wrong")
        return key


class JavaKeyStore(NamedTuple):
    keys: tuple[KeyEntry, ...]
    #: in DER
    trusted: tuple[bytes, ...]

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """What Java trusts of it: of a key the first of its certificates."""
        return (*self.trusted, *(key.chain[0] for key in self.keys if key.chain))


def is_java_key_store(content: bytes) -> bool:
    return content.startswith(_MAGIC)


def read_java_key_store(content: bytes, password: str | None) -> JavaKeyStore:
    """Without a password it is not verified, as by Java. Raises ValueError."""
    body, digest = content[:-_SIZE], content[-_SIZE:]
    if password is not None:
        secret = password.encode("utf-16-be")
        found = hashlib.sha1(secret + _WHITENER + body, usedforsecurity=False).digest()
        if not hmac.compare_digest(found, digest):
            raise ValueError(_WRONG_PASSWORD)
    reader = _Reader(body[len(_MAGIC) :])
    version = reader.integer(4)
    keys: list[KeyEntry] = []
    trusted: list[bytes] = []
    for kind in _kinds(reader):
        if kind == _KEY:
            encrypted = reader.counted(4)
            keys.append(KeyEntry(encrypted, tuple(_certificate(reader, version) for _ in range(reader.integer(4)))))
        elif kind == _CERTIFICATE:
            trusted.append(_certificate(reader, version))
        else:
            raise ValueError(f"the JKS store has an entry of unknown type {kind}")
    return JavaKeyStore(tuple(keys), tuple(trusted))


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, count: int) -> bytes:
        """Raises ValueError."""
        taken = self._content[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("the JKS store is cut off")
        self._at += count
        return taken

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def counted(self, size: int) -> bytes:
        """Bytes after their count."""
        return self.take(self.integer(size))


def _kinds(reader: _Reader) -> Iterator[int]:
    """Of the entries, without their names and dates."""
    for _ in range(reader.integer(4)):
        kind = reader.integer(4)
        reader.counted(2)
        reader.take(8)
        yield kind


def _certificate(reader: _Reader, version: int) -> bytes:
    if version > 1:
        reader.counted(2)  # X.509
    return reader.counted(4)


def _length_bytes(der: bytes, at: int) -> int:
    """How long the tag and the length of the element at ``at`` are."""
    if len(der) < at + 2:
        raise ValueError("the key of the JKS store is cut off")
    return 2 + (der[at + 1] & 0x7F if der[at + 1] & 0x80 else 0)
