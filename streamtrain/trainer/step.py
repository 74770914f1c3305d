"""The compiled functions of a generation: K gradient steps per call, each with one all-reduce of one vector, and what
a rank may ask of its own rows alone. A step whose vector is not finite is not applied, and ends the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamtrain.trainer.batches import Layout, layout_of
from streamtrain.trainer.evaluate import ScoreLayout, score_sums
from streamtrain.trainer.model import JobModel
from streamtrain.trainer.reduction import all_reduce, take_over_reduction
from streamtrain.types import Norms

Tensor = Any
Arrays = tuple[tuple[Any, ...], Any, Any, Any]
"""(packs, labels, weights, scored): of a stack [K, B, ...], or of single rows [n, ...]."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a call of `Step.take` did: the same on every rank. steps: how many were dealt with (applied, or empty).
    good: whether that is all of them; else the one after them is not finite. sums: of scores."""

    steps: int
    good: bool
    norms: Norms
    sums: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Share:
    """What some rows would bring into a step by themselves. finite: whether all of it is finite numbers. norm: of
    the gradient. rest: the largest magnitude of anything else. losses: of each label's loss and scores."""

    finite: bool
    norm: float
    rest: float
    losses: tuple[float, ...]


class Step:
    """All ranks call `take`, `prime` and the sums in the same order; `share` and `held` concern this rank alone."""

    def __init__(self, *, strategy: Any, model: JobModel) -> None:
        self._strategy = strategy
        self._world = strategy.num_replicas_in_sync
        self._model = model
        self._real: tf.DType = model.real
        self.layout: Layout = layout_of(model.schema, model.real.as_numpy_dtype)
        self.scores = ScoreLayout(model.schema.labels)
        self._trainable = list(model.keras.trainable_variables)
        self._batch_norm_state = [v for layer in model.batch_norms for v in (layer.moving_mean, layer.moving_variance)]
        self._seeds = model.seeds
        self._scaled = hasattr(model.optimizer, "dynamic_scale")  # a LossScaleOptimizer
        self._sections = self._lay_out()
        take_over_reduction(model.optimizer)
        stacked, flat = self._signature((None, None)), self._signature((None,))
        self._steps = tf.function(self._run_steps, input_signature=stacked, autograph=False)
        self._prime = tf.function(self._run_priming, input_signature=stacked, autograph=False)
        self._own = tf.function(self._run_own, input_signature=flat, autograph=False)
        self._held = tf.function(self._run_held, input_signature=flat, autograph=False)
        self._losses = tf.function(self._run_losses, input_signature=flat, autograph=False)
        self._sums: dict[tuple[str, int], Any] = {}

    # ------------------------------------------------------------------ what the loop calls

    def sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The vector summed over all ranks."""
        kind = (values.dtype.name, len(values))
        if kind not in self._sums:
            spec = tf.TensorSpec(values.shape, values.dtype)
            self._sums[kind] = tf.function(self._run_sum, input_signature=[spec], autograph=False)
        found: npt.NDArray[Any] = self._sums[kind](tf.constant(values)).numpy()
        return found

    def take(self, stack: Arrays) -> Taken:
        """Steps until the first that is not finite."""
        vector = self._steps(*_tensors(stack)).numpy()
        done, update_max, gradient_max, applied, updates, update, gradient = vector[:_HEAD_SIZE].tolist()
        return Taken(
            steps=int(done),
            good=int(done) == len(stack[2]),
            norms=Norms(int(applied), gradient, gradient_max, int(updates), update, update_max),
            sums=vector[_HEAD_SIZE + 1 :],  # without the objective
        )

    def prime(self, stack: Arrays) -> npt.NDArray[np.float64] | None:
        """Running statistics absorb the first step, `afresh`. Its score sums from before that; None, and nothing
        absorbed, where a sum is not finite."""
        vector = self._prime(*_tensors(stack)).numpy()
        return vector[1:] if vector[0] else None

    def share(self, rows: Arrays, *, score_all: bool = False) -> Share:
        """What these rows, of this rank, would bring into a step. score_all: also those that are not `scored`.
        Leaves no trace, also when an operation refuses them (tf.errors.InvalidArgumentError)."""
        packs, labels, weights, scored = _tensors(rows)
        states = [*self._seeds, *self._batch_norm_state]
        before = [np.array(state.numpy()) for state in states]
        try:
            found = self._own(packs, labels, weights, tf.ones_like(scored) if score_all else scored).numpy()
        finally:
            for state, value in zip(states, before, strict=True):
                state.assign(value)
        return Share(
            finite=bool(found[0]),
            norm=float(found[1]),
            rest=float(found[2]),
            losses=tuple(float(np.abs(part).max()) for part in self.scores.parts(found[3:])),
        )

    def losses(self, rows: Arrays) -> npt.NDArray[np.float64]:
        """[n, labels]: the weighted loss of each of these rows, of this rank, as the model would answer in service."""
        found: npt.NDArray[np.float64] = self._losses(*_tensors(rows)).numpy()
        return found

    def held(self, rows: Arrays) -> npt.NDArray[np.float64]:
        """Score sums of these rows, of this rank, as the model would answer in service."""
        found: npt.NDArray[np.float64] = self._held(*_tensors(rows)).numpy()
        return found

    @property
    def largest(self) -> float:
        """Of the floats that are computed with."""
        return float(self._real.max)

    @property
    def traces(self) -> int:
        """How often the step function was traced: 1, whatever the shapes of the rounds."""
        return int(self._steps.experimental_get_tracing_count())

    # ------------------------------------------------------------------ compiled parts

    def _signature(self, rows: tuple[None, ...]) -> list[Any]:
        packs = tuple(
            tf.TensorSpec((*rows, pack.width), tf.string if pack.dtype == np.object_ else pack.dtype)
            for pack in self.layout.packs
        )
        real = tf.TensorSpec(rows, self._real)
        return [packs, tf.TensorSpec((*rows, len(self.layout.labels)), self._real), real, real]

    def nothing(self, *shape: int) -> Arrays:
        """Made-up rows of weight zero."""
        packs = tuple(tf.zeros((*shape, pack.width), spec.dtype) for pack, spec in self._packs())
        real = tf.zeros(shape, self._real)
        return packs, tf.zeros((*shape, len(self.layout.labels)), self._real), real, real

    def _packs(self) -> Any:
        return zip(self.layout.packs, self._signature((None,))[0], strict=True)

    def _lay_out(self) -> list[int]:
        """Sizes of the sections of the vector that a step reduces: each gradient, batch norm states, statistics,
        then [sum of weights, objective, score sums]."""
        sizes = [int(np.prod(v.shape)) for v in (*self._trainable, *self._batch_norm_state)]
        sizes += [statistics.sums_size for statistics in self._model.statistics]
        self._gradients_size = sum(sizes[: len(self._trainable)])
        self._sums_size = 1 + self.scores.size
        return [*sizes, 1, self._sums_size]

    def _run_sum(self, values: Tensor) -> Tensor:
        return self._strategy.run(all_reduce, args=(values,))

    def _run_steps(self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
        """[steps dealt with, largest norms, steps applied, updates measured, sums of the norms, objective, score
        sums...], as float64."""
        count = tf.shape(weights)[0]

        def step(k: Tensor, total: Tensor, peak: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            batch = (tuple(pack[k] for pack in packs), labels[k], weights[k], scored[k])
            reduced, seeds = self._strategy.run(self._reduce, args=batch)
            weight = reduced[-1 - self._sums_size]
            gradient, rest = self._mean(reduced, weight)
            norm = self._norm(gradient)
            finite = tf.reduce_all(tf.math.is_finite(rest))
            if self._scaled:  # what overflows at its scale is dropped by the optimizer itself, which then lowers it
                norm = tf.where(tf.math.is_finite(norm), norm, 0.0)
            else:
                finite &= tf.math.is_finite(norm)

            def apply() -> Tensor:
                first = tf.equal(k, 0)
                moved = self._strategy.run(self._apply, args=(gradient, rest, first))
                return tf.stack([tf.ones((), self._real), tf.cast(first, self._real), moved])

            def leave() -> Tensor:
                if self._seeds:
                    self._strategy.run(self._undo, args=(finite, seeds))
                return tf.zeros(3, self._real)

            done = tf.cond(finite & (weight > 0), apply, leave)
            found = tf.concat([done, norm[None], rest[-self._sums_size :]], axis=0)
            found = tf.cast(tf.where(finite, found, tf.zeros_like(found)), tf.float64)
            after = k + tf.where(finite, 1, count + 1)  # past the end: the loop is over
            return after, total + found, tf.maximum(peak, found[2:4])

        first = (tf.constant(0), tf.zeros(4 + self._sums_size, tf.float64), tf.zeros(2, tf.float64))
        k, total, peak = tf.while_loop(lambda k, total, peak: k < count, step, first, parallel_iterations=1)
        k = tf.where(k > count, k - count - 1, k)
        return tf.concat([tf.cast(k, tf.float64)[None], peak, total], axis=0)

    def _mean(self, reduced: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient that the optimizer is given, and what stands behind it in the vector."""
        gradient, rest = reduced[: self._gradients_size], reduced[self._gradients_size :]
        if self._model.reduction == "mean":
            gradient = tf.math.divide_no_nan(gradient, weight)
        return gradient, rest

    def _norm(self, gradient: Tensor) -> Tensor:
        """Not finite where its square is not: an optimizer that keeps squares would never move that weight again."""
        norm = tf.sqrt(2 * tf.nn.l2_loss(gradient))
        return norm / tf.cast(self._model.optimizer.dynamic_scale.value, self._real) if self._scaled else norm

    def _run_priming(self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
        """Running statistics absorb the first step of a stack; gives [whether they did, score sums from before]."""

        def sums(packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
            columns, targets = self._unpack(packs, labels)
            score = self._score_apart(columns, targets, weights, scored)
            vector = tf.concat([*self._statistics(columns, targets, weights), score], axis=0)
            return all_reduce(tf.where(tf.reduce_sum(weights) > 0, vector, tf.zeros_like(vector)))

        batch = (tuple(pack[0] for pack in packs), labels[0], weights[0], scored[0])
        reduced = self._strategy.run(sums, args=batch)
        finite = tf.reduce_all(tf.math.is_finite(reduced))
        sizes = [statistics.sums_size for statistics in self._model.statistics]

        def absorb(reduced: Tensor) -> Tensor:
            parts = tf.split(reduced, [*sizes, self.scores.size])
            for statistics, part in zip(self._model.statistics, parts, strict=False):
                statistics.absorb(part, afresh=True)
            return tf.constant(1.0, tf.float64)

        absorbed = tf.cond(
            finite,
            lambda: self._strategy.run(absorb, args=(reduced,)),
            lambda: tf.constant(0.0, tf.float64),
        )
        return tf.concat([absorbed[None], tf.cast(reduced[sum(sizes) :], tf.float64)], axis=0)

    def _run_own(self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
        """[whether all is finite, the gradient's norm, the largest of the rest, score sums...]."""
        vector = self._strategy.run(self._share, args=(packs, labels, weights, scored))
        gradient, rest = self._mean(vector, tf.reduce_sum(weights))
        head = [
            tf.cast(tf.reduce_all(tf.math.is_finite(vector)), self._real),
            self._norm(gradient),
            tf.reduce_max(tf.abs(rest)),
        ]
        return tf.cast(tf.concat([tf.stack(head), vector[-self.scores.size :]], axis=0), tf.float64)

    def _run_held(self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
        def score(packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
            return self._score_apart(*self._unpack(packs, labels), weights, scored)

        return tf.cast(self._strategy.run(score, args=(packs, labels, weights, scored)), tf.float64)

    def _run_losses(self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
        def losses(packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor) -> Tensor:
            columns, targets = self._unpack(packs, labels)
            outputs = self._model.outputs(self._model.keras(self._model.inputs(columns), training=False))
            of_labels = self._model.losses.rows(targets, outputs)
            return weights[:, None] * tf.stack([of_labels[label] for label in self.layout.labels], axis=1)

        return tf.cast(self._strategy.run(losses, args=(packs, labels, weights)), tf.float64)

    def _unpack(self, packs: Sequence[Tensor], labels: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        columns = {
            name: values[:, offset] if length is None else values[:, offset : offset + length]
            for pack, values in zip(self.layout.packs, packs, strict=True)
            for name, offset, length in pack.places()
        }
        return columns, {name: labels[:, place] for place, name in enumerate(self.layout.labels)}

    def _statistics(self, columns: Any, targets: Any, weights: Tensor) -> list[Tensor]:
        return [
            tf.cast(statistics.sums(columns, targets, weights), self._real) for statistics in self._model.statistics
        ]

    def _followed(self, columns: Any, targets: Any, outputs: Any, weights: Tensor, scored: Tensor) -> list[Tensor]:
        """The same in a step, where some follow what the model said of the rows that are scored."""
        return [
            tf.cast(statistics.follow(columns, targets, outputs, weights * scored), self._real)
            if hasattr(statistics, "follow")
            else tf.cast(statistics.sums(columns, targets, weights), self._real)
            for statistics in self._model.statistics
        ]

    def _reduce(
        self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """This rank's share of a step, summed over all ranks; and the random generators from before it."""
        seeds = [tf.identity(state.value) for state in self._seeds]
        with tf.control_dependencies(seeds):
            return all_reduce(self._share(packs, labels, weights, scored)), seeds

    def _undo(self, finite: Tensor, seeds: list[Tensor]) -> None:
        """The attempt of a step that is not finite must not be felt in the next."""
        for state, value in zip(self._seeds, seeds, strict=True):
            state.assign(tf.where(finite, state.value, value))

    def _share(self, packs: tuple[Tensor, ...], labels: Tensor, weights: Tensor, scored: Tensor) -> Tensor:
        """This rank's share of a step: everything that the step needs, in one vector."""
        model = self._model
        columns, targets = self._unpack(packs, labels)
        weight = tf.reduce_sum(weights)
        before = [tf.identity(v.value) for v in self._batch_norm_state]
        fused = not model.differs_in_training
        apart = None if fused else self._score_apart(columns, targets, weights, scored)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([v.value for v in self._trainable])
            outputs = model.outputs(model.keras(model.inputs(columns), training=True))
            losses = model.losses.rows(targets, outputs)
            per_row = model.losses.total(losses)
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
        statistics = self._followed(columns, targets, outputs, weights, scored)
        vector = tf.concat([*flat, *moved, *statistics, weight[None], objective[None], score], axis=0)
        if model.reduction == "mean" or not model.keras.losses:  # else a regularizer counts without rows too
            # Without rows the model has run on made-up ones, and what it cannot take is no number even at weight 0.
            vector = tf.where(weight > 0, vector, tf.zeros_like(vector))
        return vector

    def _apply(self, gradient: Tensor, rest: Tensor, measured: Tensor) -> Tensor:
        """The optimizer's step, and the running statistics', from the reduced vector, on every rank alike; gives, if
        that is to be measured, the norm of what the weights were moved by. It costs as much as copying them."""
        model = self._model
        used, gradients = [], []
        sizes, others = self._sections[: len(self._trainable)], self._sections[len(self._trainable) :]
        for part, variable, is_used in zip(tf.split(gradient, sizes), self._trainable, self._used, strict=True):
            if is_used:
                used.append(variable)
                gradients.append(tf.cast(tf.reshape(part, variable.shape), variable.dtype))

        def weights() -> Tensor:
            return tf.concat([self._flat(variable.value) for variable in used], axis=0)

        before = tf.cond(measured, weights, lambda: tf.zeros(0, self._real))
        with tf.control_dependencies([before]):
            model.optimizer.apply(gradients, used)
        moved = tf.cond(measured, lambda: tf.nn.l2_loss(weights() - before), lambda: tf.zeros((), self._real))
        parts = tf.split(rest, others)
        weight = parts[-2][0]
        for part, state in zip(parts, self._batch_norm_state, strict=False):
            state.assign(tf.cast(tf.reshape(part / weight, state.shape), state.dtype))
        for part, statistics in zip(parts[len(self._batch_norm_state) :], model.statistics, strict=False):
            statistics.absorb(part, afresh=False)
        return tf.sqrt(2 * moved)

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
            logits=self._model.losses.logits,
            real=self._real,
        )

    def _score_apart(self, columns: Any, targets: Any, weights: Tensor, scored: Tensor) -> Tensor:
        """Scores by a forward pass of their own, as the model would answer in service; only where there are any."""
        model = self._model

        def passed() -> Tensor:
            outputs = model.outputs(model.keras(model.inputs(columns), training=False))
            return self._score(outputs, targets, model.losses.rows(targets, outputs), weights, scored)

        return tf.cond(tf.reduce_any(scored > 0), passed, lambda: tf.zeros(self.scores.size, self._real))


_HEAD_SIZE = 7  # of what `Step.take` gets, before objective and scores


def _tensors(arrays: Arrays) -> Arrays:
    packs, labels, weights, scored = arrays
    return tuple(map(tf.constant, packs)), tf.constant(labels), tf.constant(weights), tf.constant(scored)
