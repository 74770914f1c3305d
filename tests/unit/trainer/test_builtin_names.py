from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from streamtrain import config
from streamtrain.trainer.model import JobModel


def built(features: list[dict[str, Any]], task: str) -> JobModel:
    labels = [{"field": f"label{n}", "dtype": "float32", "task": task} for n in range(2)]
    job = {"name": "j", "source": "s", "features": features, "labels": labels}
    return JobModel(job=config.Job.model_validate(job))


OWN = ("squash", "features", "hash_0", "embedding_0", "hidden_0", "moments", "wide_0", "deep", "linear", "network",
       "prediction", "prediction_1", "moments_1")  # fmt: skip


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("dtype", ["float32", "string"])
def test_a_field_may_be_called_like_a_layer(dtype: str, task: str) -> None:
    plain = built([{"field": "x", "dtype": "float32"}, {"field": "c", "dtype": "string"}], task)
    layers = {each.name for each in plain.keras.layers if not isinstance(each, keras.layers.InputLayer)}
    assert layers & set(OWN)
    fields = sorted({*OWN, *layers})
    model = built([{"field": field, "dtype": dtype} for field in fields], task)
    column = np.array([b"u", b"v"] if dtype == "string" else [1.0, 2.0])
    inputs = model.inputs({field: keras.ops.convert_to_tensor(column) for field in fields})
    assert set(inputs) == set(fields)
    assert len(model.outputs(model.keras(inputs))) == 2
