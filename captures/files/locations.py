"""Where captures are: local paths, globs, and the URIs of any file system that pyarrow knows (s3, gs, hdfs, file, ...).

    for name in expand(["captures/*.pcap.gz", "s3://bucket/incident/*.pcapng"]):
        with open_location(name) as stream:
            ...

All errors are CaptureError, one line that names the location.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from kce.captures.errors import CaptureError
from kce.extras import require

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MAGIC = re.compile(r"[*?[]")


def expand(locations: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The files that ``locations`` name; globs are expanded and sorted.

    ``**`` matches any depth of folders; in a URI ``?`` is no wildcard. Raises CaptureError for a glob without a match,
    and for an empty name.
    """
    found: list[str] = []
    for location in [os.fspath(each) for each in locations]:
        if not location:
            raise CaptureError("the name of a file is empty")
        if is_uri(location):
            found += _expand_uri(location) if "*" in location or "[" in location else [location]
        elif not _MAGIC.search(location) or os.path.lexists(location):
            found.append(location)
        else:
            matches = sorted(path for path in glob.glob(location, recursive=True) if not os.path.isdir(path))
            if not matches:
                raise CaptureError(f"{location}: no file matches")
            found += matches
    return list(dict.fromkeys(found))


def is_uri(location: str) -> bool:
    return _URI.match(location) is not None


def check_location(location: str | os.PathLike[str]) -> None:
    """Raise CaptureError if there is no such file, or it is a directory. Does not open it."""
    name = os.fspath(location)
    if is_uri(name):
        _info(name)
        return
    try:
        mode = os.stat(name).st_mode
    except OSError as e:
        raise _cannot_open(name, e) from None
    if stat.S_ISDIR(mode):
        raise _cannot_open(name, IsADirectoryError())


def location_bytes(location: str | os.PathLike[str]) -> int:
    """Size of the file; 0 if unknown."""
    name = os.fspath(location)
    try:
        return int(_info(name)[2].size or 0) if is_uri(name) else os.stat(name).st_size
    except (OSError, CaptureError):
        return 0


def open_location(location: str | os.PathLike[str], name: str) -> BinaryIO:
    """Open the file, unbuffered; ``name`` is for error messages."""
    text = os.fspath(location)
    try:
        if not is_uri(text):
            return Path(text).open("rb", buffering=0)
        filesystem, path, _ = _info(text)
        stream: BinaryIO = filesystem.open_input_file(path)
    except OSError as e:
        raise _cannot_open(name, e) from None
    return stream


def _filesystem(uri: str) -> tuple[Any, str]:
    require("pyarrow", purpose=f"reading {uri}")
    import pyarrow as pa  # imported late: slow to import, and most captures are local
    import pyarrow.fs

    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as e:
        raise CaptureError(f"{uri}: {_first_line(e)}") from None
    return filesystem, path


def _info(uri: str) -> tuple[Any, str, Any]:
    """(file system, path in it, file info)."""
    filesystem, path = _filesystem(uri)
    import pyarrow.fs

    try:
        info = filesystem.get_file_info(path)
    except OSError as e:
        raise _cannot_open(uri, e) from None
    if info.type == pyarrow.fs.FileType.NotFound:
        raise _cannot_open(uri, FileNotFoundError())
    if info.type == pyarrow.fs.FileType.Directory:
        raise _cannot_open(uri, IsADirectoryError())
    return filesystem, path, info


def _expand_uri(uri: str) -> list[str]:
    parts = uri.split("/")
    first = next(index for index, part in enumerate(parts) if "*" in part or "[" in part)
    folder, pattern = "/".join(parts[:first]), parts[first:]
    filesystem, root = _filesystem(folder + "/")
    import pyarrow.fs

    root = root.rstrip("/")
    selector = pyarrow.fs.FileSelector(root or "/", allow_not_found=True, recursive=len(pattern) > 1 or "**" in pattern)
    try:
        infos = filesystem.get_file_info(selector)
    except OSError as e:
        raise _cannot_open(uri, e) from None
    inside = (info.path[len(root) :].lstrip("/") for info in infos if info.type == pyarrow.fs.FileType.File)
    matches = sorted(f"{folder}/{quote(path)}" for path in inside if _matches(path.split("/"), pattern))
    if not matches:
        raise CaptureError(f"{uri}: no file matches")
    return matches


def _matches(path: list[str], pattern: list[str]) -> bool:
    """Whether the components of ``path`` match those of ``pattern``, where ``**`` stands for any number of them."""
    if not path or not pattern:
        return not path and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _matches(path, pattern[1:]) or _matches(path[1:], pattern)
    return fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _cannot_open(name: str, e: OSError) -> CaptureError:
    match e:
        case FileNotFoundError():
            return CaptureError(f"{name}: there is no such file")
        case IsADirectoryError():
            return CaptureError(f"{name}: a directory, not a capture")
        case PermissionError():
            return CaptureError(f"{name}: permission to read it is denied")
        case _:
            return CaptureError(f"{name}: cannot be opened ({e.strerror or _first_line(e)})")


def _first_line(e: Exception) -> str:
    return (str(e).strip().splitlines() or [type(e).__name__])[0]
