"""The losses of a model with one or several outputs: which belongs to which label, what each row loses, and how
labels add up. Never averages over rows: the loop weighs them itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from streamtrain.errors import ModelError
from streamtrain.types import Label, Task

Tensor = Any
RowLoss = Callable[[Tensor, Tensor], Tensor]
"""y_true [B], output [B] or [B, classes] -> [B]"""


class Losses:
    """What a model was compiled with, else the squared error or the cross-entropy.

    logits: by label field, whether the model's output for it is a logit (also False of a regression's).
    """

    def __init__(
        self,
        *,
        model: keras.Model,
        name: str,
        labels: Sequence[Label],
        outputs: Mapping[str, Tensor],
        probabilities: Mapping[str, bool],
        real: tf.DType,
    ) -> None:
        """name: of the model, for errors. outputs: by label field, of any rows. Raises ModelError."""
        self._name = name
        self._labels = tuple(labels)
        self._real = real
        self.logits = {field: not found for field, found in probabilities.items()}
        compiled = getattr(model, "compiled", False)
        names = [str(each) for each in getattr(model, "output_names", ())]
        wanted = self._by_label(getattr(model, "loss", None) if compiled else None, names, "loss")
        # Private, and a test says so when Keras changes it: the public form fails for losses without a name.
        weights = model._compile_config.config["loss_weights"] if compiled else None
        self._weights = self._by_label(weights, names, "loss_weights")
        for field, weight in self._weights.items():
            if weight is not None and not (isinstance(weight, (int, float)) and weight >= 0):
                raise ModelError(
                    f"loss_weights of model {name!r}: {weight!r} for {field!r} is no number of at least 0",
                    hint="compile it with loss_weights={label: number}",
                )
        self._rows = {label.field: self._row_loss(label, wanted[label.field], outputs[label.field]) for label in labels}

    def rows(
        self, targets: Mapping[str, Tensor], outputs: Mapping[str, Tensor], labels: Sequence[Label] | None = None
    ) -> dict[str, Tensor]:
        """The loss of each row, per label field: [B] of the real dtype, without the label's weight."""
        return {
            label.field: tf.cast(self._rows[label.field](targets[label.field], outputs[label.field]), self._real)
            for label in (self._labels if labels is None else labels)
        }

    def total(self, rows: Mapping[str, Tensor]) -> Tensor:
        """[B]: what a row's labels lose together, each times its weight."""
        weighed = []
        for label in self._labels:
            weight = self._weights[label.field]
            weighed.append(rows[label.field] if weight is None else rows[label.field] * weight)
        return tf.add_n(weighed)

    def _by_label(self, wanted: Any, names: Sequence[str], what: str) -> dict[str, Any]:
        """What `compile` was given, by label field: one for all, a list in order of the labels, or a mapping by
        label or by name of the output."""
        fields = [label.field for label in self._labels]
        if isinstance(wanted, Mapping):
            aliases = dict(zip(names, fields, strict=True)) if len(names) == len(fields) else {}
            known = aliases | {field: field for field in fields}
            if unknown := [str(key) for key in wanted if key not in known]:
                raise ModelError(
                    f"the {what} of model {self._name!r} names {unknown[0]!r}, which is no label",
                    hint=f"name the labels: {fields}",
                )
            return dict.fromkeys(fields) | {known[key]: value for key, value in wanted.items()}
        if isinstance(wanted, (list, tuple)):
            if len(wanted) != len(fields):
                raise ModelError(
                    f"the {what} of model {self._name!r} has {len(wanted)} entries for {len(fields)} labels",
                    hint="one for each label, in the order of `labels`",
                )
            return dict(zip(fields, wanted, strict=True))
        return dict.fromkeys(fields, wanted)

    def _row_loss(self, label: Label, wanted: Any, output: Tensor) -> RowLoss:
        if wanted is None:
            return self._default(label, output)
        try:
            function = keras.losses.get(wanted)
        except Exception as error:
            raise ModelError(
                f"the loss of model {self._name!r} is unknown: {type(error).__name__}: {str(error).strip()[:300]}",
                hint="name one of keras.losses, or give a function of y_true and y_pred",
            ) from error
        from_logits = getattr(function, "from_logits", None)
        if from_logits is not None:
            self.logits[label.field] = bool(from_logits)
        per_row = function.call if isinstance(function, keras.losses.Loss) else function
        column = label.task is Task.REGRESSION or len(output.shape) == 1

        def rows(target: Tensor, prediction: Tensor) -> Tensor:
            if not column:
                value = per_row(tf.cast(target, tf.int32), prediction)
            else:
                value = per_row(target[:, None], prediction[:, None])
            value = tf.convert_to_tensor(value)
            return tf.reduce_mean(tf.reshape(value, (tf.shape(value)[0], -1)), axis=1) if value.shape.rank else value

        return rows

    def _default(self, label: Label, output: Tensor) -> RowLoss:
        if label.task is Task.REGRESSION:
            return lambda target, prediction: tf.square(tf.cast(prediction, self._real) - target)
        logits = self.logits[label.field]
        if len(output.shape) == 1:
            return lambda target, prediction: keras.losses.binary_crossentropy(
                target[:, None], prediction[:, None], from_logits=logits
            )
        return lambda target, prediction: keras.losses.sparse_categorical_crossentropy(
            tf.cast(target, tf.int32), prediction, from_logits=logits
        )
