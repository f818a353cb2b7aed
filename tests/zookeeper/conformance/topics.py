"""Topics in memory, made and grown as an administrator does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from kce.wire import ErrorCode
from kce.zookeeper import admin
from kce.zookeeper.topic_plans import AdminError
from tests.controller.support import World

BROKERS = [0, 1, 2, 3]


async def create(w: World, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
    await admin.create_topic(w.zk, topic, assignment=assignment, random=Random(0))
    await w.settle()


async def refusal(w: World, topic: str, assignment: Mapping[int, Sequence[int]]) -> ErrorCode:
    """Why the topic is not created; nothing of it is left."""
    before = await w.zk.get_topics()
    with pytest.raises(AdminError) as refused:
        await create(w, topic, assignment)
    assert await w.zk.get_topics() == before
    return refused.value.code


async def placed(w: World, topic: str) -> dict[int, tuple[int, ...]]:
    found = (await w.zk.get_topic_assignments([topic]))[topic].partitions
    return {p: assignment.replicas for p, assignment in found.items()}
