"""How a command connects as a client: Kafka's client properties, as `--command-config` of its tools takes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

import trio

from kce import wire
from kce.broker_stub.security.config import LOGIN_MODULES, TlsConfig, login_module
from kce.broker_stub.security.sasl_client import SaslClient, login_problem
from kce.harness.config_providers import resolved
from kce.harness.errors import HarnessError
from kce.harness.world.tls import Tls, handshake
from kce.wire.configuration import ConfigError
from kce.wire.configuration.property_file import parse_properties
from kce.wire.transport import ConnectionLost
from kce.wire.vocabulary import SECURITY_PROTOCOLS

_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """None is without."""

    tls: Tls | None = None
    sasl: SaslClient | None = None

    @classmethod
    def of_file(cls, path: Path | None) -> ClientSecurity:
        """Of a file of client properties. Raises HarnessError."""
        if path is None:
            return cls()
        try:
            return cls.of(resolved(parse_properties(path.read_text(encoding="latin-1"))))
        except (OSError, ConfigError) as e:
            raise HarnessError(f"{path}: {getattr(e, 'strerror', None) or e}") from None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> ClientSecurity:
        """Raises ConfigError."""
        protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
        if protocol not in SECURITY_PROTOCOLS.values():
            raise ConfigError(f"security.protocol={protocol}: must be one of {', '.join(SECURITY_PROTOCOLS.values())}")
        tls = Tls(TlsConfig.of_client(properties)) if protocol.endswith("SSL") else None
        if tls is not None:
            tls.client_context()
        return cls(tls, _sasl(properties) if protocol.startswith("SASL_") else None)

    async def secured(self, stream: trio.abc.Stream, host: str) -> trio.abc.Stream:
        """Secure a new connection to ``host`` and authenticate it. Raises ConnectionLost."""
        try:
            if self.tls is not None:
                encrypted = self.tls.connecting(stream, host)
                await handshake(encrypted)
                stream = encrypted
            if self.sasl is not None:
                await self.sasl.authenticate(_Framed(stream))
        except trio.BrokenResourceError as e:
            raise ConnectionLost(f"the TLS handshake failed: {e.__cause__ or e}") from None
        except wire.WireError as e:
            raise ConnectionLost(f"the authentication failed: {e}") from None
        return stream


def _sasl(properties: Mapping[str, str]) -> SaslClient:
    """Raises ConfigError."""
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip()
    if mechanism not in LOGIN_MODULES:
        raise ConfigError(f"sasl.mechanism={mechanism}: must be one of {', '.join(LOGIN_MODULES)}")
    text = properties.get("sasl.jaas.config")
    if text is None:
        raise ConfigError(f"sasl.mechanism={mechanism} needs sasl.jaas.config")
    try:
        module = login_module(mechanism, text)
    except ValueError as e:
        raise ConfigError(f"sasl.jaas.config: {e}") from None
    if problem := login_problem(mechanism, module):
        raise ConfigError(f"sasl.jaas.config: {problem}")
    return SaslClient(
        mechanism=mechanism, module=module, client_id="kce", random=SystemRandom(),
        now_ms=lambda: time.time_ns() // 1_000_000,
    )  # fmt: skip


class _Framed:
    """Frames on a stream, while nothing else is read from it (wire.transport.FramedConnection)."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._buffer = wire.FrameBuffer()

    async def send_frame(self, payload: bytes, rest: bytes | memoryview = b"") -> None:
        await self._stream.send_all(wire.frame(payload + rest))

    async def receive_frame(self) -> bytes:
        while (frame := self._buffer.next_frame()) is None:
            data = await self._stream.receive_some(_CHUNK_BYTES)
            if not data:
                raise ConnectionLost("the broker closed the connection")
            self._buffer.receive_data(data)
        return frame

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)
