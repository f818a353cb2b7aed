"""A Lua script beside a capture that tells Wireshark which ports are Kafka's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kce.captures.errors import CaptureError


def write_beside(capture: str | os.PathLike[str], ports: Iterable[int]) -> Path:
    """Write ``capture`` + ``.lua``, and return its path. Raises CaptureError."""
    path = Path(f"{os.fspath(capture)}.lua")
    listed = ", ".join(map(str, sorted(set(ports))))
    text = (
        f"-- wireshark -X lua_script:{path.name} {Path(capture).name}\n"
        f"for _, port in ipairs({{{listed}}}) do\n"
        '  DissectorTable.get("tcp.port"):add(port, Dissector.get("kafka"))\n'
        "end\n"
    )
    try:
        path.write_text(text)
    except OSError as e:
        raise CaptureError(f"{path}: cannot be written ({e.strerror or e})") from None
    return path
