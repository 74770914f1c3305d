"""The built-in model: a linear fit in closed form, plus a wide and deep network for what the fit leaves over.
Handles numbers, booleans, hashed categories, times and vectors as they come."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from streamtrain.errors import ModelError
from streamtrain.trainer.moments import Moments, width_of
from streamtrain.trainer.recent import Recent
from streamtrain.types import DType, Feature, Label, Schema, Task

Tensor = Any

_LOSSES = ("huber", "mae", "mse")


@dataclass(frozen=True, slots=True)
class Hyper:
    """What `hyper:` may hold.

    hidden: units of the hidden layers. learning_rate: of Adam. buckets: hash buckets of a string feature without
    `buckets` of its own. embedding: dimensions of a category's embedding. loss: of a regression. memory: about
    how many rows the linear part remembers. waves: of the numbers, which the fit of a classification sees beside
    them; 0 for none. recent: after how many new rows each correction of a regression has forgotten; [] for none.
    """

    hidden: tuple[int, ...] = (64, 32)
    learning_rate: float = 5e-3
    buckets: int = 512
    embedding: int = 8
    loss: str = "huber"
    memory: float = 20_000.0
    waves: int = 128
    recent: tuple[float, ...] = (32.0, 128.0, 512.0)


def hyper_of(options: Mapping[str, Any]) -> Hyper:
    """Raises ModelError for what the model does not know."""
    known = tuple(Hyper.__dataclass_fields__)
    for name in options:
        if name not in known:
            raise ModelError(f"the built-in model has no hyper-parameter {name!r}", hint=f"it has {', '.join(known)}")
    values = dict(options)
    try:
        if "hidden" in values:
            values["hidden"] = tuple(int(units) for units in values["hidden"])
        if "recent" in values:
            values["recent"] = tuple(float(memory) for memory in values["recent"])
        hyper = Hyper(**values)
        sizes = (*hyper.hidden, hyper.learning_rate, hyper.buckets, hyper.embedding, hyper.memory, *hyper.recent)
        valid = all(value > 0 for value in sizes)
        if hyper.waves != int(hyper.waves) or hyper.waves < 0:
            raise ModelError("hyper.waves must be a whole number of at least 0")
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"hyper: {error}", hint="hidden and recent are lists of numbers, the others are numbers"
        ) from error
    if not valid:
        raise ModelError("hyper: numbers must be greater than 0")
    if hyper.loss not in _LOSSES:
        raise ModelError(f"hyper.loss is {hyper.loss!r}", hint=f"one of {', '.join(_LOSSES)}")
    return hyper


def build(schema: Schema, options: dict[str, Any]) -> keras.Model:
    """An output for each label: [batch, 1] of a regression, or logits [batch, 1] of two classes or [batch, classes] of
    more. Labels share the hidden layers; each has moments and a wide part of its own."""
    hyper = hyper_of(options)
    for feature in schema.features:
        _check(feature)
    inputs = {feature.field: _input(feature) for feature in schema.features}
    free = _Names(inputs)
    numeric = [feature for feature in schema.features if width_of(feature)]
    columns = [inputs[feature.field] for feature in numeric or schema.features[:1]]
    moments = [
        Moments(
            features=numeric,
            label=label.field,
            targets=_outputs(label),
            memory=hyper.memory,
            waves=0 if label.task is Task.REGRESSION else hyper.waves,
            indicators=label.task is Task.CLASSIFICATION,
            name=free(_named("moments", place)),
        )
        for place, label in enumerate(schema.labels)
    ]
    fits = [each(columns) for each in moments]
    categories: list[tuple[Any, int]] = []
    deep = [Squash(name=free("squash"))(fits[0][0])]
    for index, feature in enumerate(feature for feature in schema.features if feature.dtype is DType.STRING):
        place = inputs[feature.field]
        if feature.buckets is None:
            place = keras.layers.Hashing(hyper.buckets, name=free(f"hash_{index}"))(place)
        categories.append((place, feature.buckets or hyper.buckets))
        deep.append(
            keras.layers.Embedding(categories[-1][1], hyper.embedding, name=free(f"embedding_{index}"))(
                categories[-1][0]
            )
        )
    hidden = keras.layers.Concatenate(name=free("features"))(deep) if len(deep) > 1 else deep[0]
    for index, units in enumerate(hyper.hidden):
        hidden = keras.layers.Dense(units, "relu", name=free(f"hidden_{index}"))(hidden)
    predictions, losses = [], []
    for number, (label, own, (z, base, spread)) in enumerate(zip(schema.labels, moments, fits, strict=True)):
        outputs, regression = _outputs(label), label.task is Task.REGRESSION
        parts = [
            keras.layers.Embedding(
                size, outputs, embeddings_initializer="zeros", name=free(_named(f"wide_{index}", number))
            )(place)
            for index, (place, size) in enumerate(categories)
        ]
        parts.append(keras.layers.Dense(outputs, kernel_initializer="zeros", name=free(_named("deep", number)))(hidden))
        if own.fitted and not regression:
            parts.append(Evidence(name=free(_named("evidence", number)))(base))
        if not own.fitted or not regression:
            linear = keras.layers.Dense(
                outputs, kernel_initializer="zeros", use_bias=False, name=free(_named("linear", number))
            )
            parts.append(linear(z))
        network = keras.layers.Add(name=free(_named("network", number)))(parts) if len(parts) > 1 else parts[0]
        residual = Residual(name=free(_named("prediction", number)))
        prediction = residual([base, network, spread]) if regression else network
        if regression and own.fitted and hyper.recent:
            prediction = Recent(
                features=numeric, label=label.field, memories=hyper.recent, name=free(_named("recent", number))
            )([*columns, prediction])
        predictions.append(prediction)
        losses.append(_regression_loss(hyper, own, alone=len(moments) == 1) if regression else _cross_entropy(outputs))
    single = len(predictions) == 1
    model = keras.Model(inputs, predictions[0] if single else predictions, name="builtin")
    model.compile(optimizer=keras.optimizers.Adam(hyper.learning_rate), loss=losses[0] if single else losses)
    return model


class _Names:
    """Names of the model's own layers: an input has the name of its field, and no two may be alike."""

    def __init__(self, fields: Collection[str]) -> None:
        self._fields = fields

    def __call__(self, name: str) -> str:
        while name in self._fields:
            name += "_"
        return name


