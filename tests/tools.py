"""Programs that some tests need: without them a test is skipped with a clear reason, or fails in CI."""

from __future__ import annotations

import os
import shutil

import pytest


def require(program: str) -> str:
    """The path of ``program``. If it is missing, skip the test, or fail it if KCE_REQUIRE_TOOLS is set (as in CI)."""
    found = shutil.which(program)
    if found is None:
        reason = f"{program} is not installed, so this is NOT checked"
        if os.environ.get("KCE_REQUIRE_TOOLS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found
