"""What a person is told in one line, without a traceback."""

from __future__ import annotations


class HarnessError(Exception):
    """Something outside this program is not as it must be. The text names it, says where, and what to do."""
