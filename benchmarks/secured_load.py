"""Clients of `benchmarks.groups` that open connections to secured listeners, one after the other in some threads.

Each function runs in a process of its own, the same for every server.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Final

from benchmarks.broker_load import API_VERSIONS, Address, ask, request
from kce import wire
from kce.broker_stub.security import scram
from kce.wire import ErrorCode

THREADS: Final = 4
USER, PASSWORD = "alice", "alice's"
MECHANISM: Final = scram.ScramMechanism.SHA_256
SALT: Final = bytes(range(16))
#: the client's part of the work is done once for all connections
SALTED: Final = scram.salted_password(MECHANISM, PASSWORD, SALT, scram.MIN_ITERATIONS)


def create_user(address: Address) -> None:
    """On a listener without security. Raises RuntimeError."""
    upsertion = wire.ScramCredentialUpsertion(
        name=USER,
        mechanism=MECHANISM.number,
        iterations=scram.MIN_ITERATIONS,
        salt=SALT,
        salted_password=SALTED,
    )
    answer: Any = request(address, wire.AlterUserScramCredentialsRequest(deletions=(), upsertions=(upsertion,)), 0)
    codes = {result.error_code for result in answer.results}
    if codes != {ErrorCode.NONE}:
        raise RuntimeError(f"the user was not made: {codes}")


def tls(address: Address, seconds: float, trusted: str) -> float:
    """Connections a second, each with a whole handshake and one request. ``trusted``: the authority, in PEM.

    No session is resumed: Kafka's server resumes none of this client's.
    """
    context = ssl.create_default_context(cadata=trusted)

    def connections(until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            with (
                _connected(address) as connection,
                context.wrap_socket(connection, server_hostname="127.0.0.1") as secured,
            ):
                ask(secured, API_VERSIONS)
            done += 1
        return done

    return _rate(connections, seconds)


def _connected(address: Address) -> socket.socket:
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def scram_logins(address: Address, seconds: float) -> float:
    """Connections a second, each with a login by SCRAM-SHA-256 and one request."""

    def connections(until: float) -> int:
        random, done = Random(), 0
        while time.perf_counter() < until:
            with _connected(address) as connection:
                _log_in(connection, scram.nonce(random))
                ask(connection, API_VERSIONS)
            done += 1
        return done

    return _rate(connections, seconds)


def _log_in(connection: socket.socket, nonce: str) -> None:
    ask(connection, _HANDSHAKE)
    first = scram.ClientFirst(USER, nonce, "", {})
    answer = scram.ServerFirst.parse(_authenticate(connection, first.encode()))
    unproved = scram.ClientFinal(answer.nonce)
    proof = scram.client_proof(MECHANISM, SALTED, scram.auth_message(first, answer, unproved))
    _authenticate(connection, scram.ClientFinal(answer.nonce, proof=proof).encode())


def _authenticate(connection: socket.socket, token: bytes) -> bytes:
    response = ask(connection, _framed(wire.SaslAuthenticateRequest(auth_bytes=token), 2))
    answer = wire.decode_response(response, api_key=wire.SaslAuthenticateRequest.__api_key__, api_version=2)[1]
    assert isinstance(answer, wire.SaslAuthenticateResponse)
    if answer.error_code != ErrorCode.NONE:
        raise RuntimeError(f"the login was refused: {answer.error_message}")
    return answer.auth_bytes


def _framed(message: wire.Message, version: int) -> bytes:
    return wire.frame(wire.encode_request(message, api_version=version, correlation_id=1, client_id="benchmark"))


_HANDSHAKE: Final = _framed(wire.SaslHandshakeRequest(mechanism=MECHANISM.mechanism_name), 1)


def _rate(connections: Callable[[float], int], seconds: float) -> float:
    begin = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        done = sum(pool.map(connections, [begin + seconds] * THREADS))
    return done / (time.perf_counter() - begin)
