"""Where files are kept that another run would have to make again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path | None:
    """$XDG_CACHE_HOME, or ~/.cache; None for a user id that has no home, as in some containers.

    It need not exist, and perhaps it can be neither read nor made.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # the XDG specification says to ignore it
        cache = os.path.expanduser("~/.cache")
    return Path(cache) if os.path.isabs(cache) else None


def cache_folder() -> Path:
    """Ours there. For a user without a home one that cannot be made: else it would be a folder called `~`, here."""
    return (user_cache() or Path(os.devnull)) / "kafka-controller-emulator"
