"""Encoded passwords (Kafka's EncryptingPasswordEncoder)."""

from __future__ import annotations

from random import Random

import pytest

from kce.broker_stub.security.password_encoder import PasswordEncoder
from kce.wire.configuration import Properties

#: of Kafka 3.9.1, with "encoder-secret"
KAFKAS = (
    "initializationVector:6hx+zZD2GWC+D08tqGnx2w==,keyLength:128,salt:Rsh228Lxct+rdUmecIY+gU+puTlBEo0l5hs"
    "aX4vAsNXobk5Nd91U1kdnvBMIVtlirRI7mpnZBzDYyaI8ooPfncMgXxL+d336zZbEBNPCqVlIXbkBbXKXZ876fVg2m7YAUjMCmWy"
    "tyuc0ypnOYFVuulxp+26irt6OMg3pq1CiOj3CUkAdYKAfMm4CPqmiKd6fpXRlf5VHSpjbSG1Hvg9uUfXRRp3gKexPGoLDzPnSoFK"
    "Ph/DMbPqfibu1Nxyrxd7QcEAuXDCzM4A5NZ53qNlt9z1OvaLOGTk0ai4DdvuBl13ktPxq9GmKYBzgGji+5xBe0Dbr2el7/E98w+r"
    "0Gtzq1w==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4"
    "096,passwordLength:22,encryptedPassword:k809s9R7tLDS9sYzHREaJCSnVyvTu0ij/ctdThFEc9A="
)


def encoder(secret: str = "encoder-secret", **more: str) -> PasswordEncoder:
    """Underscores become dots."""
    given = {f"password.encoder.{name.replace('_', '.')}": value for name, value in more.items()}
    made = PasswordEncoder.of(Properties({"password.encoder.secret": secret, **given}))
    assert made is not None
    return made


def test_without_a_secret_there_is_none() -> None:
    assert PasswordEncoder.of(Properties({})) is None


def test_what_kafka_has_encoded() -> None:
    assert encoder().decode(KAFKAS) == "key store's: pass,word"


def test_what_is_encoded_has_kafkas_form() -> None:
    encoded = encoder(iterations="1024", key_length="256").encode("p\U0001f511", Random(1))
    entries = dict(entry.split(":") for entry in encoded.split(","))
    assert entries["keyFactoryAlgorithm"] == "PBKDF2WithHmacSHA512"
    assert entries["cipherAlgorithm"] == "AES/CBC/PKCS5Padding"
    assert (entries["iterations"], entries["keyLength"], entries["passwordLength"]) == ("1024", "256", "3")
    assert {"salt", "initializationVector", "encryptedPassword"} < entries.keys()


@pytest.mark.parametrize("password", ["", "a", "0123456789abcdef", "p\U0001f511, : =\n"])
@pytest.mark.parametrize("factory", ["PBKDF2WithHmacSHA1", "PBKDF2WithHmacSHA256", "PBKDF2WithHmacSHA512"])
def test_other_settings_decode_it_but_no_other_secret(password: str, factory: str) -> None:
    encoded = encoder(keyfactory_algorithm=factory, key_length="192").encode(password, Random(1))
    assert encoder(iterations="2048").decode(encoded) == password
    with pytest.raises(ValueError):  # noqa: PT011 - the garbage may be wrong in several ways
        encoder("another").decode(encoded)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("AES/CBC/PKCS5Padding", "DES/CBC/PKCS5Padding", "is not supported here"),
        ("keyLength:128", "keyLength:64", "is not supported here"),
        ("PBKDF2WithHmacSHA512", "PBKDF2WithHmacMD5", "is not supported here"),
        ("iterations:4096", "iterations:0", "0 iterations"),
        ("iterations:4096", "iterations:99999999999", "99999999999 iterations"),
        ("passwordLength:1", "passwordLength:2", "its length is wrong"),
        ("salt:", "pepper:", "it has no 'salt'"),
        ("salt:", "salt:!", "."),
        ("initializationVector:", "initializationVector:AAAA", "."),
    ],
)
def test_odd_input(old: str, new: str, why: str) -> None:
    encoded = encoder().encode("p", Random(1))
    assert old in encoded
    with pytest.raises(ValueError, match=why):
        encoder().decode(encoded.replace(old, new))
    for broken in ("", "nonsense", ",,,", "a:b"):
        with pytest.raises(ValueError, match="it has no"):
            encoder().decode(broken)
