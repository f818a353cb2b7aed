"""TLS of a node's listeners and of its own connections: certificates in PEM, PKCS12 or JKS, and Trio's SSL streams.

Frames pass a link above the stream, so that recordings and rules see them in the clear.
"""

from __future__ import annotations

import base64
import re
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

import trio

from kce.broker_stub.security.config import KeyStore, ListenerSecurity, TlsConfig, TrustStore
from kce.extras import MissingExtra, require
from kce.harness.world.java_key_store import is_java_key_store, read_java_key_store
from kce.harness.world.tls_failures import tls_failure
from kce.wire.configuration import ConfigError

#: a stream that speaks TLS above one of a world
SecuredStream: TypeAlias = trio.SSLStream[trio.abc.Stream]

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE: Final = 64
#: OpenSSL's reasons for what is no TLS at all; and a record with Java's alert
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST")
_INTERNAL_ERROR: Final = b"\x15\x03\x03\x00\x02\x02\x50"
#: for how long an alert may take to be sent
_ALERT_S: Final = 1
_unsent: Final = WeakKeyDictionary[SecuredStream, ssl.MemoryBIO]()


class Pem(NamedTuple):
    """A private key and its certificates, in PEM."""

    key: str
    chain: str
    password: str

    @property
    def certificate(self) -> bytes:
        """The first of the chain, in DER."""
        end = "-----END CERTIFICATE-----"
        return ssl.PEM_cert_to_DER_cert(self.chain.partition(end)[0] + end)


class Stores(NamedTuple):
    """The content of key store and trust store; None for one that there is not."""

    own: Pem | None
    trusted: str | None


class _Context:
    """Remembers where OpenSSL writes what is to be sent: Trio drops it where OpenSSL fails."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._outgoing = ssl.MemoryBIO()

    def as_ssl(self) -> ssl.SSLContext:
        return cast("ssl.SSLContext", self)

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **more: Any) -> ssl.SSLObject:
        self._outgoing = outgoing
        return self._context.wrap_bio(incoming, outgoing, **more)

    def known(self, stream: SecuredStream) -> SecuredStream:
        _unsent[stream] = self._outgoing
        return stream


class Tls:
    """One listener's TLS. Stores are read and contexts made when they are first needed: a client needs no key."""

    def __init__(self, config: TlsConfig) -> None:
        self.config = config
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None

    def accepting(self, stream: trio.abc.Stream) -> SecuredStream:
        """The server's end. ``handshake`` it before use."""
        context = _Context(self.server_context())
        return context.known(trio.SSLStream(stream, context.as_ssl(), server_side=True, https_compatible=True))

    def connecting(self, stream: trio.abc.Stream, host: str) -> SecuredStream:
        """The client's end, which verifies the server's certificate, and that it is ``host``'s if configured so."""
        context = _Context(self.client_context())
        return context.known(trio.SSLStream(stream, context.as_ssl(), server_hostname=host, https_compatible=True))

    def server_context(self) -> ssl.SSLContext:
        """Raises ConfigError."""
        if self._server is None:
            context = self._context(ssl.PROTOCOL_TLS_SERVER)
            context.verify_mode = _CLIENT_AUTH[self.config.client_auth]
            self._server = context
        return self._server

    def client_context(self) -> ssl.SSLContext:
        """Raises ConfigError."""
        if self._client is None:
            self._client = self.context_of_client(verifies_host=self.config.verifies_host)
        return self._client

    def context_of_client(self, *, verifies_host: bool) -> ssl.SSLContext:
        """Raises ConfigError."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = verifies_host
        return context

    @cached_property
    def stores(self) -> Stores:
        """Raises ConfigError."""
        key_store, trust_store = self.config.key_store, self.config.trust_store
        which = "ssl.keystore"
        try:
            own = None if key_store is None else _own(key_store)
            which = "ssl.truststore"
            return Stores(own, None if trust_store is None else _trusted(trust_store))
        except (OSError, ValueError, MissingExtra) as e:
            raise self._unusable(e, which) from None

    def _context(self, protocol: int) -> ssl.SSLContext:
        config = self.config
        context = ssl.SSLContext(protocol)
        context.minimum_version = min(_VERSIONS[version] for version in config.versions)
        context.maximum_version = max(_VERSIONS[version] for version in config.versions)
        own, trusted = self.stores
        which = "ssl.keystore"
        try:
            if own is not None:
                _load_key(context, own)
            which = "ssl.truststore"
            if trusted is not None:
                context.load_verify_locations(cadata=trusted)
            else:
                context.load_default_certs()
        except (OSError, ValueError) as e:  # ssl.SSLError is an OSError
            raise self._unusable(e, which) from None
        return context

    def _unusable(self, error: Exception, which: str) -> ConfigError:
        """``which`` are the settings that it is about."""
        why = str(error).partition(" (_ssl.c:")[0]
        if isinstance(error, OSError) and error.filename is not None:
            why = f"{error.filename}: {error.strerror}"
        return ConfigError(f"{self.config.where}: its certificates cannot be used: {which}.*: {why}")


def _alert_of(error: ssl.SSLError) -> bytes:
    """What Java says to a peer that does not speak TLS, where OpenSSL says nothing."""
    return _INTERNAL_ERROR if error.reason in _NOT_TLS else b""


async def handshake(stream: SecuredStream) -> bytes | None:
    """The peer's verified certificate in DER; None if it has shown none.

    Raises trio.BrokenResourceError, with what failed. The peer is told, too: Kafka's clients give up then, and
    otherwise try again.
    """
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as e:
        if isinstance(e.__cause__, ssl.SSLError) and (alert := _unsent[stream].read() or _alert_of(e.__cause__)):
            with trio.move_on_after(_ALERT_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.transport_stream.send_all(alert)
        raise trio.BrokenResourceError(tls_failure(e) or str(e.__cause__ or e)) from None
    await _send_tickets(stream)
    found = stream.getpeercert(binary_form=True)
    assert found is None or isinstance(found, bytes)
    return found


async def _send_tickets(stream: SecuredStream) -> None:
    """Send a TLS 1.3 client its session tickets now. Trio keeps them for the first answer; but they acknowledge the
    handshake, without which a client with Nagle's algorithm waits 40 ms before it sends its first request."""
    if tickets := getattr(stream, "_delayed_outgoing", None):
        stream._delayed_outgoing = None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # met again by who reads
            await stream.transport_stream.send_all(tickets)


