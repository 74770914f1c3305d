"""How the demo talks while it runs: a live panel on a terminal, a line every few seconds anywhere else. All of it
on stderr; stdout is for the summary."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from streamtrain.demo.screen import MEAN, MODEL, SHIFT, render, seconds
from streamtrain.demo.view import LiveView

_LINE_EVERY_S = 2.0
_REFRESH_PER_SECOND = 8


class Reporter(Protocol):
    def step(self, text: str, *, waited: float = 0.0) -> None:
        """What is being waited for, and for how many seconds."""

    def show(self, view: LiveView, *, now: float) -> None:
        """now: monotonic clock seconds."""

    def close(self) -> None: ...


class ScreenReporter:
    """For a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._spinner: Spinner | None = None

    def step(self, text: str, *, waited: float = 0.0) -> None:
        shown = Text.assemble(text, (f"  {waited:.0f} s" if waited >= 1 else "", "dim"))
        if self._spinner is None:
            self._spinner = Spinner("dots", style="cyan")
        self._spinner.update(text=shown)
        self._begin().update(self._spinner)

    def show(self, view: LiveView, *, now: float) -> None:
        self._begin().update(render(view))

    def _begin(self) -> Live:
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=_REFRESH_PER_SECOND, transient=True)
            self._live.start()
        return self._live

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class LineReporter:
    """For a pipe, a file or a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: float | None = None
        self._step = ("", 0.0)

    def step(self, text: str, *, waited: float = 0.0) -> None:
        said, then = self._step
        if text == said and waited - then < _LINE_EVERY_S:
            return
        self._step = (text, waited)
        shown = f"{text}, {waited:.0f} s" if waited >= 1 else text
        self._console.print(shown, highlight=False, markup=False, soft_wrap=True)

    def show(self, view: LiveView, *, now: float) -> None:
        if self._last is not None and now - self._last < _LINE_EVERY_S:
            return
        self._last = now
        self._console.print(line(view), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        pass


def line(view: LiveView) -> str:
    job, errors = view.job, view.comparison
    parts = [
        f"{view.elapsed:4.0f} s",
        f"written {view.written:,} ({view.write_rate:,.0f}/s)",
        f"learned {job.learned:,} ({view.learn_rate:,.0f}/s, {job.rounds:,} rounds)",
        f"backlog {'?' if job.backlog is None else f'{job.backlog:,}'}",
    ]
    if job.freshness_p50_s is not None:
        parts.append(f"fresh p50 {seconds(job.freshness_p50_s)} p99 {seconds(job.freshness_p99_s)}")
    if errors.model is not None and errors.shift is not None and errors.mean is not None:
        parts.append(f"MAE: {MODEL} {errors.model:.2f}, {SHIFT} {errors.shift:.2f}, {MEAN} {errors.mean:.2f}")
    return "  ".join(parts)
