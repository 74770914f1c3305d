"""The gradient steps of a round, the same on every rank: agree on row counts, then K steps per compiled call,
each with one all-reduce. Never reads a stream and never decides what is learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamtrain.clock import Clock
from streamtrain.errors import ModelError, TrainingError
from streamtrain.trainer.batches import Layout, Stack, layout_of, stacks, step_of_rows, steps_of
from streamtrain.trainer.evaluate import ScoreLayout, score_sums
from streamtrain.trainer.model import JobModel
from streamtrain.trainer.rows import RoundRows
from streamtrain.types import FRESHNESS_BUCKETS_MS, RoundReport

Tensor = Any

PRIMING_PASSES = 3
"""How often running statistics absorb the very first step before it is learned: mean, then spread, then residuals."""

_REHEARSED_ROWS = 8


class Loop:
    """Trains one generation's rounds. All ranks call `run` with the same rounds in the same order."""

    def __init__(
        self,
        *,
        strategy: Any,
        model: JobModel,
        partitions: int,
        clock: Clock,
        on_progress: Callable[[str, int], None],
    ) -> None:
        """strategy: whose scope `model` was made in. partitions: of the topic, over all ranks."""
        self._strategy = strategy
        self._world = strategy.num_replicas_in_sync
        self._model = model
        self._partitions = partitions
        self._clock = clock
        self._on_progress = on_progress
        self._real: tf.DType = model.real
        self._layout: Layout = layout_of(model.schema, model.real.as_numpy_dtype)
        self._scores = ScoreLayout(model.schema.labels)
        self._trainable = list(model.keras.trainable_variables)
        self._batch_norm_state = [v for layer in model.batch_norms for v in (layer.moving_mean, layer.moving_variance)]
        self._sections = self._lay_out()
        self._primed = False
        take_over_reduction(model.optimizer)
        signature = self._signature()
        self._steps = tf.function(self._run_steps, input_signature=signature, autograph=False)
        self._prime_step = tf.function(self._run_priming, input_signature=signature, autograph=False)
        self._exchange = tf.function(
            self._run_exchange, input_signature=[tf.TensorSpec((partitions,), tf.int64)], autograph=False
        )

    def prepare(self) -> None:
        """Runs what the rounds will run once, on rows of weight zero: the first round is then as fast as any, and
        what is wrong with the model shows before it. On all ranks together, and before a state is restored: random
        generators move on. Raises ModelError."""
        nothing = tuple(tf.zeros((1, _REHEARSED_ROWS, pack.shape[-1]), pack.dtype) for pack in self._signature()[0])
        rows = tf.zeros((1, _REHEARSED_ROWS), self._real)
        labels = tf.zeros((1, _REHEARSED_ROWS, len(self._layout.labels)), self._real)
        try:
            self._exchange(tf.zeros(self._partitions, tf.int64))
            if self._model.statistics:
                self._prime_step(nothing, labels, rows, rows)
            self._steps(nothing, labels, rows, rows)
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

    def run(self, read: RoundRows) -> RoundReport:
        """Learns the rows of a round. Raises TrainingError when the loss is not a number any more."""
        started = self._clock.monotonic()
        counts = self._counts(read)
        total = int(counts.sum())
        steps = step_of_rows(counts.tolist(), read.round.batch_size)
        total_steps = steps_of(total, read.round.batch_size)
        freshness = np.zeros(len(FRESHNESS_BUCKETS_MS) + 1, np.int64)
        sums = np.zeros(self._sums_size)
        applied = 0
        for stack in stacks(
            layout=self._layout,
            rows=read.rows,
            steps=[steps[part.partition] for part in read.rows],
            total_steps=total_steps,
            batch_size=read.round.batch_size,
        ):
            tensors = self._tensors(stack)
            if not self._is_primed():
                sums += self._prime(tensors)
                tensors = (*tensors[:-1], _without_first_step(tensors[-1]))
            try:
                found = self._steps(*tensors).numpy()
            except tf.errors.InvalidArgumentError as error:
                if _is_collective(error):
                    raise
                raise _refused(error, read.round.number) from error
            sums += found[1:]
            applied += int(found[0])
            _count_freshness(freshness, stack.fresh_wall_ms, self._clock.time())
            self._on_progress("step", stack.steps)
        if not np.all(np.isfinite(sums)):
            raise TrainingError(
                f"training diverged: the loss of round {read.round.number} is not a finite number",
                hint="lower the learning rate or clip gradients (optimizer: {clipnorm: 1.0}), and check the features "
                "for extreme values; then retrain from the last good manifest",
            )
        now = self._clock.monotonic()
        return RoundReport(
            round=read.round.number,
            learned=read.learned,
            counts=read.counts,
            steps=applied,
            scores=self._scores.unpack(sums[1:]),
            dead_letter_reasons=read.dead_letter_reasons,
            freshness_ms=tuple(freshness.tolist()),
            timings={**read.timings, "step": now - started, "total": now - started + sum(read.timings.values())},
            memory_rows=read.memory_rows,
            memory_bytes=read.memory_bytes,
        )

    def _counts(self, read: RoundRows) -> npt.NDArray[np.int64]:
        own = np.zeros(self._partitions, np.int64)
        for part in read.rows:
            own[part.partition] = len(part)
        found: npt.NDArray[np.int64] = self._exchange(tf.constant(own)).numpy()
        return found

    def _is_primed(self) -> bool:
        """Whether running statistics know anything yet; they do after the first step, or once restored."""
        self._primed = self._primed or all(statistics.primed() for statistics in self._model.statistics)
        return self._primed

    def _prime(self, tensors: Sequence[Tensor]) -> npt.NDArray[np.float64]:
        """Scores the very first step with the untouched model, then lets running statistics absorb it."""
        scored: npt.NDArray[np.float64] = self._prime_step(*tensors).numpy()
        for _ in range(PRIMING_PASSES - 1):
            self._prime_step(*tensors)
        return scored

    def _tensors(self, stack: Stack) -> tuple[Tensor, ...]:
        return (
            tuple(tf.constant(pack) for pack in stack.packs),
            tf.constant(stack.labels),
            tf.constant(stack.weights),
            tf.constant(stack.scored),
        )

    # ------------------------------------------------------------------ compiled parts

    def _signature(self) -> list[Any]:
        real = self._real
        packs = tuple(
            tf.TensorSpec((None, None, pack.width), tf.string if pack.dtype == np.object_ else pack.dtype)
            for pack in self._layout.packs
        )
        return [
            packs,
            tf.TensorSpec((None, None, len(self._layout.labels)), real),
            tf.TensorSpec((None, None), real),
            tf.TensorSpec((None, None), real),
        ]

    def _lay_out(self) -> list[int]:
        """Sizes of the sections of the vector that a step reduces: each gradient, batch norm states, statistics,
        then [sum of weights, objective, score sums]."""
        sizes = [int(np.prod(v.shape)) for v in (*self._trainable, *self._batch_norm_state)]
        sizes += [statistics.sums_size for statistics in self._model.statistics]
        self._sums_size = 1 + self._scores.size
        return [*sizes, 1, self._sums_size]

    def _run_exchange(self, counts: Tensor) -> Tensor:
        return self._strategy.run(_all_reduce, args=(counts,))

    def _run_steps(self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
        """[number of steps applied, objective, score sums...] over all steps of a stack, as float64."""

        def step(k: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
            batch = (tuple(pack[k] for pack in packs), labels[k], weights[k], scored[k])
            reduced = self._strategy.run(self._reduce, args=batch)
            weight = reduced[-1 - self._sums_size]
            applied = weight > 0

            def apply() -> Tensor:
                self._strategy.run(self._apply, args=(reduced,))
                return tf.constant(1.0, tf.float64)

            done = tf.cond(applied, apply, lambda: tf.constant(0.0, tf.float64))
            sums = tf.cast(reduced[-self._sums_size :], tf.float64)
            return k + 1, total + tf.concat([done[None], sums], axis=0)

        first = (tf.constant(0), tf.zeros(1 + self._sums_size, tf.float64))
        count = tf.shape(weights)[0]
        return tf.while_loop(lambda k, _: k < count, step, first, parallel_iterations=1)[1]

    def _run_priming(self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
        """Running statistics absorb the first step of a stack; gives [0, score sums] from before that."""

        def sums(packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
            columns, targets = self._unpack(packs, labels)
            score = self._score_apart(columns, targets, weights, scored)
            return _all_reduce(tf.concat([*self._statistics(columns, targets, weights), [0.0], score], axis=0))

        batch = (tuple(pack[0] for pack in packs), labels[0], weights[0], scored[0])
        reduced = self._strategy.run(sums, args=batch)

        def absorb(reduced: Tensor) -> None:
            sizes = [statistics.sums_size for statistics in self._model.statistics]
            parts = tf.split(reduced, [*sizes, self._sums_size])
            for statistics, part in zip(self._model.statistics, parts, strict=False):
                statistics.absorb(part, afresh=True)

        self._strategy.run(absorb, args=(reduced,))
        return tf.cast(reduced[-self._sums_size :], tf.float64)

    def _unpack(self, packs: Sequence[Tensor], labels: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        columns = {
            name: values[:, offset] if length is None else values[:, offset : offset + length]
            for pack, values in zip(self._layout.packs, packs, strict=True)
            for name, offset, length in pack.places()
        }
        return columns, {name: labels[:, place] for place, name in enumerate(self._layout.labels)}

    def _statistics(self, columns: Any, targets: Any, weights: Tensor) -> list[Tensor]:
        return [
            tf.cast(statistics.sums(columns, targets, weights), self._real) for statistics in self._model.statistics
        ]

    def _reduce(self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
        """This rank's share of a step, summed over all ranks: everything that the step needs, in one vector."""
        model = self._model
        columns, targets = self._unpack(packs, labels)
        weight = tf.reduce_sum(weights)
        before = [tf.identity(v.value) for v in self._batch_norm_state]
        fused = not model.differs_in_training
        apart = None if fused else self._score_apart(columns, targets, weights, scored)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([v.value for v in self._trainable])
            outputs = model.outputs(model.keras(model.inputs(columns), training=True))
            losses = model.row_losses(targets, outputs)
            per_row = tf.add_n(list(losses.values()))
            objective = tf.reduce_sum(tf.where(weights > 0, weights * per_row, tf.zeros_like(per_row)))
            if model.keras.losses:  # regularizers: once per row in the weighted mean, once per step in a sum
                share = weight if model.reduction == "mean" else tf.cast(1 / self._world, self._real)
                objective += share * tf.cast(tf.add_n(model.keras.losses), self._real)
            scaled = model.optimizer.scale_loss(objective)
        gradients = tape.gradient(scaled, [v.value for v in self._trainable])
        self._used = [gradient is not None for gradient in gradients]
        flat = [
            tf.zeros(int(np.prod(variable.shape)), self._real) if gradient is None else self._flat(gradient)
            for gradient, variable in zip(gradients, self._trainable, strict=True)
        ]
        moved = [weight * self._flat(v.value) for v in self._batch_norm_state]
        if before:
            with tf.control_dependencies(moved):
                for state, value in zip(self._batch_norm_state, before, strict=True):
                    state.assign(value)  # until the ranks' mean is known
        score = self._score(outputs, targets, losses, weights, scored) if apart is None else apart
        statistics = self._statistics(columns, targets, weights)
        vector = tf.concat([*flat, *moved, *statistics, weight[None], objective[None], score], axis=0)
        if model.reduction == "mean" or not model.keras.losses:  # else a regularizer counts without rows too
            # Without rows the model has run on made-up ones, and what it cannot take is no number even at weight 0.
            vector = tf.where(weight > 0, vector, tf.zeros_like(vector))
        return _all_reduce(vector)

    def _apply(self, reduced: Tensor) -> None:
        """The optimizer's step, and the running statistics', from the reduced vector; on every rank alike."""
        model = self._model
        parts = tf.split(reduced, self._sections)
        weight = parts[-2][0]
        divisor = weight if model.reduction == "mean" else tf.ones_like(weight)
        gradients = [
            tf.cast(tf.reshape(part / divisor, variable.shape), variable.dtype)
            for part, variable in zip(parts, self._trainable, strict=False)
        ]
        pairs = [
            (gradient, variable)
            for gradient, variable, used in zip(gradients, self._trainable, self._used, strict=True)
            if used
        ]
        model.optimizer.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        offset = len(self._trainable)
        for part, state in zip(parts[offset:], self._batch_norm_state, strict=False):
            state.assign(tf.cast(tf.reshape(part / weight, state.shape), state.dtype))
        offset += len(self._batch_norm_state)
        for part, statistics in zip(parts[offset:], model.statistics, strict=False):
            statistics.absorb(part, afresh=False)

    def _flat(self, tensor: Any) -> Tensor:
        return tf.cast(tf.reshape(tf.convert_to_tensor(tensor), [-1]), self._real)  # IndexedSlices become dense

    def _score(self, outputs: Any, targets: Any, losses: Any, weights: Tensor, scored: Tensor) -> Tensor:
        return score_sums(
            labels=self._model.schema.labels,
            outputs=outputs,
            targets=targets,
            row_losses=losses,
            weights=weights,
            scored=scored,
            logits=self._model.logits,
            real=self._real,
        )

    def _score_apart(self, columns: Any, targets: Any, weights: Tensor, scored: Tensor) -> Tensor:
        """Scores by a forward pass of their own, as the model would answer in service; only where there are any."""
        model = self._model

        def passed() -> Tensor:
            outputs = model.outputs(model.keras(model.inputs(columns), training=False))
            return self._score(outputs, targets, model.row_losses(targets, outputs), weights, scored)

        return tf.cond(tf.reduce_any(scored > 0), passed, lambda: tf.zeros(self._scores.size, self._real))

    @property
    def traces(self) -> int:
        """How often the step function was traced: 1, whatever the shapes of the rounds."""
        return int(self._steps.experimental_get_tracing_count())


def take_over_reduction(optimizer: Any) -> None:
    """Stops the optimizer from reducing gradients that are reduced already. Raises ModelError where the private
    hook of Keras that this needs is gone."""
    inner = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer
    for each in (optimizer, inner):
        if each is None:
            continue
        if not callable(getattr(each, "_all_reduce_sum_gradients", None)):
            raise ModelError(
                f"{type(each).__name__} has no hook _all_reduce_sum_gradients: gradients would be summed twice",
                hint="install the Keras that streamtrain was tested with (pip install 'streamtrain[cpu]'), and use an "
                "optimizer of keras.optimizers",
            )
        object.__setattr__(each, "_all_reduce_sum_gradients", lambda pairs: pairs)


def _is_collective(error: Any) -> bool:
    return "ollective" in str(error.message)


def _refused(error: Any, round_number: int) -> TrainingError:
    """What it means when an operation of the model refuses its input."""
    lines = str(error.message).splitlines()
    at = next((place for place, line in enumerate(lines) if "[[{{node" in line), 1)
    return TrainingError(
        f"the model failed on a row of round {round_number}: {lines[max(0, at - 1)].strip()[:300]}",
        hint="does an embedding or a table of the model take every value that the features can have?",
    )


def _all_reduce(vector: Tensor) -> Tensor:
    here = tf.identity(vector)  # on this replica's device: a function's argument has none, and reduces to nowhere
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)


def _without_first_step(scored: Tensor) -> Tensor:
    return tf.concat([tf.zeros_like(scored[:1]), scored[1:]], axis=0)


def _count_freshness(histogram: npt.NDArray[np.int64], wall_ms: npt.NDArray[np.int64], now: float) -> None:
    if len(wall_ms):
        ages = np.maximum(now * 1000.0 - wall_ms, 0.0)
        places = np.searchsorted(np.asarray(FRESHNESS_BUCKETS_MS), ages)
        histogram += np.bincount(places, minlength=len(histogram))