def listeners_tls(security: Mapping[str, ListenerSecurity]) -> dict[str, Tls]:
    """By listener, for those with TLS; both ends work. Raises ConfigError."""
    made = {listener: Tls(each.tls) for listener, each in security.items() if each.tls is not None}
    for tls in made.values():
        tls.server_context()
        tls.client_context()
    return made


def _load_key(context: ssl.SSLContext, own: Pem) -> None:
    """OpenSSL takes keys from files only: one that this user alone can read, for that moment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "key.pem")
        path.write_text(f"{own.key}\n{own.chain}", encoding="ascii")
        try:
            # a function, so that no password is requested from a terminal
            context.load_cert_chain(path, password=lambda: own.password)
        except ssl.SSLError as e:
            if e.reason:
                raise
            # all that OpenSSL says is "PEM lib"
            why = "ssl.key.password is wrong, or the key is damaged" if own.password else "the key is damaged"
            raise ValueError(why) from None


def _own(store: KeyStore) -> Pem:
    if store.key is not None and store.certificate_chain is not None:
        return _pem(_normal(store.key), _normal(store.certificate_chain), store)
    content = _read(store.location)
    if store.type.upper() != "PEM":  # Java takes either for the other
        return _own_of_jks(content, store) if is_java_key_store(content) else _own_of_pkcs12(content, store)
    blocks = _blocks(content.decode("ascii", "replace"))
    keys = [block for kind, block in blocks if kind.endswith("PRIVATE KEY")]
    chain = [block for kind, block in blocks if kind == "CERTIFICATE"]
    if len(keys) != 1 or not chain:
        raise ValueError(f"{store.location} must hold one private key and its certificates")
    return _pem(keys[0], "".join(chain), store)


def _pem(key: str, chain: str, store: KeyStore) -> Pem:
    """Raises ValueError for the password of a key that has none, as Kafka does."""
    if store.key_password is not None and "ENCRYPTED" not in key:
        raise ValueError("the key is not encrypted, but has a password")
    if store.key_password is None and "ENCRYPTED" in key:
        raise ValueError("the key is encrypted, but ssl.key.password is missing")
    return Pem(key, chain, store.key_password or "")


def _own_of_jks(content: bytes, store: KeyStore) -> Pem:
    keys = read_java_key_store(content, store.password).keys
    if not keys or not keys[0].chain:
        raise ValueError("the JKS key store holds no key")
    key = base64.b64encode(keys[0].private_key(store.key_password or store.password or "")).decode()
    return Pem(_block("PRIVATE KEY", key), _pem_of(keys[0].chain), "")


def _own_of_pkcs12(content: bytes, store: KeyStore) -> Pem:
    if store.key_password not in (None, store.password):
        raise ValueError("the key's password is not that of the PKCS12 store")
    require("cryptography", purpose="a PKCS12 store")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

    key, certificate, others = pkcs12.load_key_and_certificates(content, _bytes(store.password))
    if key is None or certificate is None:
        raise ValueError("the PKCS12 key store holds no key")
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in (certificate, *others))
    return Pem(plain.decode(), chain.decode(), "")


def _trusted(store: TrustStore) -> str:
    if store.certificates is not None:
        return _normal(store.certificates)
    content = _read(store.location)
    if store.type.upper() != "PEM":
        if is_java_key_store(content):
            return _pem_of(read_java_key_store(content, store.password).certificates)
        require("cryptography", purpose="a PKCS12 store")
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

        found = pkcs12.load_pkcs12(content, _bytes(store.password))
        held = [*([found.cert] if found.cert else []), *found.additional_certs]
        return b"".join(each.certificate.public_bytes(Encoding.PEM) for each in held).decode()
    return _normal(content.decode("ascii", "replace"))


def _pem_of(certificates: Iterable[bytes]) -> str:
    """Of certificates in DER."""
    return "".join(ssl.DER_cert_to_PEM_cert(each) for each in certificates)


def _bytes(password: str | None) -> bytes | None:
    return None if password is None else password.encode()


def _read(location: str | None) -> bytes:
    assert location is not None, "a store has a location or texts"
    return Path(location).read_bytes()


def _blocks(text: str) -> list[tuple[str, str]]:
    """Kind and text of each block, with lines as OpenSSL wants them: a setting has often only one."""
    return [(match[1], _block(match[1], match[2])) for match in _BLOCK.finditer(text)]


def _block(kind: str, body: str) -> str:
    if "Proc-Type" in body:  # the headers of a traditional encrypted key end with an empty line
        return f"-----BEGIN {kind}-----{body}-----END {kind}-----\n"
    content = "".join(body.split())
    lines = [content[at : at + _LINE] for at in range(0, len(content), _LINE)]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""])


def _normal(text: str) -> str:
    """Raises ValueError for a text without a block in PEM."""
    blocks = _blocks(text)
    if not blocks:
        raise ValueError("there is no PEM block in it")
    return "".join(block for _, block in blocks)
