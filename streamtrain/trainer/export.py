"""A job's model as a SavedModel that takes raw fields: TensorFlow is all that is needed to load it. What was written
is loaded again and must answer as the model in memory does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from streamtrain.errors import DependencyError, ModelError
from streamtrain.trainer.checkpoint import write_keras
from streamtrain.trainer.columns import FLOATS, configured_value, filler
from streamtrain.trainer.decode import BAD, Decoder
from streamtrain.trainer.made_up import made_up_columns
from streamtrain.trainer.model import TF_DTYPES, JobModel
from streamtrain.trainer.rows import Column
from streamtrain.trainer.signature import NAME, Signature, Value, signature_of
from streamtrain.types import Feature, Label

Tensor = Any
Answers = dict[str, npt.NDArray[Any]]

_CLOSE = 1e-4  # relative: other kernels may add up in another order
_NEAR_ZERO = 1e-5  # of the largest answer


def export_model(model: JobModel, directory: Path, *, documents: Sequence[bytes] = ()) -> Signature:
    """Writes the SavedModel into `directory`. Its signature `serving_default` takes, for each feature, [batch] or
    [batch, length] of the field's own type, strings and times as they stand in documents.

    documents: raw BSON; what they hold is compared besides made-up rows. Raises ModelError when the model cannot be
    written, or when what was written answers otherwise than the model; DependencyError when there is no room.
    """
    signature = signature_of(model.schema)
    archive = keras.export.ExportArchive()
    try:
        archive.track(model.keras)
        archive.add_endpoint(NAME, _served(model, signature), input_signature=[_arguments(model, signature)])
        archive.write_out(str(directory), verbose=False)
    except (OSError, tf.errors.OpError) as error:
        raise _unwritable(directory, error) from error
    except Exception as error:
        raise ModelError(
            f"the model cannot be written as a SavedModel: {_told(error)}",
            hint="what it calls must be operations of TensorFlow or Keras, on tensors of any batch size",
        ) from error
    _verify_saved_model(model, signature, directory, documents)
    return signature


def export_keras(model: JobModel, path: Path, *, documents: Sequence[bytes] = ()) -> None:
    """Writes the `.keras` file: the model as it was built, which takes its inputs as in training. Raises ModelError
    when it cannot be written or loaded, or then answers otherwise; DependencyError when there is no room."""
    try:
        write_keras(model, path)
    except ModelError as error:
        if isinstance(error.__cause__, OSError):
            raise _unwritable(path.parent, error.__cause__) from error
        raise
    try:
        loaded = keras.models.load_model(path, compile=False, safe_mode=False)  # written by this process just now
    except Exception as error:
        raise ModelError(
            f"the .keras file that was written cannot be loaded: {_told(error)}",
            hint="layers and functions of your own need get_config() and @keras.saving.register_keras_serializable()",
        ) from error

    def answers(columns: Mapping[str, Column]) -> Answers:
        outputs = model.outputs(loaded(model.inputs(_tensors(model, columns)), training=False))
        return _expected(model, signature, outputs)

    signature = signature_of(model.schema)
    _compare(model, signature, answers, documents, what=".keras file")


# ------------------------------------------------------------------ the graph


def _arguments(model: JobModel, signature: Signature) -> dict[str, tf.TensorSpec]:
    return {
        feature.field: tf.TensorSpec(
            (None,) if feature.width is None else (None, None if feature.max_length else feature.length),
            TF_DTYPES[feature.dtype],
            name=signature.inputs[feature.field],
        )
        for feature in model.schema.features
    }


def _served(model: JobModel, signature: Signature) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    def serve(raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
        columns = {feature.field: _column(feature, raw[feature.field]) for feature in model.schema.features}
        outputs = model.outputs(model.keras(model.inputs(columns), training=False))
        answers: dict[str, Tensor] = {}
        for label in model.schema.labels:
            names, output = signature.outputs[label.field], tf.cast(outputs[label.field], model.real)
            if isinstance(names, Value):
                answers[names.name] = output
            else:
                probabilities = _probabilities(output, logits=model.losses.logits[label.field])
                answers[names.name] = tf.argmax(probabilities, axis=1, output_type=tf.int64)
                answers[names.probabilities] = probabilities
        return answers

    return serve


def _column(feature: Feature, raw: Tensor) -> Tensor:
    """As the decoder would give it. Of all types only a float can say that there is no value."""
    if feature.missing is not None and feature.dtype in FLOATS:
        instead = configured_value(feature.field, "missing", feature.dtype, feature.missing)
        raw = tf.where(tf.math.is_finite(raw), raw, tf.constant(instead, raw.dtype))
    if feature.max_length is None:
        return raw
    given = tf.shape(raw)[1]
    fits = tf.debugging.assert_less_equal(
        given, feature.max_length, f"{feature.field}: give the last {feature.max_length} elements of a list"
    )
    with tf.control_dependencies([fits]):
        pad = tf.constant(_pad(feature), raw.dtype)
        padded = tf.pad(raw, [[0, 0], [0, feature.max_length - given]], constant_values=pad)
    return tf.ensure_shape(padded, (None, feature.max_length))


def _pad(feature: Feature) -> Any:
    if feature.pad is None:
        return filler(feature.dtype)
    return configured_value(feature.field, "pad", feature.dtype, feature.pad)


def _probabilities(output: Tensor, *, logits: bool) -> Tensor:
    """[B, classes]"""
    if output.shape.rank == 1:
        positive = tf.sigmoid(output) if logits else output
        return tf.stack([1 - positive, positive], axis=1)
    return tf.nn.softmax(output) if logits else output


# ------------------------------------------------------------------ what was written


def _verify_saved_model(model: JobModel, signature: Signature, directory: Path, documents: Sequence[bytes]) -> None:
    served = tf.saved_model.load(str(directory)).signatures[NAME]

    def answers(columns: Mapping[str, Column]) -> Answers:
        raw = {
            signature.inputs[feature.field]: tf.constant(_raw(feature, columns[feature.field]))
            for feature in model.schema.features
        }
        return {name: value.numpy() for name, value in served(**raw).items()}

    _compare(model, signature, answers, documents, what="SavedModel")


def _raw(feature: Feature, column: Column) -> Column:
    """The column with its missing values missing again."""
    if feature.missing is None or feature.dtype not in FLOATS:
        return column
    instead = configured_value(feature.field, "missing", feature.dtype, feature.missing)
    return np.where(column == column.dtype.type(instead), np.nan, column).astype(column.dtype)


def _compare(
    model: JobModel,
    signature: Signature,
    answers: Callable[[Mapping[str, Column]], Answers],
    documents: Sequence[bytes],
    *,
    what: str,
) -> None:
    """On made-up rows, and on what the documents hold. Raises ModelError."""
    rows = [_taken(model)]
    if documents:
        decoded = Decoder(model.schema).decode(documents)
        good = decoded.outcome != BAD
        rows += [{field: column[good] for field, column in decoded.columns.items()}] if good.any() else []
    for columns in rows:
        expected = _expected(model, signature, _in_memory(model, columns))
        found = answers(columns)
        for label in model.schema.labels:
            names = signature.outputs[label.field]
            name = names.name if isinstance(names, Value) else names.probabilities
            if not _close(found[name], expected[name]):
                raise _differs(what, label, found[name], expected[name])


def _taken(model: JobModel) -> Mapping[str, Column]:
    """Made-up rows that the model takes: one that reads images out of bytes, or looks numbers up in a table, may refuse
    anything but blanks, with which it was built."""
    columns = made_up_columns(model.schema)
    try:
        _in_memory(model, columns)
    except Exception:  # noqa: BLE001  whatever the model says to it
        return made_up_columns(model.schema, blank=True)
    return columns


def _in_memory(model: JobModel, columns: Mapping[str, Column]) -> dict[str, Tensor]:
    return model.outputs(model.keras(model.inputs(_tensors(model, columns)), training=False))


def _tensors(model: JobModel, columns: Mapping[str, Column]) -> dict[str, Tensor]:
    return {
        feature.field: tf.constant(columns[feature.field], TF_DTYPES[feature.dtype])
        for feature in model.schema.features
    }


def _expected(model: JobModel, signature: Signature, outputs: Mapping[str, Tensor]) -> Answers:
    """In numpy, so that a mistake of the graph's is not made twice."""
    answers: Answers = {}
    for label in model.schema.labels:
        names, output = signature.outputs[label.field], np.asarray(tf.cast(outputs[label.field], tf.float64))
        if isinstance(names, Value):
            answers[names.name] = output
            continue
        if model.losses.logits[label.field]:
            scores = output if output.ndim == 2 else np.stack([np.zeros_like(output), output], axis=1)
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            output = powers / powers.sum(axis=1, keepdims=True)
        answers[names.probabilities] = output if output.ndim == 2 else np.stack([1 - output, output], axis=1)
    return answers


