"""Optional dependencies: which extra installs a module, and the error for one that is missing."""

from __future__ import annotations

import importlib.util
import sys

#: module -> the extra of pyproject.toml that installs it
EXTRA_OF = {
    "cryptography": "pkcs12",
    "jinja2": "spark",
    "llvmlite": "spark",
    "matplotlib": "spark",
    "numba": "spark",
    "numpy": "spark",
    "pandas": "spark",
    "pyarrow": "spark",
    "pysail": "spark",
    "pyspark": "spark",
}
SPARK = tuple(module for module, extra in EXTRA_OF.items() if extra == "spark")


class MissingExtra(ImportError):
    """An optional dependency is not installed. The message is one line that says how to install it."""


def require(*modules: str, purpose: str) -> None:
    """Raise MissingExtra unless all ``modules`` are installed; import none. ``purpose`` names what needs them."""
    for module in modules:
        if sys.modules.get(module) is None and importlib.util.find_spec(module) is None:
            raise MissingExtra(
                f"{purpose} needs {module}: pip install 'kafka-controller-emulator[{EXTRA_OF[module]}]'", name=module
            )
