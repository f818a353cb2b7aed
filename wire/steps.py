"""Long computations with pauses: generators that yield after a bounded amount of work, and return the result.

Who runs one decides what happens in its pauses. A server looks for other work.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]

#: a step takes that many elements, plus one: some 0.1 ms
STEP_MASK: Final = 127


def finish(steps: Steps[T]) -> T:
    """The result, without pauses."""
    try:
        while True:
            next(steps)
    except StopIteration as e:
        result: T = e.value
        return result
