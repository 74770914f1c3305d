"""`streamtrain demo`: checks what it was asked for, runs a session in a temporary directory, prints its summary
on stdout. Ctrl-C ends it in order; nothing is left running or, without --keep, on disk."""

from __future__ import annotations

import asyncio
import json as jsonlib
import logging
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from streamtrain.clock import SystemClock
from streamtrain.demo.options import Options, parse_options
from streamtrain.demo.reporter import LineReporter, Reporter, ScreenReporter
from streamtrain.demo.summary import Summary, kept_lines, render_summary
from streamtrain.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_OK

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def demo(*, rate: float, duration: str, workers: int, json: bool, keep: bool) -> int:
    """Returns the exit code: 0 when everything was learned, 70 when not, 130 when it was interrupted. Raises
    StreamtrainError for bad options and for failures."""
    options = parse_options(rate=rate, duration=duration, workers=workers, json=json, keep=keep)
    # The clients' own warnings are about servers that come and go, which here is the demo's doing.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("pymongo").setLevel(logging.CRITICAL)
    console = Console(stderr=True)
    reporter: Reporter = ScreenReporter(console) if console.is_terminal and not json else LineReporter(console)
    directory = Path(tempfile.mkdtemp(prefix="streamtrain-demo-"))
    try:
        summary = asyncio.run(_run(options, directory, reporter))
    except KeyboardInterrupt:  # before the session could take signals, or after
        summary = None
    finally:
        reporter.close()
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    if summary is None:
        kept = f"; its files are in {directory}" if keep else ""
        print(f"streamtrain demo: interrupted{kept}", file=sys.stderr)
        return EXIT_INTERRUPTED
    _print(summary, json=json)
    return EXIT_OK if summary.complete else EXIT_INTERNAL


async def _run(options: Options, directory: Path, reporter: Reporter) -> Summary | None:
    """None when it was interrupted. A first signal ends the session in order, a second one at once."""
    from streamtrain.demo.session import Session  # its clients take long to import for a wrong option

    session = Session(options=options, directory=directory, reporter=reporter, clock=SystemClock())
    task = asyncio.create_task(session.run())
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if not interrupted:
            raise
        return None
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _print(summary: Summary, *, json: bool) -> None:
    if json:
        print(jsonlib.dumps(summary.to_document(), indent=2))
    else:
        Console().print(render_summary(summary))
        for line in kept_lines(summary):
            print(line)
