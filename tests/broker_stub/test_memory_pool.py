"""Memory for requests, which their readers wait for."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from kce.broker_stub.reactor.memory_pool import MemoryPool


async def test_who_waits_for_memory_sleeps_until_there_is_enough() -> None:
    pool, got = MemoryPool(10), list[str]()

    async def take(name: str, count: int) -> None:
        await pool.take(count)
        got.append(name)

    assert pool.try_take(10)
    assert not pool.try_take(1)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, "much", 8)
            nursery.start_soon(take, "little", 3)
            await wait_all_tasks_blocked()
            pool.give_back(5)
            await wait_all_tasks_blocked()  # the other one does not look again and again
            assert (got, pool.used) == (["little"], 8)
            pool.give_back(8)
    assert (got, pool.used) == (["little", "much"], 8)
