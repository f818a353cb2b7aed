"""TLS, opened with a key log through tshark; or named as what it is."""

from __future__ import annotations

import ssl
import subprocess

import pytest

from kce import wire
from kce.captures.errors import CaptureError
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request
from kce.captures.files.pcap import CaptureFile
from kce.captures.record.recorder import Recorder
from kce.captures.tcp.tls import Decrypted
from tests.captures.exchanges.test_decode import decode as kce_decode
from tests.tools import require

TOPICS = tuple(wire.MetadataRequestTopic(name=f"topic-{number}") for number in range(2000))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    names = ["-keyout", folder / "key.pem", "-out", folder / "certificate.pem", "-subj", "/CN=localhost"]
    subprocess.run(
        [require("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names], check=True, capture_output=True
    )
    return folder


class End:
    """One end of a TLS connection whose bytes go through ``send``."""

    def __init__(self, context, send, **settings):
        self.incoming, self.outgoing, self.send = ssl.MemoryBIO(), ssl.MemoryBIO(), send
        self.tls = context.wrap_bio(self.incoming, self.outgoing, **settings)

    def step(self, name, *arguments):
        try:
            return getattr(self.tls, name)(*arguments)
        except ssl.SSLWantReadError:
            return None
        finally:
            if data := self.outgoing.read():
                self.send(data)


def record(folder, certificate, version, *, keys="keys.log", plain=False, pieces=16384):
    """A capture of two TLS connections, with three requests each, and optionally a plain one."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    client_context.keylog_filename = str(folder / keys)
    client_context.maximum_version = version
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
    recorder = Recorder(folder / "x.pcapng")
    for port in (50001, 50002):
        _talk(recorder.connection(("127.0.0.1", port), ("127.0.0.1", 9093)), client_context, server_context, pieces)
    if plain:
        tap = recorder.connection(("127.0.0.1", 50003), ("127.0.0.1", 9092))
        tap.sent("client", request(2, 500))
        tap.sent("server", response(2))
        tap.close()
    recorder.close()
    return str(folder / "x.pcapng"), str(folder / "keys.log")


def request(correlation_id, topics):
    message = wire.MetadataRequest(topics=TOPICS[:topics])
    return wire.frame(wire.encode_request(message, api_version=9, correlation_id=correlation_id, client_id="me"))


def response(correlation_id):
    return wire.frame(wire.encode_response(wire.MetadataResponse(), api_version=9, correlation_id=correlation_id))


def _talk(tap, client_context, server_context, pieces):
    def to_server(data):
        for at in range(0, len(data), pieces):
            tap.sent("client", data[at : at + pieces])
        server.incoming.write(data)

    def to_client(data):
        tap.sent("server", data)
        client.incoming.write(data)

    client = End(client_context, to_server)
    server = End(server_context, to_client, server_side=True)
    for _ in range(3):
        client.step("do_handshake")
        server.step("do_handshake")
    for correlation_id, topics in enumerate((1, 2000, 500)):
        client.step("write", request(correlation_id, topics))
        while server.step("read", 65536):
            pass
        server.step("write", response(correlation_id))
        client.step("read", 65536)
    tap.close()


def decoded(source):
    decoder = Decoder(source)
    found = []
    for message in decoder.messages():
        assert message.error is None
        request = message if isinstance(message, Request) else message.request
        found.append((request is message, request.peers.client[1], request.correlation_id))
    return found, decoder.quality


EXPECTED = [(asks, port, number) for port in (50001, 50002) for number in range(3) for asks in (True, False)]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("pieces", [16384, 700])
def test_with_the_keys_everything_is_read(tmp_path, certificate, version, pieces):
    require("tshark")
    file, keys = record(tmp_path, certificate, version, plain=True, pieces=pieces)
    found, quality = decoded(Decrypted(file, keys))
    assert found == [*EXPECTED, (True, 50003, 2), (False, 50003, 2)]
    assert (quality.gaps, quality.lines()) == (0, [])
    code, out, err = kce_decode(file, "--tls-keys", keys)
    assert (code, err) == (0, f"kce: {quality.summary()}\n")
    assert len(out.splitlines()) == len(found)


def test_without_keys_it_is_named(tmp_path, certificate):
    require("tshark")
    file, keys = record(tmp_path, certificate, ssl.TLSVersion.TLSv1_3, plain=True)
    with CaptureFile(file) as capture:
        found, quality = decoded(capture)
    assert len(found) == 2
    assert "not Kafka: 2 connections of TLS" in quality.lines()
    assert any("kce decode --tls-keys" in line for line in quality.lines())
    (tmp_path / "keys.log").write_text("")
    found, quality = decoded(Decrypted(file, keys))
    assert len(found) == 2
    assert "2 TLS connections stay encrypted: the key log has no keys for them" in quality.lines()


def test_what_cannot_be_opened_is_reported(tmp_path, certificate, monkeypatch):
    file, keys = record(tmp_path, certificate, ssl.TLSVersion.TLSv1_3)
    with pytest.raises(CaptureError, match="nokeys: the TLS key log cannot be read"):
        Decrypted(file, tmp_path / "nokeys")
    with pytest.raises(CaptureError, match="tshark, which reads local files only"):
        Decrypted(f"file://{file}", keys)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CaptureError, match="not installed"):
        Decrypted(file, keys)
