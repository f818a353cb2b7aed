"""The captures of real Kafka that come with the project, and what is known about them."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parents[2] / "captures" / "samples"

#: name -> capture
CAPTURES = {path.name.split(".pcap")[0]: path for path in sorted(SAMPLES.glob("*.pcap*.gz"))}
TOURS = [name for name in CAPTURES if name.endswith("-tour")]


@functools.cache
def truth(name: str) -> dict[str, Any]:
    return json.loads(gzip.decompress((SAMPLES / f"{name}.truth.json.gz").read_bytes()))


@functools.cache
def scenario(name: str) -> dict[str, Any]:
    return json.loads((SAMPLES / f"{name}.scenario.json").read_text())


def state_change_log(name: str) -> list[str]:
    return gzip.decompress((SAMPLES / f"{name}.state-change.log.gz").read_bytes()).decode().splitlines()


def unzipped(name: str) -> bytes:
    return gzip.decompress(CAPTURES[name].read_bytes())
