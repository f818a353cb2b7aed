"""A capture that is still being written: a stream that waits for more at the end of the file."""

from __future__ import annotations

import io
import os
import threading

from kce.captures.errors import CaptureError

#: How long to wait between two looks at the end of the file.
POLL_S = 0.1


class Following(io.RawIOBase):
    """Ends when ``stop`` is called, or when the file has another name or is gone, and was read to its end.

    Raises CaptureError for a file that cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, poll_s: float = POLL_S) -> None:
        self._path = path
        self._poll_s = poll_s
        self._stopped = threading.Event()
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed with this stream
        except OSError as e:
            super().close()  # else Python closes it when it is gone, and since 3.13 tells of the error
            raise CaptureError(f"{os.fspath(path)}: cannot be opened ({e.strerror or e})") from None

    def stop(self) -> None:
        """End the stream at what is there now. A signal handler may call it."""
        self._stopped.set()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def read1(self, size: int = -1) -> bytes:
        """What is there, at least one byte; none at the end."""
        while True:
            over = self._stopped.is_set() or not self._is_there()  # asked first: what was written before counts
            data = self._file.read(size)
            if data or over:
                return data
            self._stopped.wait(self._poll_s)

    def read(self, size: int = -1, /) -> bytes:
        return self.read1(size)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._file.close()
        super().close()
