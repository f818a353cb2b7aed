"""SCRAM's formulas, messages and stored credentials: ports of Kafka's own cases (rules B9.16 to B9.18)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kce.broker_stub.security import scram
from kce.broker_stub.security.credentials import CredentialCache, TokenCredential
from kce.broker_stub.security.sasl_servers import BrokenToken, SaslAuthenticationFailure, SaslFailure, ScramServer
from kce.broker_stub.security.scram import (
    BadScramMessage,
    ClientFinal,
    ClientFirst,
    ScramCredential,
    ScramMechanism,
    ServerFinal,
    ServerFirst,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
RANDOM = Random(1)
NONCE = scram.nonce(RANDOM)
VALID_EXTENSIONS = (
    "ext=val1",
    "anotherext=name1=value1 name2=another test value \"'!$[]()",
    "first=val1,second=name1 = value ,third=123",
)
INVALID_EXTENSIONS = ("ext1=value", "ext", "ext=value1,value2", "ext=,", "ext =value")
VALID_RESERVED = ("m=reserved-value", "m=name1=value1 name2=another test value \"'!$[]()")
INVALID_RESERVED = ("m", "m=name,value", "m=,")


def text_of(count: int = 32) -> tuple[str, bytes]:
    """Random bytes, and as base64."""
    data = RANDOM.randbytes(count)
    return base64.b64encode(data).decode(), data


def credential(
    password: str = "password", iterations: int = 4096, mechanism: ScramMechanism = SHA_256
) -> ScramCredential:
    return ScramCredential.of_password(mechanism, password, iterations, RANDOM.randbytes(16))


def refused(parse: Callable[[bytes], Any], *messages: str) -> None:
    for message in messages:
        with pytest.raises(BadScramMessage):
            parse(message.encode())


# -- ScramCredentialUtilsTest -----------------------------------------------------------------------------------------


@pytest.mark.kafka("SCR-1")
def test_string_conversion() -> None:
    made = credential(iterations=1024)
    assert made.salt
    assert made.stored_key
    assert made.server_key
    assert ScramCredential.parse(str(made)) == made


@pytest.mark.kafka("SCR-2")
def test_generate_credential() -> None:
    assert str(credential()) != str(credential())


@pytest.mark.kafka("SCR-3")
def test_invalid_credential() -> None:
    with pytest.raises(ValueError, match="key=value"):
        ScramCredential.parse("abc")


@pytest.mark.kafka("SCR-4")
def test_missing_fields() -> None:
    text = str(credential(iterations=2048))
    with pytest.raises(ValueError, match="SCRAM credential"):
        ScramCredential.parse(text[text.index(",") :])
    with pytest.raises(ValueError, match="nothing else"):
        ScramCredential.parse(text[text.index(",") + 1 :])


@pytest.mark.kafka("SCR-5")
def test_extraneous_fields() -> None:
    with pytest.raises(ValueError, match="nothing else"):
        ScramCredential.parse(f"{credential(iterations=2048)},a=test")


@pytest.mark.kafka("SCR-6")
def test_scram_credential_cache(caplog: pytest.LogCaptureFixture) -> None:  # rule B9.19
    cache, of_a = CredentialCache(), credential(mechanism=SHA_512)
    cache.config_changed("userA", {"SCRAM-SHA-512": str(of_a), "consumer_byte_rate": "1"})
    assert cache.get(SHA_512, "userA") == of_a
    assert cache.get(SHA_512, "userB") is None
    assert cache.get(SHA_256, "userA") is None
    cache.config_changed("a%2Cb", {"SCRAM-SHA-256": str(of_a)})
    assert cache.get(SHA_256, "a,b") == of_a
    for name in ("userA", "<default>", "userA/clients/c"):
        cache.config_changed(name, {"SCRAM-SHA-512": "bad"} if name == "userA" else {"SCRAM-SHA-512": str(of_a)})
    assert cache.get(SHA_512, "userA") is None
    assert cache.get(SHA_512, "<default>") is None
    (record,) = caplog.records
    assert record.getMessage().startswith("the SCRAM-SHA-512 credential of user userA is not used")


# -- ScramFormatterTest -----------------------------------------------------------------------------------------------


@pytest.mark.kafka("SCR-7")
def test_rfc_7677_example() -> None:
    client_first = ClientFirst.parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    server_first = ServerFirst.parse(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    client_final = ClientFinal.parse(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    server_final = ServerFinal.parse(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert (client_first.sasl_name, client_first.nonce) == ("user", "rOprNGfwEbeRWgbNEkqO")
    assert server_first.nonce.removeprefix(client_first.nonce) == "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert server_first.salt == base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    assert server_first.iterations == 4096 == scram.MIN_ITERATIONS
    assert client_final.channel_binding == base64.b64decode("biws")
    assert server_final.signature == base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    salted = scram.salted_password(SHA_256, "pencil", server_first.salt, server_first.iterations)
    signed = scram.auth_message(client_first, server_first, client_final)
    assert scram.client_proof(SHA_256, salted, signed) == client_final.proof
    made = ScramCredential.of_salted(SHA_256, server_first.salt, salted, 4096)
    assert SHA_256.hmac(made.server_key, signed) == server_final.signature


@pytest.mark.kafka("SCR-8")
def test_sasl_name() -> None:
    for user in ("user1", "123", "1,2", "user=A", "user==B", "user,1", "user 1", ",", "=", ",=", "=="):
        name = scram.sasl_name(user)
        assert "," not in name
        assert "=" not in name.replace("=2C", "").replace("=3D", "")
        assert scram.username(name) == user
    with pytest.raises(BadScramMessage, match="invalid escape"):
        scram.username("a=b")


# -- ScramMessagesTest ------------------------------------------------------------------------------------------------


@pytest.mark.kafka("SCR-9")
def test_valid_client_first_message() -> None:
    def check(message: ClientFirst, name: str, authorization_id: str = "") -> None:
        assert (message.sasl_name, message.nonce, message.authorization_id) == (name, NONCE, authorization_id)

    check(ClientFirst("someuser", NONCE, "", {}), "someuser")
    for name, user in (("testuser", "testuser"), ("test=2Cuser", "test,user"), ("test=3Duser", "test=user")):
        parsed = ClientFirst.parse(f"n,,n={name},r={NONCE}".encode())
        check(parsed, name)
        check(ClientFirst.parse(parsed.encode()), name)
        assert scram.username(parsed.sasl_name) == user
    check(ClientFirst.parse(f"n,a=testauthzid,n=testuser,r={NONCE}".encode()), "testuser", "testauthzid")
    for reserved in VALID_RESERVED:
        check(ClientFirst.parse(f"n,,{reserved},n=testuser,r={NONCE}".encode()), "testuser")
    for extension in VALID_EXTENSIONS:
        check(ClientFirst.parse(f"n,,n=testuser,r={NONCE},{extension}".encode()), "testuser")
    assert ClientFirst.parse(f"n,,n=testuser,r={NONCE},tokenauth=true".encode()).extensions == {"tokenauth": "true"}


@pytest.mark.kafka("SCR-10")
def test_invalid_client_first_message() -> None:
    refused(ClientFirst.parse, f"n,x=something,n=testuser,r={NONCE}")
    refused(ClientFirst.parse, *(f"n,,{reserved},n=testuser,r={NONCE}" for reserved in INVALID_RESERVED))
    refused(ClientFirst.parse, *(f"n,,n=testuser,r={NONCE},{extension}" for extension in INVALID_EXTENSIONS))


@pytest.mark.kafka("SCR-11")
def test_valid_server_first_message() -> None:
    text, salt = text_of()
    nonce = NONCE + scram.nonce(RANDOM)
    made = ServerFirst(nonce, salt, 8192)
    assert ServerFirst.parse(made.encode()) == made
    for before in ("", *(f"{reserved}," for reserved in VALID_RESERVED)):
        for after in ("", *(f",{extension}" for extension in VALID_EXTENSIONS)):
            parsed = ServerFirst.parse(f"{before}r={nonce},s={text},i=4096{after}".encode())
            assert parsed == ServerFirst(nonce, salt, 4096)


@pytest.mark.kafka("SCR-12")
def test_invalid_server_first_message() -> None:
    salt, _ = text_of()
    refused(ServerFirst.parse, f"r={NONCE},s={salt},i=0", f"r={NONCE},s={salt},i={2**31}", f"r={NONCE},s==123,i=4096")
    refused(ServerFirst.parse, f"r={NONCE},invalid,s={salt},i=4096")
    refused(ServerFirst.parse, *(f"{reserved},r={NONCE},s={salt},i=4096" for reserved in INVALID_RESERVED))
    refused(ServerFirst.parse, *(f"r={NONCE},s={salt},i=4096,{extension}" for extension in INVALID_EXTENSIONS))


@pytest.mark.kafka("SCR-13")
def test_valid_client_final_message() -> None:
    (binding, bound), (proof, proved) = text_of(), text_of()
    assert ClientFinal(NONCE, bound).proof == b""
    made = ClientFinal(NONCE, bound, proved)
    assert ClientFinal.parse(made.encode()) == made
    for extension in ("", *(f",{each}" for each in VALID_EXTENSIONS)):
        assert ClientFinal.parse(f"c={binding},r={NONCE}{extension},p={proof}".encode()) == made


@pytest.mark.kafka("SCR-14")
def test_invalid_client_final_message() -> None:
    (binding, _), (proof, _) = text_of(), text_of()
    refused(ClientFinal.parse, f"c=ab,r={NONCE},p={proof}", f"c={binding},r={NONCE},p=123")
    refused(ClientFinal.parse, *(f"c={binding},r={NONCE},{each},p={proof}" for each in INVALID_EXTENSIONS))


@pytest.mark.kafka("SCR-15")
def test_valid_server_final_message() -> None:
    text, signature = text_of()
    for made in (ServerFinal("unknown-user", None), ServerFinal(None, signature), ServerFinal("other-error", None)):
        assert ServerFinal.parse(made.encode()) == made
    for extension in VALID_EXTENSIONS:
        assert ServerFinal.parse(f"v={text},{extension}".encode()) == ServerFinal(None, signature)


@pytest.mark.kafka("SCR-16")
def test_invalid_server_final_message() -> None:
    text, _ = text_of()
    refused(ServerFinal.parse, "e=error1,error2", "v=1=23")
    for extension in INVALID_EXTENSIONS:
        refused(ServerFinal.parse, f"v={text},{extension}", f"e=unknown-user,{extension}")


# -- ScramSaslServerTest ----------------------------------------------------------------------------------------------


def server(**passwords: str) -> ScramServer:
    cache = CredentialCache()
    for user, password in (passwords or {"userA": "passwordA", "userB": "passwordB"}).items():
        cache.config_changed(user, {"SCRAM-SHA-256": str(credential(password))})
    return ScramServer(SHA_256, cache, RANDOM)


def first(user: str, authorization_id: str = "") -> bytes:
    return f"n,{authorization_id and f'a={authorization_id}'},n={user},r={NONCE}".encode()


@pytest.mark.kafka("SCR-17")
def test_no_authorization_id_specified() -> None:
    assert server().evaluate(first("userA"))


@pytest.mark.kafka("SCR-18")
def test_authorization_id_equals_authentication_id() -> None:
    assert server().evaluate(first("userA", "userA"))


@pytest.mark.kafka("SCR-19")
def test_authorization_id_not_equals_authentication_id() -> None:
    with pytest.raises(SaslAuthenticationFailure, match="different from username"):
        server().evaluate(first("userA", "userB"))


@pytest.mark.kafka("SCR-20")
def test_validate_nonce_exchange() -> None:
    exchange = server()
    answer = ServerFirst.parse(exchange.evaluate(first("userA", "userA")))
    assert answer.nonce.startswith(NONCE)
    salted = scram.salted_password(SHA_256, "passwordA", answer.salt, answer.iterations)
    binding = RANDOM.randbytes(16)
    signed = scram.auth_message(ClientFirst.parse(first("userA", "userA")), answer, ClientFinal(answer.nonce, binding))
    final = ClientFinal(answer.nonce, binding, scram.client_proof(SHA_256, salted, signed))
    assert ServerFinal.parse(exchange.evaluate(final.encode())).error is None
    assert (exchange.complete, exchange.authorization_id) == (True, "userA")


@pytest.mark.kafka("SCR-21")
def test_validate_failed_nonce_exchange() -> None:
    exchange = server()
    assert ServerFirst.parse(exchange.evaluate(first("userA", "userA"))).nonce.startswith(NONCE)
    with pytest.raises(SaslFailure, match="the nonce of the last message is not that of the first"):
        exchange.evaluate(ClientFinal(scram.nonce(RANDOM), b"", b"1" * 32).encode())


# -- ours -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("proof", "error"), [(b"1" * 32, SaslFailure), (b"", BrokenToken), (b"1" * 31, BrokenToken)])
def test_a_wrong_proof_ends_the_exchange(proof: bytes, error: type[Exception]) -> None:  # rule B9.17
    exchange = server()
    answer = ServerFirst.parse(exchange.evaluate(first("userA")))
    with pytest.raises(error):
        exchange.evaluate(ClientFinal(answer.nonce, proof=proof).encode())
    assert not exchange.complete
    with pytest.raises(SaslFailure, match="over"):
        exchange.evaluate(first("userA"))


def test_a_credential_of_too_few_iterations() -> None:  # rule B9.17
    cache = CredentialCache()
    cache.config_changed("userA", {"SCRAM-SHA-256": str(credential(iterations=4095))})
    with pytest.raises(SaslFailure, match="fewer than 4096 iterations"):
        ScramServer(SHA_256, cache, RANDOM).evaluate(first("userA"))


def test_a_delegation_token_is_a_user() -> None:  # rule B9.22
    cache = CredentialCache()
    message = first("id") + b",tokenauth=true"
    with pytest.raises(SaslFailure, match="no such user"):
        ScramServer(SHA_256, cache, RANDOM).evaluate(message)
    cache.token_lookup = lambda token, mechanism: TokenCredential("owner", credential(), 5) if token == "id" else None
    exchange = ScramServer(SHA_256, cache, RANDOM)
    exchange.evaluate(message)
    assert (exchange.authorization_id, exchange.expires_at_ms, exchange.token_authenticated) == ("owner", 5, True)


class Bits(Random):
    """Random bits that are known."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value

    def getrandbits(self, k: int) -> int:
        assert k == 130
        return self.value


