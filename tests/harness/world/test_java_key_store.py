"""Key stores that Java's keytool writes, as listeners use them."""

from __future__ import annotations

import ssl
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate

from kce.broker_stub.security.config import TlsConfig
from kce.harness.world.java_key_store import is_java_key_store, read_java_key_store
from kce.harness.world.tls import Tls
from kce.java import find_java
from kce.wire.configuration import ConfigError
from tests.certificates import authority, chain, private_key

STORE, KEY = "store's", "the key's"


def keytool(*arguments: str) -> None:
    command = [str(Path(find_java()).with_name("keytool")), *arguments, "-noprompt", "-storepass", STORE]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """own.p12 and own.jks with a key, whose password in the latter is KEY; trust.p12 and trust.jks; key.pem"""
    folder = tmp_path_factory.mktemp("stores")
    node = authority().node
    key = load_pem_private_key(node.private_key_pem.bytes(), None)
    certificates = [load_pem_x509_certificate(pem.bytes()) for pem in node.cert_chain_pems]
    own = pkcs12.serialize_key_and_certificates(
        b"node",
        key,
        certificates[0],
        certificates[1:],
        BestAvailableEncryption(STORE.encode()),  # type: ignore[arg-type]
    )
    (folder / "own.p12").write_bytes(own)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(KEY.encode()))
    (folder / "key.pem").write_text(encrypted.decode() + chain(node))
    authority().ca.cert_pem.write_to_path(folder / "ca.pem")
    keytool(
        "-importkeystore", "-srckeystore", str(folder / "own.p12"), "-srcstorepass", STORE, "-srcalias", "node",
        "-destkeystore", str(folder / "own.jks"), "-deststoretype", "JKS", "-deststorepass", STORE, "-destkeypass", KEY,
    )  # fmt: skip
    for kind in ("jks", "pkcs12"):
        keytool(
            "-importcert", "-file", str(folder / "ca.pem"), "-alias", "ca", "-storetype", kind,
            "-keystore", str(folder / f"trust.{kind}"),
        )  # fmt: skip
    return folder


def tls(**settings: str | Path) -> Tls:
    return Tls(TlsConfig.of_client({name.replace("_", "."): str(text) for name, text in settings.items()}))


def handshake(server: Tls, client: Tls) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.client_context().wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.server_context().wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass


@pytest.mark.parametrize("kind", ["", "JKS", "jks", "PKCS12"])  # "" is the default
@pytest.mark.parametrize("own", ["own.jks", "own.p12"])
@pytest.mark.parametrize("trust", ["trust.jks", "trust.pkcs12"])
def test_the_content_tells_what_a_store_is(folder: Path, kind: str, own: str, trust: str) -> None:
    types = {"ssl_keystore_type": kind, "ssl_truststore_type": kind} if kind else {}
    key_password = {"ssl_key_password": KEY} if own.endswith("jks") else {}
    server = tls(ssl_keystore_location=folder / own, ssl_keystore_password=STORE, **types, **key_password)
    client = tls(ssl_truststore_location=folder / trust, ssl_truststore_password=STORE, **types)
    handshake(server, client)


def test_a_store_of_several_entries(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "both.jks"
    path.write_bytes((folder / "own.jks").read_bytes())
    keytool("-importcert", "-file", str(folder / "ca.pem"), "-alias", "ca", "-keystore", str(path))
    found = read_java_key_store(path.read_bytes(), None)
    node = authority().node
    (key,) = found.keys
    assert "".join(map(ssl.DER_cert_to_PEM_cert, key.chain)).split() == chain(node).split()
    plain = load_pem_private_key(private_key(node).encode(), None)
    assert key.private_key(KEY) == plain.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    ca = ssl.PEM_cert_to_DER_cert(authority().trusted)
    assert (found.trusted, found.certificates) == ((ca,), (ca, key.chain[0]))


WRONG = [
    ({"ssl.keystore.password": "x"}, "the password of the JKS store is wrong"),
    ({"ssl.key.password": "x"}, "the password of the key in the JKS store is wrong"),
    ({"ssl.key.password": ""}, "the password of the key in the JKS store is wrong"),
    ({"ssl.keystore.location": "trust.jks"}, "the JKS key store holds no key"),
    ({"ssl.keystore.location": "own.p12"}, "the key's password is not that of the PKCS12 store"),
]


@pytest.mark.parametrize(("change", "why"), WRONG)
def test_what_cannot_be_used(folder: Path, change: Mapping[str, str], why: str) -> None:
    given = {"ssl.keystore.location": "own.jks", "ssl.keystore.password": STORE, "ssl.key.password": KEY} | change
    given["ssl.keystore.location"] = str(folder / given["ssl.keystore.location"])
    with pytest.raises(ConfigError, match=why):
        Tls(TlsConfig.of_client(given)).server_context()


def test_a_store_that_is_cut_off_or_has_other_entries(folder: Path) -> None:
    whole = (folder / "own.jks").read_bytes()
    assert is_java_key_store(whole)
    assert not is_java_key_store((folder / "own.p12").read_bytes())
    for end in range(24, len(whole) - 20, 7):
        with pytest.raises(ValueError, match="cut off"):
            read_java_key_store(whole[:end], None)
    with pytest.raises(ValueError, match="unknown type 3"):
        read_java_key_store(whole[:12] + struct.pack(">i", 3) + whole[16:], None)


@pytest.mark.parametrize(
    ("password", "why"),
    [({}, "the key is encrypted, but ssl.key.password is missing"), ({"ssl.key.password": "x"}, "password is wrong")],
)
def test_an_encrypted_key_in_pem(folder: Path, password: Mapping[str, str], why: str) -> None:
    given = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "key.pem")}
    Tls(TlsConfig.of_client({**given, "ssl.key.password": KEY})).server_context()
    with pytest.raises(ConfigError, match=why):
        Tls(TlsConfig.of_client(given | password)).server_context()
