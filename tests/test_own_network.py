"""A process of the suite in a network namespace of its own."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests import own_network

_PROGRAM = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    socket.create_connection(server.getsockname()).close()
"""


def test_a_port_that_is_taken_outside_is_free_inside() -> None:
    if not own_network.is_allowed():
        pytest.skip("this user may not make network namespaces (unshare): the suite runs in three processes, not four")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        inside = [sys.executable, "-c", _PROGRAM, str(taken.getsockname()[1])]
        assert subprocess.run(inside, capture_output=True, check=False).returncode == 1
        subprocess.run([sys.executable, "-m", "tests.own_network", *inside], check=True)
