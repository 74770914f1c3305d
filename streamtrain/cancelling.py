"""Ends tasks for certain. pymongo's asynchronous client loses a cancellation that comes while it takes a connection
or sends (4.20: two of the first dozen steps of a command): the task then goes on as if nothing had been asked."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 5.0


async def end(*tasks: asyncio.Future[Any], again_s: float = AGAIN_S) -> None:
    """Cancels the tasks, again every `again_s` seconds, until all have ended. What they raise is left in them.

    again_s: longer than what a task does in order once it is cancelled, which the next cancellation breaks off.
    """
    waiting = set(tasks)
    while waiting := {task for task in waiting if not task.done()}:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=again_s)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: it is not reported as forgotten


def raise_if_lost() -> None:
    """Raises CancelledError in a task whose cancellation was lost before: for loops that nobody cancels twice."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
