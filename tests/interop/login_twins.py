"""Random logins with SASL, right ones and odd ones, which both twins must answer alike.

    python -m tests.interop.login_twins --seed 5 --steps 1000

Each step is a connection: requests and tokens in the right order, or in another one, with mechanisms that there are or
not, passwords and proofs that are right or not, other requests in between, and a second login on the same connection.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import trio

from kce import wire
from kce.broker_stub.security import scram
from kce.wire.registry import BY_KEY
from tests.certificates import plain_users
from tests.interop.twin import PATIENCE_S, Twin, differences
from tests.interop.twins import clusters, command, finish

_PASSWORDS: Final = {"admin": "admin-secret", "alice": "alice's"}
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
SETTINGS: Final = {
    "listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.data.plain.sasl.jaas.config": plain_users(**_PASSWORDS),
    "listener.name.data.scram-sha-256.sasl.jaas.config": _SCRAM,
    "listener.name.data.scram-sha-512.sasl.jaas.config": _SCRAM,
    "listener.name.data.oauthbearer.sasl.jaas.config": f'{_OAUTH} unsecuredLoginStringClaim_sub="alice";',
    "listener.name.data.plain.connections.max.reauth.ms": "3600000",
    "listener.name.data.scram-sha-256.connections.max.reauth.ms": "3600000",
    "connection.failed.authentication.delay.ms": "20",
    "delegation.token.secret.key": "secret",
}  # fmt: skip
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_ODD_MECHANISMS: Final = ("GSSAPI", "plain", "", "SCRAM-SHA-1", "PLAIN,SCRAM-SHA-256")
#: {"alg":"none"} and {"sub":"alice","iat":1,"exp":99999999999}, without a signature
_TOKEN: Final = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImlhdCI6MSwiZXhwIjo5OTk5OTk5OTk5OX0."
_SALT: Final = b"0123456789"
_ITERATIONS: Final = 4096
_CLOSED: Final = "closed"
_NOTHING: Final = "nothing"
#: an answer comes within that, or there is none: to a token after a handshake of version 0
_SILENT_S: Final = 1.0
#: conversations: a broker takes its time to close a connection
_AT_ONCE: Final = 10
#: what brokers choose at random
_CHANCE: Final = re.compile(rb"(?<=r=)[^,]+|(?<=v=)[^,]+")


class Token(NamedTuple):
    """Of a mechanism. ``kind``: plain, first, final, oauth or raw; ``variant``: how it is odd."""

    kind: str
    variant: str = ""
    user: str = "alice"
    mechanism: str = ""


class Step(NamedTuple):
    """A request, or a token alone. ``version`` -1: the token is not in a request."""

    api: int
    version: int
    values: dict[str, Any]
    token: Token | None = None


class SaslTwin(Twin):
    """One connection after the other."""

    def begin(self) -> None:
        self._nonce = "clientnonce"
        self._server_first: scram.ServerFirst | None = None
        self._client_first = _client_first("alice", self._nonce)
        self._password = ""

    async def converse(self, steps: Sequence[Step]) -> list[Any]:
        """The answer to each, until the connection is closed."""
        self.begin()
        answers: list[Any] = []
        for step in steps:
            answers.append(await self._exchange(step))
            if answers[-1] == _CLOSED:
                break
        await self.disconnect()
        return answers

    async def _exchange(self, step: Step) -> Any:
        if self._stream is None:
            self._stream = await trio.open_tcp_stream(*self._address)
        token = b"" if step.token is None else self._token(step.token)
        frame = token
        if step.version >= 0:
            values = {**step.values, "auth_bytes": token} if step.token is not None else step.values
            cls = wire.registry.message_class(step.api, "request")
            most = BY_KEY[step.api].versions.last
            frame = wire.encode_request(
                cls(**values), api_version=min(step.version, most), correlation_id=1, client_id="c"
            )
            if step.version > most:
                frame = frame[:2] + step.version.to_bytes(2) + frame[4:]
        try:
            await self._stream.send_all(wire.frame(frame))
            with trio.move_on_after(_SILENT_S if step.version < 0 else PATIENCE_S):
                answer = await self._frame(self._stream)
                return _CLOSED if answer is None else self._shown(step, answer)
        except trio.BrokenResourceError:
            return _CLOSED
        return _NOTHING

    def _shown(self, step: Step, answer: bytes) -> Any:
        if step.version < 0:
            return self._of_token(answer)
        try:
            made = wire.decode_response(answer, api_key=step.api, api_version=step.version)[1]
        except (wire.DecodeError, ValueError):
            return answer.hex()
        shown = self.comparable(made)
        if isinstance(made, wire.SaslAuthenticateResponse):
            shown["auth_bytes"] = self._of_token(bytes(made.auth_bytes))
            shown["session_lifetime_ms"] //= 60_000
        return shown

    def _of_token(self, token: bytes) -> str:
        with suppress(scram.BadScramMessage):
            self._server_first = scram.ServerFirst.parse(token)
        return repr(_CHANCE.sub(b"?", token))

    def _token(self, token: Token) -> bytes:
        password = _PASSWORDS.get(token.user, "")
        match token.kind:
            case "plain":
                return _plain(token.user, password, token.variant)
            case "oauth":
                return _oauth(token.variant)
            case "first":
                return self._first(token)
            case "final":
                return self._final(token)
        return bytes.fromhex(token.variant)

    def _first(self, token: Token) -> bytes:
        self._client_first = first = _client_first(token.user, self._nonce)
        self._password = _PASSWORDS.get(token.user, "")
        made = first.encode()
        match token.variant:
            case "binding":
                return made.replace(b"n,,", b"y,,", 1)
            case "p binding":
                return made.replace(b"n,,", b"p=tls-unique,,", 1)
            case "authorization id":
                return made.replace(b"n,,", b"n,a=alice,", 1)
            case "other authorization id":
                return made.replace(b"n,,", b"n,a=bob,", 1)
            case "extension":
                return made + b",ext=1"
            case "bad extension":
                return made + b",e1=1"
            case "mandatory":
                return made.replace(b"n,,", b"n,,m=x,", 1)
            case "token":
                return made + b",tokenauth=true"
            case "no nonce":
                return made.replace(self._nonce.encode(), b"")
            case "bad name":
                return made.replace(b"n=alice", b"n=al=ice")
            case "long name":
                return made.replace(b"n=alice", b"n=" + b"a" * 300)
            case "not text":
                return made.replace(b"n=alice", b"n=al\xff\xfeice")
            case "umlaut":
                return made.replace(b"n=alice", "n=älice".encode())
            case "spaces":
                return made.replace(b"n=alice", b"n=al ice")
            case "newline":
                return made + b"\n"
            case "cut":
                return made[:5]
        return made

    def _final(self, token: Token) -> bytes:
        mechanism = scram.ScramMechanism.of_name(token.mechanism) or scram.ScramMechanism.SHA_256
        server_first = self._server_first or scram.ServerFirst(f"{self._nonce}x", _SALT, _ITERATIONS)
        nonce = server_first.nonce
        binding = b"n,,"
        match token.variant:
            case "nonce":
                nonce += "x"
            case "prefixed nonce":
                nonce = "x" + nonce
            case "client's nonce":
                nonce = self._nonce
            case "binding":
                binding = b"y,,"
        final = scram.ClientFinal(nonce, channel_binding=binding)
        password = "wrong" if token.variant == "password" else self._password
        salted = scram.salted_password(mechanism, password, server_first.salt, server_first.iterations)
        proof = scram.client_proof(mechanism, salted, scram.auth_message(self._client_first, server_first, final))
        match token.variant:
            case "short proof":
                proof = proof[:-1]
            case "long proof":
                proof += b"x"
            case "no proof":
                proof = b""
        made = scram.ClientFinal(nonce, channel_binding=binding, proof=proof).encode()
        match token.variant:
            case "extension":
                return made.replace(b",p=", b",x=1,p=")
            case "bad base64":
                return made + b"="
            case "newline":
                return made + b"\n"
        return made


def _client_first(user: str, nonce: str) -> scram.ClientFirst:
    return scram.ClientFirst(sasl_name=scram.sasl_name(user), nonce=nonce, authorization_id="", extensions={})


def _plain(user: str, password: str, variant: str) -> bytes:
    match variant:
        case "password":
            password = "wrong"
        case "no password":
            password = ""
        case "no user":
            user = ""
        case "authorization id":
            return f"{user}\0{user}\0{password}".encode()
        case "other authorization id":
            return f"bob\0{user}\0{password}".encode()
        case "more":
            return f"\0{user}\0{password}\0".encode()
        case "fewer":
            return f"{user}\0{password}".encode()
        case "not text":
            return b"\0alice\0\xff\xfe"
        case "empty":
            return b""
    return f"\0{user}\0{password}".encode()


def _oauth(variant: str) -> bytes:
    token = f"Bearer {_TOKEN}"
    match variant:
        case "broken":
            token = "Bearer x.y."
        case "basic":
            token = f"Basic {_TOKEN}"
        case "lower":
            token = f"bearer {_TOKEN}"
        case "authorization id":
            return f"n,a=alice,\x01auth={token}\x01\x01".encode()
        case "other authorization id":
            return f"n,a=bob,\x01auth={token}\x01\x01".encode()
        case "extension":
            return f"n,,\x01auth={token}\x01traceId=1\x01\x01".encode()
        case "bad extension":
            return f"n,,\x01auth={token}\x01auth=1\x01\x01".encode()
        case "extension first":
            return f"n,,\x01traceId=1\x01auth={token}\x01\x01".encode()
        case "control a":
            return b"\x01"
        case "cut":
            return f"n,,\x01auth={token}\x01".encode()
        case "no auth":
            return b"n,,\x01host=localhost\x01\x01"
        case "empty":
            return b""
    return f"n,,\x01auth={token}\x01\x01".encode()


_PLAIN: Final = (
    "", "", "", "password", "no password", "no user", "authorization id", "other authorization id", "more", "fewer",
    "not text", "empty",
)  # fmt: skip
_FIRST: Final = (
    *[""] * 12, "binding", "p binding", "authorization id", "other authorization id", "extension", "bad extension",
    "mandatory", "token", "no nonce", "bad name", "long name", "not text", "umlaut", "spaces", "newline", "cut",
)  # fmt: skip
_FINAL: Final = (
    *[""] * 8, "nonce", "prefixed nonce", "client's nonce", "binding", "password", "short proof", "long proof",
    "no proof", "extension", "bad base64", "newline",
)  # fmt: skip
_OAUTHS: Final = (
    *[""] * 6, "broken", "basic", "lower", "authorization id", "other authorization id", "extension", "bad extension",
    "extension first", "control a", "cut", "no auth", "empty",
)  # fmt: skip
_RAW: Final = ("", "00", "60820100", "ffffffffffffffff", "0011", "0024000000000001ffff", "001200630000000100")
_HANDSHAKE, _AUTHENTICATE, _API_VERSIONS, _METADATA = 17, 36, 18, 3


class Logins:
    """Makes conversations."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def next(self) -> list[Step]:
        random = self._random
        steps: list[Step] = []
        for _ in range(random.choice([1, 1, 1, 2])):
            steps += self._login()
            if random.random() < 0.5:
                steps.append(self._other())
        if random.random() < 0.3:  # in another order
            random.shuffle(steps)
        if random.random() < 0.2:
            steps.insert(random.randrange(len(steps) + 1), self._other())
        if random.random() < 0.1:
            steps.insert(random.randrange(len(steps)), random.choice(steps))
        return steps

    def _login(self) -> list[Step]:
        random, mechanism = self._random, self._random.choice(_MECHANISMS)
        steps = []
        if random.random() < 0.4:
            steps.append(self._versions())
        version = random.choice([0, 1, 1, 1, 1])
        named = mechanism if random.random() < 0.93 else random.choice(_ODD_MECHANISMS)
        steps.append(Step(_HANDSHAKE, version if random.random() < 0.97 else 2, {"mechanism": named}))
        if random.random() < 0.05:
            mechanism = random.choice(_MECHANISMS)
        return steps + [self._authenticate(token, version) for token in self._tokens(mechanism)]

    def _authenticate(self, token: Token, version: int) -> Step:
        wrapped = (version > 0) == (self._random.random() < 0.95)
        number = self._random.choice([0, 1, 2, 2, 2, 3 if self._random.random() < 0.1 else 1]) if wrapped else -1
        return Step(_AUTHENTICATE, number, {}, token)

    def _tokens(self, mechanism: str) -> list[Token]:
        random = self._random
        user = random.choice(["alice", "alice", "alice", "admin", "nobody", "a,b=c"])
        match mechanism:
            case "PLAIN":
                return [Token("plain", random.choice(_PLAIN), user)]
            case "OAUTHBEARER":
                variant = random.choice(_OAUTHS)
                after = [Token("oauth", random.choice(["control a", "", "empty"]))]
                return [Token("oauth", variant), *(after if variant and random.random() < 0.7 else [])]
        tokens = [
            Token("first", random.choice(_FIRST), user, mechanism),
            Token("final", random.choice(_FINAL), user, mechanism),
        ]
        return tokens + random.choice([[], [], [], [Token("final", "", user, mechanism)]])

    def _versions(self) -> Step:
        version = self._random.choice([0, 1, 2, 3, 3, 4, 5, 100])
        name = self._random.choice(["app", "app", "", "bad name!"])
        return Step(
            _API_VERSIONS,
            version,
            {"client_software_name": name, "client_software_version": "1"} if version >= 3 else {},
        )

    def _other(self) -> Step:
        random = self._random
        match random.choice(["versions", "metadata", "raw", "token", "handshake", "tokens"]):
            case "versions":
                return self._versions()
            case "metadata":
                return Step(_METADATA, random.choice([1, 9, 12, 13, 50]), {"topics": ()})
            case "raw":
                return Step(_AUTHENTICATE, -1, {}, Token("raw", random.choice(_RAW)))
            case "token":
                return self._authenticate(random.choice(self._tokens(random.choice(_MECHANISMS))), 1)
            case "tokens":
                return Step(41, random.choice([1, 2, 3]), {"owners": None})
        return Step(_HANDSHAKE, random.choice([0, 1, 1, 2]), {"mechanism": random.choice(_MECHANISMS)})


