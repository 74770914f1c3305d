"""A round's steps, the same on every rank: agree on row counts, learn, and leave out the rows that the model cannot
learn from, as if their weights had been zero. Never reads a stream and never decides what is learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamtrain.clock import Clock
from streamtrain.errors import ModelError, RefusedRowError, ReplicasDifferError, TrainingError
from streamtrain.trainer.batches import NO_STEP, Stack, stacks, step_of_rows, steps_of
from streamtrain.trainer.holdout import Holdout
from streamtrain.trainer.model import PRIMING_PASSES, JobModel
from streamtrain.trainer.refusals import Refusal, counted, expelled
from streamtrain.trainer.replicas import fingerprint
from streamtrain.trainer.round_index import RoundIndex
from streamtrain.trainer.rows import RoundRows, Rows
from streamtrain.trainer.search import Search
from streamtrain.trainer.step import Step, Taken
from streamtrain.types import FRESHNESS_BUCKETS_MS, Norms, RoundReport

VERIFY_EVERY = 256
"""Rounds between two comparisons of the ranks' weights; they are compared before each save, too."""

_REHEARSED_ROWS = 8


class Loop:
    """Trains one generation's rounds. All ranks call `run` with the same rounds in the same order."""

    def __init__(
        self,
        *,
        strategy: tf.distribute.Strategy,
        model: JobModel,
        partitions: int,
        clock: Clock,
        on_progress: Callable[[str, int], None],
        on_refusals: Callable[[Sequence[Refusal]], None] = lambda refusals: None,
    ) -> None:
        """strategy: whose scope `model` was made in. partitions: of the topic, over all ranks. on_refusals: called
        with the rows of this rank that a round has left out, before `run` returns."""
        self._world = strategy.num_replicas_in_sync
        self._model = model
        self._partitions = partitions
        self._clock = clock
        self._on_progress = on_progress
        self._on_refusals = on_refusals
        labels = [label.field for label in model.schema.labels]
        self._step = Step(strategy=strategy, model=model)
        self._search = Search(
            step=self._step,
            labels=labels,
            summed=model.reduction == "sum",
            alone=self._world == 1 or not any(getattr(layer, "synchronized", False) for layer in model.layers),
            on_progress=lambda: on_progress("search", 1),
        )
        self._holdout = Holdout(step=self._step, search=self._search, labels=labels)
        self._primed = False

    def prepare(self) -> None:
        """Runs what the rounds will run once, on rows of weight zero: the first round is then as fast as any, and
        what is wrong with the model shows before it. On all ranks together, and before a state is restored: random
        generators move on. Raises ModelError."""
        nothing = self._step.nothing(1, _REHEARSED_ROWS)
        try:
            self._step.sum(np.zeros(self._partitions + 1, np.int64))
            if self._model.statistics:
                self._step.prime(nothing)
            self._step.take(nothing)
        except tf.errors.UnavailableError:
            raise  # another rank has gone
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"the model cannot be trained: {type(error).__name__}: {str(error).strip()[:1000]}",
                hint="its call and its loss must work inside a tf.function, on batches of any size",
            ) from error

    # ------------------------------------------------------------------ a round

    def run(self, read: RoundRows, *, careful: bool = False) -> RoundReport:
        """Learns the rows of a round. careful: each rank tries its rows by itself before they take part in a step.
        Raises TrainingError when the weights have diverged, RefusedRowError when the model refuses a row while
        nobody was careful, ReplicasDifferError."""
        started = self._clock.monotonic()
        index = RoundIndex.of(read.rows)
        counts, held = self._counts(read)
        steps = step_of_rows(counts.tolist(), read.round.batch_size)
        freshness = np.zeros(len(FRESHNESS_BUCKETS_MS) + 1, np.int64)
        sums = np.zeros(self._step.scores.size)
        norms = Norms()
        refusals: list[Refusal] = []
        self._search.begin(read.round.number, index, refusals)
        try:
            holdout = self._holdout.score(read.rows, index, refusals, careful=careful) if held else {}
            for stack in stacks(
                layout=self._step.layout,
                rows=read.rows,
                steps=[_placed(part, steps[part.partition]) for part in read.rows],
                total_steps=steps_of(int(counts.sum()), read.round.batch_size),
                batch_size=read.round.batch_size,
            ):
                if careful:
                    self._search.inspect(stack)
                for taken in self._learn(stack):
                    sums += taken.sums
                    norms += taken.norms
                _count_freshness(freshness, index.wall_times_ms(stack), self._clock.time())
                self._on_progress("step", stack.steps)
        except tf.errors.InvalidArgumentError as error:
            if _is_collective(error):
                raise
            raise _refused(error, read.round.number, careful=careful) from error
        if read.round.number % VERIFY_EVERY == VERIFY_EVERY - 1:
            self.verify()
        if refusals:
            self._on_refusals(refusals)
        reasons = dict(read.dead_letter_reasons)
        now = self._clock.monotonic()
        return RoundReport(
            round=read.round.number,
            learned=read.learned,
            counts=counted(read.counts, reasons, refusals),
            steps=norms.steps,
            scores=self._step.scores.unpack(sums),
            dead_letter_reasons=reasons,
            freshness_ms=tuple(freshness.tolist()),
            timings={**read.timings, "step": now - started, "total": now - started + sum(read.timings.values())},
            memory_rows=read.memory_rows,
            memory_bytes=read.memory_bytes,
            waiting=read.waiting,
            next_absent=read.next_absent,
            label_latency=read.label_latency,
            redriven=read.redriven,
            holdout=holdout,
            norms=norms,
            fields=read.fields,
            expelled=expelled(refusals),
        )

    def verify(self) -> None:
        """Compares what the ranks hold; on all of them together. Raises ReplicasDifferError."""
        if self._world == 1:
            return
        own = fingerprint(self._model)
        if int(self._step.sum(np.array([own], np.int64))[0]) != own * self._world:
            raise ReplicasDifferError(
                "the workers' weights are not the same any more: a worker's memory or arithmetic is at fault, or a "
                "layer changes weights of its own in call()",
                hint="training goes on from the newest manifest; if it comes again, look at the hosts' hardware",
            )

    def _counts(self, read: RoundRows) -> tuple[npt.NDArray[np.int64], int]:
        """Rows to learn, per partition of the topic, and how many are held out, over all ranks."""
        own = np.zeros(self._partitions + 1, np.int64)
        for part in read.rows:
            held = 0 if part.held is None else int(part.held.sum())
            own[part.partition] = len(part) - held
            own[-1] += held
        found = self._step.sum(own)
        return found[:-1], int(found[-1])

    def _learn(self, stack: Stack) -> list[Taken]:
        found = []
        done = 0
        if not self._is_primed():
            found.append(self._prime(stack))
            done = 1
        while done < stack.steps:
            taken = self._step.take(stack.arrays(done))
            found.append(taken)
            done += taken.steps
            if done:
                self._search.learned(stack, done - 1)
            if not taken.good:
                self._search.take_out(stack, done)
        return found

    def _is_primed(self) -> bool:
        """Whether running statistics know anything yet; they do after the first step, or once restored."""
        self._primed = self._primed or all(statistics.primed() for statistics in self._model.statistics)
        return self._primed

    def _prime(self, stack: Stack) -> Taken:
        """Scores the very first step with the untouched model, lets running statistics absorb it, and learns it. A
        row that turns out to be none to learn from is not left in the statistics either."""
        layers = self._model.statistics
        states = [variable for layer in layers for variable in layer.variables]  # type: ignore[attr-defined]
        before = [np.array(variable.numpy()) for variable in states]
        while True:
            scored = self._step.prime(stack.arrays(0, 1))
            again = (
                [self._step.prime(stack.arrays(0, 1)) for _ in range(PRIMING_PASSES - 1)] if scored is not None else []
            )
            if scored is not None and all(sums is not None for sums in again):
                packs, labels, weights, unscored = stack.arrays(0, 1)
                taken = self._step.take((packs, labels, weights, np.zeros_like(unscored)))
                if taken.good:
                    self._search.learned(stack, 0)
                    return replace(taken, sums=scored)
            self._search.take_out(stack, 0)
            for variable, value in zip(states, before, strict=True):
                variable.assign(value)

    @property
    def traces(self) -> int:
        """How often the step function was traced: 1, whatever the shapes of the rounds."""
        return self._step.traces


