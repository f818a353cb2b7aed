"""KC: the controller's gauges (section 14 of docs/controller-semantics.md; rules of section 12)."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kce.metrics import MetricName, Metrics
from tests.controller.support import world


@pytest.mark.kafka("KC-1")
async def test_gauges_are_removed_once(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:  # 12.1
    removed: list[str] = []
    remove = Metrics.remove

    def counted(metrics: Metrics, name: MetricName) -> None:
        if name.type == "KafkaController":
            removed.append(name.name)
        remove(metrics, name)

    monkeypatch.setattr(Metrics, "remove", counted)
    async with world([]) as w:
        controller = await w.start_controller(0)
        gauges = sorted(name.name for name, _ in controller.metrics.items() if name.type == "KafkaController")
        assert len(gauges) == 13
        controller.close()
        await w.settle()
        assert sorted(removed) == gauges
        assert not any(name.type == "KafkaController" for name, _ in controller.metrics.items())
