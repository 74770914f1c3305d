"""A model whose weights count: after any history of faults, each weight is the number of times its document
was learned (DESIGN 4, the ledger test)."""

from __future__ import annotations

from typing import Any

import keras

from streamtrain.types import Schema


def build(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """Plain SGD with rate 1 on the loss `-prediction`, where a document's prediction is the weight in its slot:
    the gradient for a record is exactly -1 in that slot, so learning it once adds exactly 1."""
    slot = keras.Input((), name="slot", dtype="int32")
    count = keras.layers.Embedding(int(hyper["slots"]), 1, embeddings_initializer="zeros", name="ledger")(slot)
    model = keras.Model(slot, keras.layers.Reshape((1,))(count))
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss=_minus_prediction)
    return model


def _minus_prediction(y_true: Any, y_pred: Any) -> Any:
    return -keras.ops.reshape(y_pred, (-1,)) + 0.0 * keras.ops.reshape(y_true, (-1,))
