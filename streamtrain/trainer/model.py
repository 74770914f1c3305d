"""The model of a job: found by its name, built, checked against the schema, and seen by the loop through one
adapter. Whatever is wrong with a user's model is a ModelError here, before a document is read."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import keras
import numpy as np
import tensorflow as tf

from streamtrain import config
from streamtrain.errors import ModelError
from streamtrain.trainer.losses import Losses
from streamtrain.types import DType, Feature, Label, Schema, Task

Tensor = Any
Builder = Callable[[Schema, dict[str, Any]], keras.Model]

DEFAULT_LEARNING_RATE = 1e-3
PRIMING_PASSES = 7
"""How often running statistics absorb the very first step before it is learned: where numbers are, how far apart, then
again without wild values, until what is left of those no longer matters, and residuals."""

_CHECK_ROWS = 2
TF_DTYPES = {
    DType.FLOAT32: tf.float32,
    DType.FLOAT64: tf.float64,
    DType.INT32: tf.int32,
    DType.INT64: tf.int64,
    DType.BOOL: tf.bool,
    DType.DATETIME: tf.int64,
    DType.STRING: tf.string,
    DType.BYTES: tf.string,
}
_RATES = ("rate", "dropout", "recurrent_dropout", "stddev")
_STOCHASTIC = ("Random", "SpectralNormalization", "RandAugment", "AugMix", "MixUp", "CutMix", "AutoContrast")
_NODE = re.compile(r"\x1b\[\d+m|\{\{[^}]*\}\}")  # colours and {{function_node ...}}
_WRAPPED = "Exception encountered when calling"
_RESHAPING = ("Identity", "Reshape", "Squeeze", "ExpandDims", "StridedSlice", "Cast")
_FUNCTIONAL = type(keras.Model(_input := keras.Input((1,)), _input))


class RunningStatistics(Protocol):
    """A layer of the model that is fitted by sums over all ranks' rows instead of by gradients.

    `sums` may depend only on this rank's rows and on state that is the same on every rank; `absorb` takes the sum
    of those vectors over all ranks. `primed` is false until the first rows were absorbed: before it learns the very
    first step, the loop lets it absorb that step's rows `PRIMING_PASSES` times, each time `afresh`. Rows of weight
    zero must leave no trace.

    A layer that also has `follow(inputs, targets, outputs, weights)` is asked for that in a step instead of `sums`:
    outputs are what the model says of these rows in training, weights are zero for rows that are not scored.
    """

    sums_size: int

    def sums(self, inputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], weights: Tensor) -> Tensor: ...

    def absorb(self, reduced: Tensor, *, afresh: bool) -> None: ...

    def primed(self) -> bool: ...


def find_builder(name: str) -> Builder:
    """The function that builds the model `name` (`builtin`, or `module:function`)."""
    if name == "builtin":
        from streamtrain.trainer.builtin import build  # the built-in is a model like any other

        return build
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        hint = (
            f"is {module_name.partition('.')[0]!r} installed for this Python, or in a directory of PYTHONPATH?"
            if isinstance(error, ModuleNotFoundError)
            else f"`python -c 'import {module_name}'` shows where"
        )
        raise ModelError(f"model {name!r}: importing failed: {_told(error)}", hint=hint) from error
    builder = getattr(module, attribute, None)
    if builder is None:
        raise ModelError(
            f"model {name!r}: {module_name} has no {attribute!r}", hint="name a function `build(schema, hyper)`"
        )
    if not callable(builder):
        raise ModelError(
            f"model {name!r} is a {type(builder).__name__}, not a function", hint="define `build(schema, hyper)`"
        )
    return cast(Builder, builder)


def _told(error: BaseException) -> str:
    """Its first line that says something: Keras wraps what a layer raises, and TensorFlow names the graph's node."""
    lines = [_NODE.sub("", line).strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(_WRAPPED)]
    return f"{type(error).__name__}: {said[0][:300]}" if said else type(error).__name__


def set_precision(dtype: str) -> None:
    """Keras' float type for this process; before any layer is made."""
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)


