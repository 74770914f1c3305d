"""What the demo shows fits a terminal of 80 columns by 24 lines, at its start and in its midst."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from streamtrain.demo.reporter import LineReporter, line
from streamtrain.demo.screen import render, sparkline
from streamtrain.demo.summary import Summary, kept_lines, render_summary
from streamtrain.demo.view import Comparison, JobView, LiveView

JOB = JobView(
    phase="training",
    workers=2,
    rounds=12_310,
    learned=327_346,
    scored=327_346,
    absolute_error=327_346 * 10.31,
    backlog=21_400,
    dead_letters=3,
    freshness_p50_s=0.21,
    freshness_p99_s=1.44,
)
ERRORS = Comparison(labels=327_346, model=10.31, shift=11.80, mean=21.75)
BUSY = LiveView(
    elapsed=3423.4,
    duration=3600.0,
    stage="nothing more is written; learning what is left",
    inserts=336_776,
    updates=327_346,
    deletes=8_255,
    flight_time_ms=1_379_500_000_000,
    write_rate=20_001.2,
    learn_rate=12_985,
    write_history=tuple(float(i) for i in range(48)),
    learn_history=(0.0,) * 20,
    job=JOB,
    comparison=ERRORS,
)


def lines_of(what: RenderableType) -> list[str]:
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(what)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("view", [BUSY, LiveView(elapsed=0.0, duration=60.0, stage="starting")])
def test_panel_fits_the_smallest_usual_terminal(view: LiveView) -> None:
    lines = lines_of(render(view))
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert not any("…" in text for text in lines)


def test_panel_says_how_the_model_compares() -> None:
    text = "\n".join(lines_of(render(BUSY)))
    assert "12.6% below the better baseline" in text
    assert "10.31 min" in text


def test_a_pipe_gets_plain_lines_and_not_too_many() -> None:
    console = Console(file=io.StringIO(), width=20)
    reporter = LineReporter(console)
    for now in (0.0, 0.5, 1.9, 2.1):
        reporter.show(BUSY, now=now)
    file = console.file
    assert isinstance(file, io.StringIO)
    assert file.getvalue().splitlines() == [line(BUSY), line(BUSY)]
    assert "\x1b" not in file.getvalue()


def test_sparkline_scales_to_its_maximum() -> None:
    assert sparkline([0.0, 5.0, 10.0]) == "▁▄█"
    assert sparkline([]) == sparkline([0.0]) == ""


def summary(*, learned: int, caught_up_s: float | None) -> Summary:
    return Summary(
        rate=10.0,
        inserts=10,
        updates=8,
        deletes=1,
        writing_s=2.0,
        job=JobView(learned=learned, scored=8, absolute_error=80.0, rounds=2),
        comparison=Comparison(labels=8, model=10.0, shift=12.0, mean=20.0),
        after_5000=None,
        first_learned_s=9.0,
        caught_up_s=caught_up_s,
    )


def test_summary_is_complete_only_when_every_label_was_learned_once() -> None:
    assert summary(learned=8, caught_up_s=0.2).complete
    assert not summary(learned=7, caught_up_s=None).complete
    assert not summary(learned=9, caught_up_s=0.2).complete
    assert "all 8 flights that landed, each once" in "\n".join(
        lines_of(render_summary(summary(learned=8, caught_up_s=0.2)))
    )
    assert summary(learned=8, caught_up_s=0.2).to_document()["written"]["per_second"] == 9.5


def test_paths_that_were_kept_stand_whole_in_a_line() -> None:
    checkpoint = "/tmp/streamtrain-demo-9chztcj6/checkpoints/flight-delay/20261130t222954-a7c7f0/e1-g1-r41/model.keras"
    kept = replace(summary(learned=8, caught_up_s=0.2), kept="/tmp/streamtrain-demo-9chztcj6", checkpoint=checkpoint)
    assert kept_lines(kept) == ["kept        /tmp/streamtrain-demo-9chztcj6", f"checkpoint  {checkpoint}"]
