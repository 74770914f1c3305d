"""Finds the rows for which a step cannot be taken, and takes them out of its stack. What a rank finds among its own
rows is agreed on by one sum over all ranks: whether it is the rows, or the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamtrain.errors import TrainingError
from streamtrain.trainer.batches import Stack
from streamtrain.trainer.refusals import GRADIENT, LOSS, REFUSED, STATISTICS, Refusal, find
from streamtrain.trainer.round_index import RoundIndex
from streamtrain.trainer.step import Arrays, Share, Step

_REFERENCES = 4  # rows of the last good step that a rank remembers
_LARGE = 2.0**-20  # of the largest float: as many rows as a step can have add up to no more than that
_HOPELESS_ROWS = 16


Bad = Callable[[float, float], bool]
"""Of (a loss or another sum, the norm of a gradient)."""


class Search:
    def __init__(
        self, *, step: Step, labels: Sequence[str], summed: bool, alone: bool, on_progress: Callable[[], None]
    ) -> None:
        """labels: fields, in the schema's order. summed: whether gradients are added up, not averaged. alone: whether a
        rank may take the model's training pass by itself; else only what rows do in service is looked at."""
        self._step = step
        self._labels = tuple(labels)
        self._alone = alone
        self._on_progress = on_progress
        self._largest = step.largest
        self._largest_norm = math.sqrt(step.largest) * (_LARGE if summed else 1.0)
        self._references: list[Arrays] = []
        self._accepted = 0
        self._refused = 0
        self._round = 0
        self._index = RoundIndex.of(())
        self._refusals: list[Refusal] = []

    def begin(self, round_number: int, index: RoundIndex, refusals: list[Refusal]) -> None:
        """A round's rows; what is found among them is added to `refusals`."""
        self._round, self._index, self._refusals = round_number, index, refusals

    def learned(self, stack: Stack, step: int) -> None:
        """Remembers rows of a step that was good: if they are so no more, it is the weights that have changed."""
        places = np.flatnonzero(stack.weights[step] > 0)[:_REFERENCES].tolist()
        if places:
            self._references = [stack.rows_of(step, [place]) for place in places]

    # ------------------------------------------------------------------ numbers that are not finite

    def take_out(self, stack: Stack, step: int) -> None:
        """After a step that was not finite, on all ranks together. Raises TrainingError when no rows are to blame.

        First the rows that by themselves are not finite are looked for. Where there are none, so many add up to what
        is not finite: then those from which as many as a step can have would.
        """
        places = np.flatnonzero(stack.weights[step] > 0).tolist()
        for bad in (self._not_finite, self._too_large):
            found = self._found(stack, step, places, bad)
            if self._agreed(stack, step, places, found, bad):
                self._leave_out(stack, step, found)
                return
        raise self._diverged()

    def _found(self, stack: Stack, step: int, places: list[int], bad: Bad) -> dict[int, str]:
        """The places of the step whose rows are bad, with the reason. A loss tells at once, a gradient by halving."""
        found: dict[int, str] = {}
        if not places:
            return found
        losses = self._losses(stack.rows_of(step, places))
        for place, row in zip(places, losses, strict=True):
            if wrong := [label for label, loss in zip(self._labels, row, strict=True) if bad(loss, 0.0)]:
                found[place] = f"{LOSS}:{wrong[0]}"

        def any_bad(some: Sequence[int]) -> bool:
            share = self._share(stack.rows_of(step, some))
            return bad(share.rest, share.norm) or not share.finite

        rest = [place for place in places if place not in found]
        # Large numbers of several rows may cancel each other out: then each is looked at.
        others = find(rest, any_bad) if bad == self._not_finite else [p for p in rest if any_bad([p])]
        return found | {place: self._reason(stack.rows_of(step, [place]), bad) for place in others}

    def _agreed(self, stack: Stack, step: int, places: list[int], found: Mapping[int, str], bad: Bad) -> bool:
        """Whether any rank has found any row. Raises TrainingError where rows that were good before are bad too."""

        def row_is_bad(row: Arrays) -> bool:
            share = self._share(row)
            losses = self._losses(row)
            return bad(share.rest, share.norm) or not share.finite or any(bad(loss, 0.0) for loss in losses.ravel())

        known = {place for place in places if self._index.replayed[stack.rows[step, place]]}
        references = [row_is_bad(reference) for reference in self._references]
        packs, labels, weights, scored = self._step.nothing(1)
        made_up = row_is_bad((packs, labels, weights + 1, scored))
        good_before = len(known) + len(references)
        bad_now = len(known & found.keys()) + sum(references)
        own = np.array([len(places), len(found), good_before, bad_now, made_up], np.int64)
        rows, guilty, good_before, bad_now, model_fails = self._step.sum(own).tolist()
        if guilty and (2 * bad_now > good_before if good_before else guilty == rows and model_fails):
            raise self._diverged()
        return bool(guilty)

    def _diverged(self) -> TrainingError:
        return TrainingError(
            f"training diverged: the loss or the gradient of round {self._round} is not a finite number, and no rows "
            "of it are to blame",
            hint="lower the learning rate or clip gradients (optimizer: {clipnorm: 1.0}), and check the features "
            "for extreme values; then retrain from the last good manifest",
        )

    def _share(self, rows: Arrays, *, score_all: bool = False) -> Share:
        if not self._alone:
            self._losses(rows)
            return Share(finite=True, norm=0.0, rest=0.0, losses=(0.0,) * len(self._labels))
        self._on_progress()
        return self._step.share(rows, score_all=score_all)

    def _losses(self, rows: Arrays) -> npt.NDArray[np.float64]:
        self._on_progress()
        return self._step.losses(rows)

    def _not_finite(self, number: float, norm: float) -> bool:
        """norm: of a gradient, which counts only where its elements are no numbers (`Share.finite`)."""
        return not math.isfinite(number)

    def _too_large(self, number: float, norm: float) -> bool:
        return not (abs(number) <= self._largest * _LARGE and norm <= self._largest_norm)

    def _reason(self, row: Arrays, bad: Bad) -> str:
        """Of a row whose loss is good in service."""
        share = self._share(row, score_all=True)
        for label, loss in zip(self._labels, share.losses, strict=True):
            if bad(loss, 0.0):
                return f"{LOSS}:{label}"
        return GRADIENT if not math.isfinite(share.norm) or bad(0.0, share.norm) else STATISTICS

    # ------------------------------------------------------------------ rows that the model refuses

    def inspect(self, stack: Stack) -> None:
        """Takes out the rows that an operation of the model refuses; on this rank alone. Raises TrainingError when
        it takes none at all."""
        for step in range(stack.steps):
            places = np.flatnonzero(stack.weights[step] > 0).tolist()

            def refused(some: Sequence[int], step: int = step) -> bool:
                try:
                    self._share(stack.rows_of(step, some))
                except tf.errors.InvalidArgumentError:
                    return True
                return False

            found = find(places, refused)
            self.judge(accepted=len(places) - len(found), refused=len(found))
            if found:
                self._leave_out(stack, step, dict.fromkeys(found, REFUSED))

    def judge(self, *, accepted: int, refused: int) -> None:
        """Raises TrainingError once it is the model, not the rows."""
        self._accepted += accepted
        self._refused += refused
        if not self._accepted and self._refused >= _HOPELESS_ROWS:
            raise TrainingError(
                f"the model refuses each of the first {self._refused} rows that it was given",
                hint="does an embedding or a table of the model take the values that the features have?",
            )

    def _leave_out(self, stack: Stack, step: int, found: dict[int, str]) -> None:
        rows = {int(stack.rows[step, place]): reason for place, reason in found.items()}
        self._refusals += [self._index.refusal(row, reason) for row, reason in rows.items()]
        stack.take_out(np.array(list(rows), np.int64))