class JobModel:
    """A built and checked model with its optimizer and losses. Made inside the strategy's scope."""

    def __init__(self, *, job: config.Job, builder: Builder | None = None) -> None:
        """builder: instead of the one that `job.model` names. Raises ModelError."""
        self.schema = job.schema_()
        self.real = tf.as_dtype(job.dtype)
        self.reduction = job.loss_reduction
        self._name = job.model
        keras.utils.set_random_seed(job.seed)  # the same first weights on every rank
        self.keras = self._build(builder or find_builder(job.model), dict(job.hyper))
        outputs = self._check()
        self.optimizer = self._optimizer(job.optimizer)
        self.losses = Losses(
            model=self.keras,
            name=self._name,
            labels=self.schema.labels,
            outputs=outputs,
            probabilities=self._gives_probabilities(),
            real=self.real,
        )
        self.layers: list[Any] = _all_layers(self.keras)
        self.statistics: list[RunningStatistics] = [
            layer for layer in self.layers if all(hasattr(layer, name) for name in ("sums_size", "sums", "absorb"))
        ]
        self.batch_norms: list[Any] = [
            layer for layer in self.layers if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        ]
        self.differs_in_training = any(_differs_in_training(layer) for layer in self.layers)
        self._check_losses(outputs)

    # ------------------------------------------------------------------ building

    def _build(self, builder: Builder, hyper: dict[str, Any]) -> keras.Model:
        try:
            model = builder(self.schema, hyper)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"model {self._name!r} raised {_told(error)}",
                hint="it is called as build(schema, hyper) with the job's schema and `hyper`",
            ) from error
        if not isinstance(model, keras.Model):
            raise ModelError(
                f"model {self._name!r} returned {type(model).__name__}", hint="return a keras.Model (Keras 3)"
            )
        return model

    def _check(self) -> dict[str, Tensor]:
        """Runs the model once on made-up rows (which also builds a lazily built one)."""
        try:
            raw = self.keras(self._made_up_inputs(), training=False)
        except Exception as error:
            fields = ", ".join(f"{feature.field!r} {_described(feature)}" for feature in self.schema.features)
            raise ModelError(
                f"model {self._name!r} cannot take the job's features: {_told(error)}",
                hint=f"its inputs must be named after (some of) the fields, and be of their types: {fields}; a scalar "
                "is a [batch] or [batch, 1] tensor",
            ) from error
        if not self.keras.trainable_variables:
            raise ModelError(f"model {self._name!r} has no trainable weights", hint="is every layer frozen?")
        for variable in self.keras.variables if tf.distribute.has_strategy() else ():
            if not tf.distribute.get_strategy().extended.variable_created_in_scope(variable.value):
                raise ModelError(
                    f"model {self._name!r}: {variable.path} was made before the model's function was called",
                    hint="make every layer inside the function: it is called in the scope of the workers' strategy",
                )
        return self.outputs(raw)

    def _made_up_inputs(self) -> Any:
        return self.inputs({feature.field: _made_up(feature) for feature in self.schema.features})

    def inputs(self, columns: Mapping[str, Tensor]) -> Any:
        """Columns by field in the form in which the model takes them. Strings with `buckets` become int64 by the
        same TensorFlow op everywhere."""
        hashed = dict(columns)
        for feature in self.schema.features:
            if feature.buckets is not None:
                hashed[feature.field] = _hashed(feature, feature.buckets, columns[feature.field])
        inputs = getattr(self.keras, "_inputs_struct", None)  # of a functional model; any other takes the dict
        if inputs is None:
            sequential = isinstance(self.keras, keras.Sequential) and len(hashed) == 1
            return _ranked(next(iter(hashed.values())), 2) if sequential else hashed
        if isinstance(inputs, dict):
            return {name: _ranked(hashed[name], len(tensor.shape)) for name, tensor in inputs.items()}
        if isinstance(inputs, (list, tuple)):
            return [_ranked(hashed[tensor.name], len(tensor.shape)) for tensor in inputs]
        only = next(iter(hashed)) if len(hashed) == 1 else inputs.name
        return _ranked(hashed[only], len(inputs.shape))

    def outputs(self, raw: Any) -> dict[str, Tensor]:
        """What the model says, per label field: [B] for one score, [B, classes] for several. Raises ModelError."""
        labels = self.schema.labels
        if isinstance(raw, Mapping):
            missing = [label.field for label in labels if label.field not in raw]
            if missing or len(raw) != len(labels):
                raise ModelError(
                    f"model {self._name!r} gives the outputs {sorted(map(str, raw))}",
                    hint=f"name them after the labels: {[label.field for label in labels]}",
                )
            found = [raw[label.field] for label in labels]
        else:
            found = list(raw) if isinstance(raw, (list, tuple)) else [raw]
        if len(found) != len(labels):
            raise ModelError(
                f"model {self._name!r} has {len(found)} outputs for {len(labels)} labels",
                hint="one output for each label, in the order of `labels`",
            )
        return {label.field: self._output(label, tensor) for label, tensor in zip(labels, found, strict=True)}

    def _output(self, label: Label, tensor: Any) -> Tensor:
        shape = tuple(tensor.shape)
        wanted = "[batch, 1]"
        if len(shape) == 1:
            return tensor
        if len(shape) == 2 and shape[1] == 1 and (label.task is Task.REGRESSION or label.classes == 2):
            return tensor[:, 0]
        if label.task is Task.CLASSIFICATION:
            if len(shape) == 2 and shape[1] == label.classes:
                return tensor
            wanted = f"[batch, {label.classes}]" + (" or [batch, 1]" if label.classes == 2 else "")
        raise ModelError(
            f"model {self._name!r} gives {['batch', *shape[1:]]} for the {label.task.value} label {label.field!r}",
            hint=f"its output must be {wanted}",
        )

    def _gives_probabilities(self) -> dict[str, bool]:
        """By label, whether its output comes from a sigmoid or softmax, whatever shapes or casts it behind that: seen
        in the operations of a traced call, so it holds for any kind of model. A compiled loss that says so overrules
        it."""

        def answer() -> list[Tensor]:
            return list(self.outputs(self.keras(self._made_up_inputs(), training=False)).values())

        if all(label.task is Task.REGRESSION for label in self.schema.labels):
            return {label.field: False for label in self.schema.labels}
        traced = tf.function(answer, autograph=False).get_concrete_function().graph.outputs
        return {label.field: _is_probability(out.op) for label, out in zip(self.schema.labels, traced, strict=True)}

    # ------------------------------------------------------------------ optimizer and losses

    def _optimizer(self, wanted: Mapping[str, Any] | None) -> Any:
        """The configured optimizer, else the compiled one, else Adam; with its variables made."""
        if wanted is not None:
            try:
                optimizer = keras.optimizers.get(_optimizer_config(wanted))
            except Exception as error:
                raise ModelError(
                    f"the job's optimizer cannot be made: {_told(error)}",
                    hint="write it like {class_name: Adam, config: {learning_rate: 0.001}}",
                ) from error
        elif getattr(self.keras, "compiled", False) and self.keras.optimizer is not None:
            optimizer = self.keras.optimizer
        else:
            optimizer = keras.optimizers.Adam(DEFAULT_LEARNING_RATE)
        if getattr(optimizer, "gradient_accumulation_steps", None):
            raise ModelError(
                "the optimizer accumulates gradients over steps, which cannot be done over several workers",
                hint="drop gradient_accumulation_steps and raise round.batch_size instead",
            )
        if not optimizer.built:
            optimizer.build(self.keras.trainable_variables)
        return optimizer

    def _check_losses(self, outputs: Mapping[str, Tensor]) -> None:
        for label in self.schema.labels:
            target = tf.zeros(_CHECK_ROWS, self.real)
            try:
                shape = self.losses.rows({label.field: target}, outputs, labels=(label,))[label.field].shape
            except ModelError:
                raise
            except Exception as error:
                raise ModelError(
                    f"the loss of model {self._name!r} failed on label {label.field!r}: {_told(error)}",
                    hint="it is called with y_true [batch, 1] (class numbers [batch] for several classes) and y_pred",
                ) from error
            if tuple(shape) != (_CHECK_ROWS,):
                raise ModelError(
                    f"the loss of model {self._name!r} gives shape {list(shape)} for {_CHECK_ROWS} rows",
                    hint="it must give one value for each row: the loop weighs and averages them itself",
                )

    # ------------------------------------------------------------------ state

    @property
    def seeds(self) -> list[Any]:
        """States of the random generators of dropout and its like."""
        return [v for v in self.keras.variables if v.name.endswith("seed_generator_state")]

    def part_seeds(self, rank: int) -> None:
        """Gives each rank masks of its own."""
        for state in self.seeds:
            value = np.array(state.numpy())
            state.assign(value + np.array([rank, 0], value.dtype))

    def fingerprint(self) -> str:
        """sha256 over what must agree for a checkpoint to fit: schema, and name, shape and dtype of every weight
        and optimizer variable."""
        parts = {
            "schema": self.schema.fingerprint(),
            "weights": [[v.name, list(v.shape), str(v.dtype)] for v in self.keras.weights],
            "optimizer": [
                type(self.optimizer).__name__,
                [[list(v.shape), str(v.dtype)] for v in self.optimizer.variables],
            ],
        }
        return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def _optimizer_config(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """{class_name, config}, or flat: {class_name or name: Adam, learning_rate: ...}."""
    options = copy.deepcopy(dict(wanted))  # Keras takes it apart
    if "config" in options:
        return options
    return {"class_name": options.pop("class_name", None) or options.pop("name", "adam"), "config": options}


def _described(feature: Feature) -> str:
    kind = "int64" if feature.buckets is not None else TF_DTYPES[feature.dtype].name
    return kind if feature.width is None else f"{kind} [batch, {feature.width}]"


def _is_probability(operation: Any) -> bool:
    while operation.type in _RESHAPING:
        operation = operation.inputs[0].op
    return operation.type in ("Sigmoid", "Softmax")


def _made_up(feature: Feature) -> Tensor:
    shape = (_CHECK_ROWS,) if feature.width is None else (_CHECK_ROWS, feature.width)
    dtype = TF_DTYPES[feature.dtype]
    return tf.fill(shape, "") if dtype == tf.string else tf.zeros(shape, dtype)


def _hashed(feature: Feature, buckets: int, strings: Tensor) -> Tensor:
    """int64 below `buckets`; in a padded list 0 is the padding and nothing else, as a mask wants it."""
    if feature.max_length is None:
        return tf.strings.to_hash_bucket_fast(strings, buckets)
    places = 1 + tf.strings.to_hash_bucket_fast(strings, buckets - 1)
    return tf.where(strings == (feature.pad or ""), tf.zeros_like(places), places)


def _ranked(tensor: Tensor, rank: int) -> Tensor:
    return tensor[:, None] if tensor.shape.rank == 1 and rank == 2 else tensor


def _all_layers(model: keras.Model) -> list[Any]:
    found: list[Any] = []
    for layer in model._flatten_layers(include_self=True):
        if all(layer is not known for known in found):
            found.append(layer)
    return found


def _differs_in_training(layer: Any) -> bool:
    """Whether the layer may behave differently in training: known for Keras' own layers; of others, one that is
    told (`training` argument of `call`) counts as different unless it has `same_in_training`."""
    if type(layer) in (keras.Sequential, _FUNCTIONAL) or getattr(layer, "same_in_training", False):
        return False
    if isinstance(layer, keras.layers.BatchNormalization):
        return bool(layer.trainable)
    if type(layer).__module__.startswith("keras."):
        rates = [getattr(layer, name, 0) for name in _RATES]
        return any(isinstance(rate, (int, float)) and rate > 0 for rate in rates) or type(layer).__name__.startswith(
            _STOCHASTIC
        )
    return bool(getattr(layer, "_call_has_training_arg", True))