@asynccontextmanager
async def _twins(folder: Path) -> AsyncIterator[tuple[SaslTwin, SaslTwin]]:
    async with clusters(folder, SETTINGS) as (kafka, _, cluster):
        both = (
            SaslTwin("Kafka", kafka.address, "nowhere"),
            SaslTwin("ours", cluster.bootstrap_servers(), "nowhere"),
        )
        try:
            for twin in both:
                await _add_users(twin)
            yield both
        finally:
            for twin in both:
                await twin.disconnect()


async def _add_users(twin: SaslTwin) -> None:
    """To SCRAM, and wait until they can log in."""
    upsertions = tuple(
        wire.ScramCredentialUpsertion(
            name=user, mechanism=mechanism.number, iterations=_ITERATIONS, salt=_SALT,
            salted_password=scram.salted_password(mechanism, password, _SALT, _ITERATIONS),
        )
        for user, password in _PASSWORDS.items()
        for mechanism in scram.ScramMechanism
    )  # fmt: skip
    login = [Step(_HANDSHAKE, 1, {"mechanism": "PLAIN"}), Step(_AUTHENTICATE, 2, {}, Token("plain", user="admin"))]
    alter = Step(51, 0, {"deletions": (), "upsertions": upsertions})
    answers = await twin.converse([*login, alter])
    assert not any(result["error_code"] for result in answers[-1]["results"]), answers
    for mechanism in scram.ScramMechanism:
        name = mechanism.mechanism_name
        proof = [Token("first", "", "alice", name), Token("final", "", "alice", name)]
        steps = [Step(_HANDSHAKE, 1, {"mechanism": name}), *(Step(_AUTHENTICATE, 2, {}, token) for token in proof)]
        with trio.fail_after(PATIENCE_S):
            while True:
                answer = (await twin.converse(steps))[-1]
                if answer != _CLOSED and not answer["error_code"]:
                    break
                await trio.sleep(0.05)


async def run(folder: Path, *, seed: int, steps: int) -> list[str]:
    """A report on each conversation whose answers differ."""
    reports: list[str] = []
    async with _twins(folder) as both:
        logins = Logins(Random(seed))
        limit = trio.CapacityLimiter(_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for step in range(steps):
                nursery.start_soon(_compare, both, logins.next(), f"seed {seed}, step {step}", limit, reports)
    return reports


async def _compare(
    both: tuple[SaslTwin, SaslTwin],
    conversation: Sequence[Step],
    where: str,
    limit: trio.CapacityLimiter,
    reports: list[str],
) -> None:
    answers: dict[str, list[Any]] = {}

    async def converse(twin: SaslTwin) -> None:
        answers[twin.name] = await twin.converse(conversation)

    async with limit:
        async with trio.open_nursery() as nursery:
            for twin in both:
                nursery.start_soon(converse, twin.another())
        if found := list(differences(*(answers[twin.name] for twin in both))):
            reports.append("\n    ".join([f"{where}:", *map(str, conversation), *found]))


def main() -> int:
    arguments = command("python -m tests.interop.login_twins", __doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), seed=arguments.seed, steps=arguments.steps))
    return finish(reports, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
