"""What the demo says at its end: as a table for people, as one JSON document for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streamtrain.demo.screen import MEAN, MODEL, SHIFT, WIDTH, seconds, verdict
from streamtrain.demo.view import Comparison, JobView

_ON_TIME = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """rate: writes a second that were asked for. writing_s: seconds of writing. first_learned_s: from the start
    of the demo to the first learned flight. caught_up_s: from the last write until all of it was learned, None
    when that took too long. kept: the work directory, where it was asked for. checkpoint: the newest `.keras`
    file in it."""

    rate: float
    inserts: int
    updates: int
    deletes: int
    writing_s: float
    job: JobView
    comparison: Comparison
    after_5000: Comparison | None
    first_learned_s: float | None
    caught_up_s: float | None
    kept: str | None = None
    checkpoint: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every flight that landed was learned, once."""
        return self.caught_up_s is not None and self.job.learned == self.updates

    def to_document(self) -> dict[str, Any]:
        return {
            "written": {
                "inserts": self.inserts,
                "updates": self.updates,
                "deletes": self.deletes,
                "asked_per_second": self.rate,
                "seconds": round(self.writing_s, 3),
                "per_second": round((self.inserts + self.updates + self.deletes) / self.writing_s, 1)
                if self.writing_s
                else None,
            },
            "learned": {
                "rows": self.job.learned,
                "rounds": self.job.rounds,
                "workers": self.job.workers,
                "generations": self.job.generation,
                "dead_letters": self.job.dead_letters,
                "backlog": self.job.backlog,
                "complete": self.complete,
                "first_after_seconds": _rounded(self.first_learned_s),
                "caught_up_after_seconds": _rounded(self.caught_up_s),
            },
            "mean_absolute_error": _errors(self.comparison),
            "mean_absolute_error_after_5000": None if self.after_5000 is None else _errors(self.after_5000),
            "freshness_seconds": {
                "p50": _rounded(self.job.freshness_p50_s),
                "p99": _rounded(self.job.freshness_p99_s),
            },
            "kept": self.kept,
            "checkpoint": self.checkpoint,
        }


def _errors(comparison: Comparison) -> dict[str, Any]:
    return {
        "labels": comparison.labels,
        "model": _rounded(comparison.model),
        "dep_delay_plus_running_median": _rounded(comparison.shift),
        "running_mean": _rounded(comparison.mean),
        "improvement_over_better_baseline": _rounded(comparison.improvement),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def render_summary(summary: Summary) -> RenderableType:
    job, total = summary.job, summary.inserts + summary.updates + summary.deletes
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", width=10)
    facts.add_column()
    rate = total / summary.writing_s if summary.writing_s else 0.0
    slower = "" if rate >= _ON_TIME * summary.rate else f", of {summary.rate:,.0f} that were asked for"
    facts.add_row("written", f"{total:,} writes in {summary.writing_s:.0f} s, {rate:,.0f} a second{slower}")
    facts.add_row(
        "", f"{summary.inserts:,} flights left, {summary.updates:,} landed, {summary.deletes:,} were cancelled"
    )
    facts.add_row("learned", _learned(summary))
    if job.generation > 1:
        replaced = "once" if job.generation == 2 else f"{job.generation - 1} times"
        facts.add_row("workers", f"were replaced {replaced} after a failure, from the newest checkpoint")
    if summary.first_learned_s is not None:
        facts.add_row("first", f"document learned {seconds(summary.first_learned_s)} after the start")
    if job.freshness_p50_s is not None:
        quantiles = f"median {seconds(job.freshness_p50_s)}, p99 {seconds(job.freshness_p99_s)}"
        facts.add_row("freshness", f"{quantiles} from write to gradient")
    style = "green" if summary.complete else "yellow"
    return Panel(
        Group(facts, Text(), error_table(summary.comparison)) if summary.comparison.labels else facts,
        title="[bold]what it learned[/]",
        title_align="left",
        box=ROUNDED,
        border_style=style,
        padding=(1, 2),
        width=WIDTH,
    )


def kept_lines(summary: Summary) -> list[str]:
    """What was left behind, a path whole on each line, so that it can be copied."""
    paths = {"kept": summary.kept, "checkpoint": summary.checkpoint}
    return [f"{name:<10}  {path}" for name, path in paths.items() if path is not None]


def _learned(summary: Summary) -> str:
    job = summary.job
    if not summary.updates:
        return "nothing: no flight landed within so few writes"
    if summary.complete:
        return f"all {job.learned:,} flights that landed, each once, in {job.rounds:,} rounds"
    return f"{job.learned:,} of {summary.updates:,} flights that landed, in {job.rounds:,} rounds"


def error_table(comparison: Comparison) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=28)
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, mae in ((MODEL, comparison.model), (SHIFT, comparison.shift), (MEAN, comparison.mean)):
        shown = "" if mae is None else f"{mae:.2f} min"
        table.add_row(Text(name, style="bold green" if name == MODEL else ""), Text(shown, style="bold"))
    header = Text("mean absolute error", style="bold")
    header.append(f"  of {comparison.labels:,} flights, predicted before learned", style="dim")
    return Group(header, table, Text(), Text(verdict(comparison), style="bold"))
