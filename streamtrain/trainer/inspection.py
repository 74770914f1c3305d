"""What can be seen of a model without training it: the kinds of layers that need care with several workers, and
features that it does not use."""

from __future__ import annotations

from typing import Any

import keras

from streamtrain.trainer.model import JobModel


def traits(model: JobModel) -> dict[str, Any]:
    return {
        "layers": len(model.layers),
        "weights": sum(int(v.shape.num_elements() or 0) for v in model.keras.trainable_variables),
        "batch_norms": [layer.path for layer in model.batch_norms if not getattr(layer, "synchronized", False)],
        "own_losses": len(model.keras.losses),
        "lambdas": [layer.path for layer in model.layers if isinstance(layer, keras.layers.Lambda)],
        "unused_features": _unused(model),
        "other_state": _other_state(model),
    }


def _unused(model: JobModel) -> list[str]:
    """Features that a functional model has no input for; of any other model it cannot be seen."""
    inputs = getattr(model.keras, "_inputs_struct", None)
    if inputs is None:
        return []
    names = set(inputs) if isinstance(inputs, dict) else {tensor.name for tensor in model.keras.inputs}
    fields = [feature.field for feature in model.schema.features]
    return [field for field in fields if field not in names] if len(fields) > 1 else []


def _other_state(model: JobModel) -> dict[str, str]:
    """By name in a saved state, the path of each weight that no gradient moves and that the loop does not keep alike
    on all workers."""
    known = [v for layer in (*model.batch_norms, *model.statistics) for v in layer.variables]
    known += [*model.keras.trainable_variables, *model.seeds]
    return {
        f"weight/{index}": variable.path
        for index, variable in enumerate(model.keras.weights)
        if all(variable is not other for other in known)
    }
