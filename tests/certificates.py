"""An authority for tests, and the settings that make nodes and clients use its certificates."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class Authority:
    """Signs one certificate for 127.0.0.1 and localhost, and one for each client."""

    def __init__(self, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
        self.ca = trustme.CA(key_type=key_type)
        self.node = self.ca.issue_cert("127.0.0.1", "localhost", common_name="node", key_type=key_type)
        self._clients: dict[str, trustme.LeafCert] = {}

    @property
    def trusted(self) -> str:
        return self.ca.cert_pem.bytes().decode()

    def client(self, name: str) -> trustme.LeafCert:
        if name not in self._clients:
            self._clients[name] = self.ca.issue_cert(f"{name}@example.com", common_name=name, organization_name="kce")
        return self._clients[name]

    def trust(self) -> dict[str, str]:
        """Settings of who verifies."""
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.trusted}

    def key(self, certificate: trustme.LeafCert) -> dict[str, str]:
        """Settings of who shows ``certificate``."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": private_key(certificate),
            "ssl.keystore.certificate.chain": chain(certificate),
        }

    def of_node(self) -> dict[str, str]:
        return {**self.key(self.node), **self.trust()}

    def files(self, folder: Path, certificate: trustme.LeafCert | None = None) -> dict[str, str]:
        """Settings of who verifies, and shows ``certificate``, by files."""
        trusted, own = self.write(folder, certificate or self.node)
        given = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted)}
        if certificate is not None:
            given |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(own)}
        return given

    def write(self, folder: Path, certificate: trustme.LeafCert) -> tuple[Path, Path]:
        """Files of the authority, and of the key with its certificates."""
        trusted, own = folder / "ca.pem", folder / "own.pem"
        self.ca.cert_pem.write_to_path(trusted)
        own.write_text(private_key(certificate) + chain(certificate))
        return trusted, own


def private_key(certificate: trustme.LeafCert) -> str:
    """In the one form that Kafka reads, PKCS8."""
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def chain(certificate: trustme.LeafCert) -> str:
    return "".join(each.bytes().decode() for each in certificate.cert_chain_pems)


@cache
def authority() -> Authority:
    return Authority()


def plain_users(**passwords: str) -> str:
    """The JAAS entry of a broker that logs in as the first of them."""
    first, secret = next(iter(passwords.items()))
    users = " ".join(f'user_{user}="{password}"' for user, password in passwords.items())
    return (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{first}" password="{secret}" {users};'
    )


def scram_login(user: str, password: str) -> str:
    return f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{password}";'
