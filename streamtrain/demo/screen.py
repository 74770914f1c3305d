"""The demo on a terminal: one panel that is drawn anew, as a pure function of the moment it shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from streamtrain.demo.view import Comparison, JobView, LiveView

MODEL, SHIFT, MEAN = "model", "dep_delay + running median", "running mean"
_SPARKS = "▁▂▃▄▅▆▇█"
WIDTH = 80
_BAR_CELLS = 30
_SPARK_CELLS = 20


def render(view: LiveView) -> RenderableType:
    """Fits the smallest usual terminal: 80 columns by 24 lines."""
    body = Group(_progress(view), Text(), _flow(view), Text(), _errors(view.comparison))
    return Panel(
        body,
        title="[bold]streamtrain demo[/] [dim]how late will the flights of 2013 arrive?[/]",
        subtitle=f"[dim]{view.stage}[/]",
        title_align="left",
        subtitle_align="right",
        box=ROUNDED,
        border_style="cyan",
        padding=(1, 2),
        width=WIDTH,
    )


def _progress(view: LiveView) -> RenderableType:
    table = _grid(15, _BAR_CELLS, None)
    elapsed = min(view.elapsed, view.duration)
    table.add_row(
        Text(f"{_clock(elapsed)} / {_clock(view.duration)}", style="bold"),
        ProgressBar(total=view.duration, completed=elapsed, width=_BAR_CELLS, complete_style="cyan"),
        Text(_date(view.flight_time_ms) if view.flight_time_ms else "", style="dim"),
    )
    return table


def _flow(view: LiveView) -> RenderableType:
    job = view.job
    table = _grid(9, -10, _SPARK_CELLS, None)
    table.add_row(
        Text("written", style="bold"),
        Text(f"{view.write_rate:,.0f} /s", style="bold cyan"),
        Text(sparkline(view.write_history), style="cyan"),
        Text(f"{view.inserts:,} left, {view.updates:,} landed"),
    )
    table.add_row(
        Text("learned", style="bold"),
        Text(f"{view.learn_rate:,.0f} /s", style="bold green"),
        Text(sparkline(view.learn_history), style="green"),
        Text(f"{job.learned:,} in {job.rounds:,} rounds"),
    )
    table.add_row(
        Text("backlog", style="bold"),
        Text("" if job.backlog is None else f"{job.backlog:,}", style="bold"),
        Text("records to learn", style="dim"),
        Text(_workers(job)),
    )
    table.add_row(
        Text("freshness", style="bold"),
        Text(seconds(job.freshness_p50_s), style="bold"),
        Text("write to gradient", style="dim"),
        Text(f"p99 {seconds(job.freshness_p99_s)}" if job.freshness_p99_s is not None else ""),
    )
    return table


def _workers(job: JobView) -> str:
    if not job.generation:
        return ""
    text = f"{job.workers} worker{'s' * (job.workers != 1)}" if job.workers else "workers are replaced"
    return f"{text}, {job.dead_letters:,} dead letters" if job.dead_letters else text


def _errors(comparison: Comparison) -> RenderableType:
    header = Text("mean absolute error", style="bold")
    header.append(f"  of {comparison.labels:,} flights, predicted before learned", style="dim")
    table = _grid(26, -9, _BAR_CELLS)
    worst = max((mae for mae in (comparison.model, comparison.shift, comparison.mean) if mae), default=1.0)
    for name, mae, style in (
        (MODEL, comparison.model, "green"),
        (SHIFT, comparison.shift, "yellow"),
        (MEAN, comparison.mean, "red"),
    ):
        table.add_row(
            Text(name, style=f"bold {style}" if name == MODEL else ""),
            Text("" if mae is None else f"{mae:.2f} min", style="bold"),
            Text("━" * round(_BAR_CELLS * (mae or 0) / worst), style=style),
        )
    return Group(header, table, Text(), Text(verdict(comparison), style=_verdict_style(comparison)))


def _grid(*widths: int | None) -> Table:
    """Columns of fixed widths; a negative one is set to the right, None takes what is left."""
    table = Table.grid(padding=(0, 2))
    for width in widths:
        table.add_column(
            width=None if width is None else abs(width), justify="right" if (width or 0) < 0 else "left", no_wrap=True
        )
    return table


def verdict(comparison: Comparison) -> str:
    improvement = comparison.improvement
    if improvement is None:
        return "waiting for the first flights to land"
    side = "below" if improvement >= 0 else "above"
    return f"the model is {abs(improvement):.1%} {side} the better baseline"


def _verdict_style(comparison: Comparison) -> str:
    improvement = comparison.improvement
    return "dim" if improvement is None else "bold green" if improvement >= 0 else "yellow"


def sparkline(values: Sequence[float]) -> str:
    """The newest values, one cell each, from 0 to their maximum."""
    values = values[-_SPARK_CELLS:]
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int(value / top * (len(_SPARKS) - 0.01)))] for value in values)


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _clock(elapsed: float) -> str:
    return f"{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}"


def _date(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%-d %B, %H}h"