def _placed(part: Rows, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The step of each row of the partition; those that are held out have none."""
    if part.held is None or not part.held.any():
        return steps
    placed = np.full(len(part), NO_STEP, np.int64)
    placed[~part.held] = steps
    return placed


def _is_collective(error: tf.errors.OpError) -> bool:
    return "ollective" in str(error.message)


def _refused(error: tf.errors.OpError, round_number: int, *, careful: bool) -> Exception:
    """What it means when an operation of the model refuses its input. careful: each row had been tried before."""
    lines = str(error.message).splitlines()
    at = next((place for place, line in enumerate(lines) if "[[{{node" in line), 1)
    what = f"the model refuses a row of round {round_number}: {lines[max(0, at - 1)].strip()[:300]}"
    if careful:
        return TrainingError(what, hint="it takes each row by itself, but not all of a batch together")
    return RefusedRowError(
        what, hint="does an embedding or a table of the model take every value that the features can have?"
    )


def _count_freshness(histogram: npt.NDArray[np.int64], wall_ms: npt.NDArray[np.int64], now: float) -> None:
    if len(wall_ms):
        ages = np.maximum(now * 1000.0 - wall_ms, 0.0)
        places = np.searchsorted(np.asarray(FRESHNESS_BUCKETS_MS), ages)
        histogram += np.bincount(places, minlength=len(histogram))
