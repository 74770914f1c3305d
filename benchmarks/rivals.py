"""What river learns from the same rows in the same order, each predicted before it is learned: its linear models,
trees, forests and neighbours, each behind the preparation that it wants. Settings are river's own, but for the learning
rates of linear models, which have two optimizers each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from prequential import Stream

Row = dict[str, Any]


FOREST_ROWS = 60_000
"""The regression forest learns no more rows than this: it takes milliseconds for each."""


@dataclass(frozen=True, slots=True)
class Rival:
    """score: accuracy, or mean absolute error. so_far: the same after fewer rows."""

    score: float
    rows: int
    cpu_s: float
    so_far: Mapping[int, float] = field(default_factory=dict)


def classifiers(classes: int) -> Mapping[str, tuple[Callable[[int], Any], bool]]:
    """By name, what makes one from a seed, and whether the seed matters."""
    from river import forest, linear_model, multiclass, naive_bayes, neighbors, optim, preprocessing, tree

    def logistic(optimizer: Any) -> Any:
        one = linear_model.LogisticRegression(optimizer=optimizer)
        return preprocessing.StandardScaler() | (one if classes == 2 else multiclass.OneVsRestClassifier(one))

    def softmax() -> Any:
        return preprocessing.StandardScaler() | linear_model.SoftmaxRegression(optimizer=optim.SGD(0.05))

    def neighbours(*preparation: Any) -> Any:
        model = neighbors.KNNClassifier(n_neighbors=5)
        return preparation[0] | model if preparation else model

    return {
        "logistic regression, SGD": (lambda seed: logistic(optim.SGD(0.05)), False),
        "logistic regression, Adam": (lambda seed: logistic(optim.Adam(0.01)), False),
        "softmax regression": (lambda seed: softmax(), False),
        "Gaussian naive Bayes": (lambda seed: naive_bayes.GaussianNB(), False),
        "Hoeffding adaptive tree": (lambda seed: tree.HoeffdingAdaptiveTreeClassifier(seed=seed), True),
        "adaptive random forest": (lambda seed: forest.ARFClassifier(seed=seed), True),
        "5 nearest neighbours": (lambda seed: neighbours(), False),
        "5 nearest neighbours, standardised": (lambda seed: neighbours(preprocessing.StandardScaler()), False),
        "5 nearest neighbours, between 0 and 1": (lambda seed: neighbours(preprocessing.MinMaxScaler()), False),
    }


def regressors(seed: int) -> Mapping[str, Callable[[], Any]]:
    """Strings are one-hot for linear models and numbered for trees; everything is standardised, as the trees' leaves,
    which are linear models, need it too."""
    from river import compose, forest, linear_model, optim, preprocessing, tree

    def linear(optimizer: Any) -> Any:
        numbers = compose.SelectType(int, float) | preprocessing.StandardScaler()
        words = compose.SelectType(str) | preprocessing.OneHotEncoder()
        return (numbers + words) | linear_model.LinearRegression(optimizer=optimizer)

    def numbered(model: Any) -> Any:
        words = compose.SelectType(str) | preprocessing.OrdinalEncoder()
        return (compose.SelectType(int, float) + words) | preprocessing.StandardScaler() | model

    return {
        "linear regression, SGD": lambda: linear(optim.SGD(0.001)),
        "linear regression, Adam": lambda: linear(optim.Adam(0.05)),
        "Hoeffding adaptive tree": lambda: numbered(tree.HoeffdingAdaptiveTreeRegressor(seed=seed)),
        "adaptive random forest": lambda: numbered(forest.ARFRegressor(seed=seed)),
    }


def accuracy(model: Any, stream: Stream) -> Rival:
    begun, right = time.process_time(), 0
    for row, label in _rows(stream):
        right += model.predict_one(row) == label
        model.learn_one(row, label)
    return Rival(right / len(stream), len(stream), time.process_time() - begun)


def absolute_error(model: Any, stream: Stream, *, rows: int, marks: Collection[int]) -> Rival:
    """rows: at most so many. marks: after so many rows also the error so far."""
    begun, error, so_far, last = time.process_time(), 0.0, {}, min(rows, len(stream))
    for number, (row, label) in enumerate(islice(_rows(stream), last), start=1):
        error += abs((model.predict_one(row) or 0.0) - label)
        model.learn_one(row, label)
        if number in marks:
            so_far[number] = error / number
    return Rival(error / last, last, time.process_time() - begun, so_far)


def _rows(stream: Stream) -> Iterator[tuple[Row, Any]]:
    columns = {name: column.tolist() for name, column in stream.columns.items()}
    for place, label in enumerate(stream.labels.tolist()):
        yield {name: _plain(column[place]) for name, column in columns.items()}, label


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