def _close(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    if found.shape != expected.shape:
        return False
    finite = np.abs(expected[np.isfinite(expected)])
    near_zero = _NEAR_ZERO * float(finite.max(initial=0.0))
    return bool(np.allclose(found, expected, rtol=_CLOSE, atol=near_zero, equal_nan=True))


def _differs(what: str, label: Label, found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> ModelError:
    place = ""
    if found.shape == expected.shape:
        apart = np.nan_to_num(np.abs(found - expected), nan=np.inf)
        at = np.unravel_index(np.argmax(apart), found.shape)
        place = f": {found[at]:.6g} for {expected[at]:.6g}"
    return ModelError(
        f"the {what} answers otherwise than the model, for label {label.field!r}{place}",
        hint="does the model draw random numbers in service, or read something that is no tensor or Keras variable?",
    )


def _unwritable(directory: Path, error: Exception) -> DependencyError:
    reason = getattr(error, "strerror", None) or _told(error)
    return DependencyError(
        f"the model could not be written to {directory}: {reason}", hint="the folder must be writable, with room"
    )


def _told(error: BaseException) -> str:
    text = str(error).rpartition("Exception encountered: ")[2].strip()  # Keras puts a page of configuration before it
    return f"{type(error).__name__}: {text.splitlines()[0][:300]}" if text else type(error).__name__
