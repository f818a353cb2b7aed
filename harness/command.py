"""The entry point of `kce`: signals end it without a traceback as soon as Python runs this module.

Before that Python itself starts and imports its `site`, for some hundredths of a second; a SIGINT then prints Python's
KeyboardInterrupt, and no program in Python can change that.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` is made of it; it costs no import

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # to end silently, until exit_at_once

from kce.garbage import no_collection
from kce.harness import interrupts


def main() -> int:
    """Run `kce` and return its exit code."""
    interrupts.open_standard_streams()
    interrupts.exit_at_once()
    with no_collection(freeze=True):  # modules are full of cycles, and stay
        from kce.harness.cli import main

    return main()
