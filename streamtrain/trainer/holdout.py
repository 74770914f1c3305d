"""Scores the rows that are held out, with the weights from before the round and as the model would answer in service.
They are in no step: nothing of them can be learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamtrain.trainer.batches import Joined, join
from streamtrain.trainer.refusals import LOSS, REFUSED, Refusal, find
from streamtrain.trainer.round_index import RoundIndex
from streamtrain.trainer.rows import Rows
from streamtrain.trainer.search import Search
from streamtrain.trainer.step import Arrays, Step
from streamtrain.types import Scores

_ROWS_AT_ONCE = 1024


class Holdout:
    def __init__(self, *, step: Step, search: Search, labels: Sequence[str]) -> None:
        self._step = step
        self._search = search
        self._labels = tuple(labels)

    def score(
        self, rows: Sequence[Rows], index: RoundIndex, refusals: list[Refusal], *, careful: bool
    ) -> dict[str, Scores]:
        """Per label, over all ranks; on all of them together. Rows that cannot be scored are added to `refusals`.
        careful: also those that the model refuses, else tf.errors.InvalidArgumentError is raised."""
        held = np.flatnonzero(index.held)
        joined = join(self._step.layout, rows, held)
        sums = np.zeros(self._step.scores.size)
        for begin in range(0, len(held), _ROWS_AT_ONCE):
            places = [p for p in range(begin, min(begin + _ROWS_AT_ONCE, len(held))) if joined.weights[p] > 0]
            found = self._bad(joined, places, careful=careful) if places else {}
            refusals += [index.refusal(int(held[place]), reason) for place, reason in found.items()]
            sums += self._sums(joined, [place for place in places if place not in found])
        return self._step.scores.unpack(self._step.sum(sums))

    def _bad(self, joined: Joined, places: Sequence[int], *, careful: bool) -> dict[int, str]:
        refused: set[int] = set()

        def bad(some: Sequence[int]) -> bool:
            try:
                return not np.isfinite(self._step.held(_rows(joined, some))).all()
            except tf.errors.InvalidArgumentError:
                if not careful:
                    raise
                refused.update(some if len(some) == 1 else ())
                return True

        found = find(places, bad)
        if careful:
            self._search.judge(accepted=len(places) - len(refused), refused=len(refused))
        return {place: REFUSED if place in refused else self._reason(joined, place) for place in found}

    def _reason(self, joined: Joined, place: int) -> str:
        parts = self._step.scores.parts(self._step.held(_rows(joined, [place])))
        wrong = [label for label, part in zip(self._labels, parts, strict=True) if not np.isfinite(part).all()]
        return f"{LOSS}:{wrong[0]}"

    def _sums(self, joined: Joined, places: Sequence[int]) -> npt.NDArray[np.float64]:
        if not places:
            return np.zeros(self._step.scores.size)
        together = self._step.held(_rows(joined, places))
        if np.isfinite(together).all():
            return together
        alone = [self._step.held(_rows(joined, [place])) for place in places]  # their sum is only too large for float32
        return np.asarray(np.sum(alone, axis=0), np.float64)


def _rows(joined: Joined, places: Sequence[int]) -> Arrays:
    chosen = list(places)
    weights = joined.weights[chosen]
    return tuple(pack[chosen] for pack in joined.packs), joined.labels[chosen], weights, np.ones_like(weights)