def test_nonces() -> None:
    values = (0, 35, 36, 36**2 * 10 + 36 * 11 + 12, 2**130 - 1)
    assert [scram.nonce(Bits(value)) for value in values[:4]] == ["0", "z", "10", "abc"]
    assert int(scram.nonce(Bits(values[4])), 36) == values[4]


def test_names_and_numbers_of_mechanisms() -> None:
    assert [ScramMechanism.of_number(number) for number in range(4)] == [None, SHA_256, SHA_512, None]
    names = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    assert [ScramMechanism.of_name(name) for name in names] == [SHA_256, SHA_512, None]
    assert [len(each.hash(b"")) for each in ScramMechanism] == [32, 64]


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("0004096", 4096), (str(2**31 - 1), 2**31 - 1)])
def test_numbers_of_iterations(text: str, count: int) -> None:
    assert ServerFirst.parse(f"r=a,s=,i={text}".encode()) == ServerFirst("a", b"", count)
    for bad in ("0", "00", str(2**31), "9" * 11, "9" * 5000):
        with pytest.raises(BadScramMessage, match="number of iterations"):
            ServerFirst.parse(f"r=a,s=,i={bad}".encode())


def test_messages_as_they_are_written() -> None:
    parsed = ClientFirst.parse(b"n,a=b,n=b,r=c,x=1=2,y=z")
    assert parsed == ClientFirst("b", "c", "b", {"x": "1=2", "y": "z"})
    assert (parsed.encode(), ClientFirst("b", "c", "b", {}).encode()) == (b"n,,n=b,r=c,x=1=2,y=z", b"n,,n=b,r=c")
    assert ServerFirst("n", b"salt", 7).encode() == b"r=n,s=c2FsdA==,i=7"
    assert ClientFinal("n", proof=b"p").encode() == b"c=biws,r=n,p=cA=="
    assert (ServerFinal("e", None).encode(), ServerFinal(None, b"s").encode()) == (b"e=e", b"v=cw==")
    assert str(ScramCredential(b"s", b"t", b"u", 5)) == "salt=cw==,stored_key=dA==,server_key=dQ==,iterations=5"
    assert ScramCredential.parse(" salt = cw==,stored_key=dA==,server_key=dQ==, iterations= 5 ").iterations == 5
    for bad in (
        "salt=c,stored_key=dA==,server_key=dQ==,iterations=5",
        "salt=cw==,stored_key=dA==,server_key=!,iterations=5",
    ):
        with pytest.raises(BadScramMessage, match="invalid base64"):
            ScramCredential.parse(bad)
    assert scram.xor(b"\x0f\xf0", b"\xff\xff") == b"\xf0\x0f"
    with pytest.raises(BadScramMessage, match="length"):
        scram.xor(b"1", b"12")


def test_a_credential_that_is_taken_away() -> None:  # rule B9.19
    cache, made = CredentialCache(), credential()
    cache.config_changed("userA", {"SCRAM-SHA-256": str(made), "SCRAM-SHA-512": str(made)})
    cache.config_changed("userA", {"SCRAM-SHA-512": str(made)})
    assert [cache.get(each, "userA") for each in ScramMechanism] == [None, made]
