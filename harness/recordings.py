"""The recording of a cluster: each start of a node writes a part, and the end of the cluster merges them."""

from __future__ import annotations

import shutil
from pathlib import Path

from kce.captures.record.recorder import merge
from kce.harness.errors import HarnessError
from kce.harness.folders import make_writable_folder


class Recordings:
    """``target`` is the pcapng file to write, None to record nothing."""

    def __init__(self, target: Path | None) -> None:
        self._target = target
        self._parts: list[Path] = []

    def check(self) -> None:
        """Fail now, not when hours of traffic are to be written. Raises HarnessError."""
        if self._target is None:
            return
        try:
            if self._target.exists() and not self._target.is_file():  # the merged file takes its place
                raise HarnessError(f"{self._target} cannot be written: it is not a regular file")
            make_writable_folder(self._folder)
        except OSError as e:
            raise HarnessError(f"{self._target} cannot be written: {e.strerror or e}") from None

    @property
    def _folder(self) -> Path:
        assert self._target is not None
        return self._target.with_name(f"{self._target.name}.parts")

    def part(self, node_id: int) -> Path | None:
        """The file for the next start of a node."""
        if self._target is None:
            return None
        part = self._folder / f"{len(self._parts):03d}-node-{node_id}.pcapng"
        self._parts.append(part)
        return part

    def merge(self) -> list[str]:
        """Write the target and remove the parts; returns the problems of the parts. Raises CaptureError."""
        if self._target is None:
            return []
        parts = [part for part in self._parts if part.exists() and part.stat().st_size]
        problems = merge(parts, self._target) if parts else []
        shutil.rmtree(self._folder, ignore_errors=True)
        return problems
