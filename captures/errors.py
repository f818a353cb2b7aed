"""What is wrong with a capture, in one line a person can act on."""

from __future__ import annotations


class CaptureError(Exception):
    """A file that cannot be read as a capture. The text names the file, the place in it, and what is the matter."""
