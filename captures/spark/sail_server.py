"""A process that serves Spark Connect by Sail, with bounded memory, until its standard input ends.

It writes the port on 127.0.0.1 to its standard output, as one line. A query that needs more memory ends this process
alone, and so does the end of its parent.
"""

from __future__ import annotations

import os
import resource
import sys

from pysail.spark import SparkConnectServer  # type: ignore[import-untyped]


def main(max_bytes: int) -> None:
    """``max_bytes`` bounds the address space."""
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    server = SparkConnectServer("127.0.0.1", 0)
    server.start()
    _, port = server.listening_address or ("", 0)
    print(port, flush=True)
    sys.stdin.read()
    os._exit(0)  # nothing is worth waiting for


if __name__ == "__main__":
    main(int(sys.argv[1]))
