"""One pass over a stream as a job makes it: rounds of new rows, each scored before it is learned, with as many
replayed as the planner would ask for. No servers: only the loop of one worker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamtrain.trainer.worker import quieten

quieten(os.environ)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from streamtrain import config, scores  # noqa: E402
from streamtrain.clock import SystemClock  # noqa: E402
from streamtrain.trainer.assemble import spread  # noqa: E402
from streamtrain.trainer.loop import Loop  # noqa: E402
from streamtrain.trainer.model import JobModel, set_precision  # noqa: E402
from streamtrain.trainer.rows import RoundRows, Rows  # noqa: E402
from streamtrain.types import PlanSettings, Round, RoundCounts, Scores  # noqa: E402
from streamtrain.window.planner import replay_rows  # noqa: E402


@dataclass(frozen=True, slots=True)
class Stream:
    """Labelled rows in the order in which their labels became known. columns: by feature field, as the decoder
    gives them."""

    columns: Mapping[str, Any]
    labels: Any

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Passed:
    """scores: of all rows, each from before it was learned. cpu_s, wall_s: without building and compiling."""

    scores: Scores
    steps: int
    rows_learned: int
    cpu_s: float
    wall_s: float


def one_pass(
    job: config.Job,
    stream: Stream,
    *,
    rows_per_round: int,
    window: int,
    on_round: Callable[[int, Scores], None] = lambda last, total: None,
) -> Passed:
    """window: how many rows the memory holds. on_round: called with rows so far and scores so far."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    set_precision(job.dtype)
    with strategy.scope():
        model = JobModel(job=job)
    loop = Loop(strategy=strategy, model=model, partitions=1, clock=SystemClock(), on_progress=lambda stage, n: None)
    loop.prepare()
    settings = PlanSettings(
        max_wait_s=job.round.max_wait,
        max_records=window,
        batch_size=job.round.batch_size,
        replay_ratio=job.round.replay_ratio,
        seed=job.seed,
    )
    rng = np.random.default_rng(job.seed)
    label = job.labels[0].field
    total, steps, learned = Scores(), 0, 0
    cpu, wall = time.process_time(), time.perf_counter()
    for number, first in enumerate(range(0, len(stream), rows_per_round)):
        last = min(first + rows_per_round, len(stream))
        remembered = min(first, window)
        count = min(replay_rows(last - first, settings), remembered)
        replayed = first - 1 - rng.choice(remembered, count, replace=False) if count else np.zeros(0, np.int64)
        rows = _rows(stream, label, np.concatenate([np.arange(first, last), replayed]), last - first)
        planned = Round(number, (), (), (), 0, job.round.batch_size)
        report = loop.run(RoundRows(planned, (rows,), {}, RoundCounts(), {}, {}, 0, 0))
        total, steps, learned = scores.merge(total, report.scores[label]), steps + report.steps, learned + len(rows)
        on_round(last, total)
    return Passed(total, steps, learned, time.process_time() - cpu, time.perf_counter() - wall)


def _rows(stream: Stream, label: str, index: Any, fresh: int) -> Rows:
    """The rows at `index`; the first `fresh` of them are new, the rest are replayed; spread evenly."""
    n = len(index)
    place = spread(fresh, n - fresh)
    new = (np.arange(n) < fresh)[place]
    return Rows(
        partition=0,
        columns={name: column[index[place]] for name, column in stream.columns.items()},
        labels={label: stream.labels[index[place]]},
        weights=np.ones(n),
        scored=new,
        wall_time_ms=np.zeros(n, np.int64),
        replayed=~new,
    )
