"""The entry point of `kce`: signals end it without a traceback from its first moment."""

from __future__ import annotations

from kce.harness import interrupts


def main() -> int:
    """Run `kce` and return its exit code."""
    interrupts.exit_at_once()
    from kce.harness.cli import main

    return main()
