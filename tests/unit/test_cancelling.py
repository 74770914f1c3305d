"""A task that loses a cancellation, as pymongo's client may, ends nevertheless."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from streamtrain import cancelling


async def deaf(times: int) -> None:
    """Loses `times` cancellations."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if not times:
                raise
            times -= 1


async def test_a_task_that_loses_cancellations_is_cancelled_until_it_ends() -> None:
    tasks = [asyncio.create_task(deaf(times)) for times in (0, 1, 3)]
    await asyncio.sleep(0)
    await cancelling.end(*tasks, again_s=0.01)
    assert all(task.cancelled() for task in tasks)


async def test_what_a_task_raises_at_its_end_is_left_in_it() -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError("at the end")

    task, done = asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(0))
    await asyncio.sleep(0)
    await cancelling.end(task, done)
    assert isinstance(task.exception(), ValueError)
    assert done.done()


async def test_a_loop_notices_a_cancellation_that_was_lost_inside_it() -> None:
    ran = asyncio.Event()

    async def loop() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)
            cancelling.raise_if_lost()
            ran.set()

    task = asyncio.create_task(loop())
    await ran.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
