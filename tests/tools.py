"""Programs that a test needs and a machine may lack: skipped with a loud reason, required where CI installs them."""

from __future__ import annotations

import os
import shutil

import pytest


def require(program: str) -> str:
    """The path of ``program``. Without it the test is skipped, or fails when KCE_REQUIRE_TOOLS is set (as in CI)."""
    found = shutil.which(program)
    if found is None:
        reason = f"{program} is not installed: what it would have judged is NOT checked"
        if os.environ.get("KCE_REQUIRE_TOOLS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found
