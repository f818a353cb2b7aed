"""Background tasks outlive a cancellation, until their block ends."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kce.harness.background import BackgroundTasks


async def serve(log: list[str], task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
    try:
        await trio.testing.wait_all_tasks_blocked()
        task_status.started("ready")
        await trio.sleep_forever()
    finally:
        log.append("ended")


async def test_tasks_run_until_the_block_has_cleaned_up(autojump_clock: trio.testing.MockClock) -> None:
    log: list[str] = []
    with trio.CancelScope() as scope:
        async with BackgroundTasks.running() as tasks:
            assert await tasks.start(serve, log) == "ready"
            tasks.start_soon(serve, log)
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)
                assert log == []
    assert (scope.cancelled_caught, log) == (True, ["ended", "ended"])


async def test_a_task_that_begins_after_the_block_has_ended_is_cancelled() -> None:
    with trio.fail_after(30):
        async with BackgroundTasks.running() as tasks:
            tasks.start_soon(trio.sleep_forever)


async def test_a_task_that_has_not_started_is_cancelled_with_its_caller(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log: list[str] = []

    async def never_ready(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await serve(log)

    async with BackgroundTasks.running() as tasks:
        with trio.move_on_after(1):
            await tasks.start(never_ready)
        assert log == ["ended"]


async def test_a_task_that_fails_ends_the_block_and_the_other_tasks() -> None:
    log: list[str] = []

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError):
        async with BackgroundTasks.running() as tasks:
            await tasks.start(serve, log)
            tasks.start_soon(fail)
            await trio.sleep_forever()
    assert log == ["ended"]