def _named(name: str, label: int) -> str:
    """Of the first label the plain name, which is what checkpoints with one label hold."""
    return name if label == 0 else f"{name}_{label}"


def _outputs(label: Label) -> int:
    return 1 if label.task is Task.REGRESSION or label.classes == 2 else label.classes


def _check(feature: Feature) -> None:
    """Raises ModelError for what the model cannot take."""
    if feature.dtype is DType.BYTES:
        kind = "binary data"
    elif feature.max_length is not None:
        kind = "lists of any length"
    elif feature.length is not None and feature.dtype in (DType.STRING, DType.DATETIME):
        kind = f"vectors of {feature.dtype.value}s"
    else:
        return
    raise ModelError(
        f"feature {feature.field!r}: the built-in model takes no {kind}",
        hint="leave it out, or write a model of your own (docs/models.md, examples/)",
    )


def _input(feature: Feature) -> Any:
    shape = () if feature.length is None else (feature.length,)
    if feature.dtype is DType.STRING:
        dtype = "string" if feature.buckets is None else "int64"
    else:
        dtype = "int64" if feature.dtype is DType.DATETIME else feature.dtype.value
    return keras.Input(shape, name=feature.field, dtype=dtype)


def _regression_loss(hyper: Hyper, moments: Moments, *, alone: bool) -> keras.losses.Loss:
    """alone: whether it is the only label; else its unit must not decide how much it counts beside the others."""
    if hyper.loss == "huber":
        return SpreadHuber(moments, relative=not alone)
    return keras.losses.get("mean_absolute_error" if hyper.loss == "mae" else "mean_squared_error")


def _cross_entropy(outputs: int) -> keras.losses.Loss:
    if outputs == 1:
        return keras.losses.BinaryCrossentropy(from_logits=True)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@keras.saving.register_keras_serializable(package="streamtrain")
class Squash(keras.layers.Layer):  # type: ignore[misc]
    """Standardised numbers with their tails drawn in (like a logarithm), as a network wants them."""

    same_in_training = True

    def call(self, z: Tensor) -> Tensor:
        return tf.asinh(z)


@keras.saving.register_keras_serializable(package="streamtrain")
class Evidence(keras.layers.Layer):  # type: ignore[misc]
    """Fitted indicators of the classes -> logits."""

    same_in_training = True

    def build(self, input_shape: Any) -> None:
        self.scale = self.add_weight(name="scale", shape=(), initializer=keras.initializers.Constant(5.0))
        self.built = True

    def call(self, base: Tensor) -> Tensor:
        if base.shape[1] == 1:
            return self.scale * (2 * base - 1)
        return self.scale * base


@keras.saving.register_keras_serializable(package="streamtrain")
class Residual(keras.layers.Layer):  # type: ignore[misc]
    """[linear prediction, network, spread] -> prediction: the network answers in units of the spread."""

    same_in_training = True

    def call(self, parts: list[Tensor]) -> Tensor:
        base, network, spread = parts
        return base + spread * network


@keras.saving.register_keras_serializable(package="streamtrain")
class SpreadHuber(keras.losses.Loss):  # type: ignore[misc]
    """Huber's loss whose quadratic part reaches as far as `DELTA` spreads: nearly the absolute error, in the
    label's units, but smooth where it counts. relative: in units of the spread. Loaded from a file it knows no spread
    and takes 1."""

    DELTA = 0.5

    def __init__(
        self,
        moments: Moments | None = None,
        name: str = "spread_huber",
        relative: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(name=name, **options)
        self._moments = moments
        self._relative = relative

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        error = tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred)
        spread = 1.0 if self._moments is None else tf.cast(self._moments.spread, error.dtype)
        delta = self.DELTA * spread
        near = tf.square(error) / (2 * delta)
        loss = tf.reduce_mean(tf.where(error < delta, near, error - delta / 2), axis=-1)
        return loss / tf.reduce_mean(spread) if self._relative else loss
