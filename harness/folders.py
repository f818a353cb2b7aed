"""Folders that are to be written into."""

from __future__ import annotations

import os
from pathlib import Path


def make_writable_folder(folder: Path) -> None:
    """Make it, unless it is there, and see that files in it can be written. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".writable-{os.getpid()}"
    try:
        probe.write_bytes(b"?")  # on a full disk, a file can be made, but not be written
    finally:
        probe.unlink(missing_ok=True)
