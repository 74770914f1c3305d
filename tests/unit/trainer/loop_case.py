"""A loop in this process, and rounds made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamtrain import config
from streamtrain.clock import FakeClock
from streamtrain.types import Round, RoundCounts, RoundReport

REGRESSION = {"field": "y", "dtype": "float32", "task": "regression"}
BINARY = {"field": "y", "dtype": "int32", "task": "classification"}
VECTOR = ({"field": "x", "dtype": "float32", "length": 2},)


def job_of(**options: Any) -> config.Job:
    return config.Job.model_validate(
        {"name": "job", "source": "source", "features": VECTOR, "labels": [REGRESSION], **options}
    )


class LoopCase:
    """Imports TensorFlow when made, not before."""

    def __init__(self, strategy: Any, *, builder: Callable[..., Any] | None = None, **options: Any) -> None:
        from streamtrain.trainer.loop import Loop
        from streamtrain.trainer.model import JobModel, set_precision

        self.job = job_of(**options)
        self.clock = FakeClock(1000.0)
        self.progress: list[tuple[str, int]] = []
        self.refusals: list[Any] = []
        set_precision(self.job.dtype)
        with strategy.scope():
            self.model = JobModel(job=self.job, builder=builder)
        self.loop = Loop(
            strategy=strategy,
            model=self.model,
            partitions=2,
            clock=self.clock,
            on_progress=lambda stage, done: self.progress.append((stage, done)),
            on_refusals=self.refusals.extend,
        )
        self.rounds = 0

    def learn(
        self,
        columns: dict[str, Any],
        y: Any,
        *,
        weights: Any = None,
        scored: Any = None,
        wall_time_ms: Any = None,
        held: Any = None,
        replayed: Any = None,
        batch_size: int = 4,
        careful: bool = False,
    ) -> RoundReport:
        """A round whose rows are all of partition 0; the i-th has the offset 100 + i. y: of the label `y`, or by
        label."""
        from streamtrain.trainer.rows import RoundRows, Rows

        n = len(next(iter(columns.values())))
        rows = Rows(
            partition=0,
            columns={name: np.asarray(column) for name, column in columns.items()},
            labels={name: np.asarray(values) for name, values in (y if isinstance(y, dict) else {"y": y}).items()},
            weights=np.ones(n) if weights is None else np.asarray(weights, float),
            scored=np.ones(n, bool) if scored is None else np.asarray(scored),
            wall_time_ms=np.zeros(n, np.int64) if wall_time_ms is None else np.asarray(wall_time_ms),
            held=None if held is None else np.asarray(held),
            offsets=100 + np.arange(n),
            replayed=None if replayed is None else np.asarray(replayed),
        )
        counts = RoundCounts(
            learned=n - sum(replayed or ()) - sum(held or ()), replayed=sum(replayed or ()), held_out=sum(held or ())
        )
        round_ = Round(self.rounds, (), (), (), 0, batch_size)
        self.rounds += 1
        return self.loop.run(RoundRows(round_, (rows,), {}, counts, {}, {"read": 0.5}, 0, 0), careful=careful)

    def state(self) -> list[Any]:
        """Weights, optimizer and random generators."""
        return [np.array(v.numpy()) for v in (*self.model.keras.variables, *self.model.optimizer.variables)]

    def weights(self) -> list[Any]:
        return [np.array(variable.numpy()) for variable in self.model.keras.weights]
