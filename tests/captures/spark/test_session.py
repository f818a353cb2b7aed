"""Spark's own servers: strangers cannot reach them, and nothing that happens on their connections is printed.

Covers: kce.captures.spark.session
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading

import pytest
from pyspark import accumulators

from kce.captures.spark.session import log_accumulator_errors, unix_sockets

TOKEN = "0123456789abcdef" * 4


@pytest.fixture
def tcp():
    log_accumulator_errors()
    server = accumulators._start_update_server(TOKEN, False)
    yield server
    server.shutdown()


@pytest.fixture
def unix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a relative path, for the absolute one may be too long
    log_accumulator_errors()
    server = accumulators._start_update_server(TOKEN, True, "s")
    yield server
    server.shutdown()


def send(server: socketserver.BaseServer, data: bytes) -> None:
    """Send it, end the stream, and wait until the server has closed the connection."""
    with socket.socket(socket.AF_UNIX if isinstance(server.server_address, str) else socket.AF_INET) as peer:
        peer.settimeout(30)
        peer.connect(server.server_address)
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(100):
            pass


@pytest.mark.parametrize(
    "data",
    [b"", TOKEN[:5].encode(), b"x" * len(TOKEN), b"\xff" * len(TOKEN), TOKEN.encode() + b"\0\0\0\1\0"],
    ids=["no token", "a short one", "a wrong one", "not text", "no updates"],
)
def test_a_connection_without_the_token_or_cut_short_prints_nothing(tcp, data, capfd, caplog):
    with caplog.at_level(logging.DEBUG, "kce.captures.spark.session"):
        send(tcp, data)
    assert capfd.readouterr() == ("", "")
    [record] = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.exc_info


def test_updates_that_are_cut_short_on_a_unix_socket_print_nothing(unix, capfd):
    send(unix, b"\0\0\0\1\0")
    assert capfd.readouterr() == ("", "")


def test_errors_of_other_servers_and_threads_are_printed(tcp, capfd):
    class Failing(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            raise ZeroDivisionError("of another server")

    send(tcp, b"")
    with socketserver.TCPServer(("127.0.0.1", 0), Failing) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        send(server, b"")
        thread.join(30)
    assert "of another server" in capfd.readouterr().err


def test_a_session_on_this_machine_has_no_port_for_strangers(spark):
    server = spark.sparkContext._accumulatorServer
    folder = spark.conf.get("spark.local.dir")
    if unix_sockets(folder):
        assert isinstance(server, accumulators.AccumulatorUnixServer)
        assert server.server_address.startswith(folder)
    assert spark.range(10).repartition(2).rdd.map(lambda row: row.id).sum() == 45


def test_a_path_that_is_too_long_for_a_socket_is_not_taken():
    assert unix_sockets("/tmp/" + "x" * 60) == {}
    folder = unix_sockets("/tmp/kce")["spark.python.unix.domain.socket.dir"]
    assert folder == "/tmp/kce"
