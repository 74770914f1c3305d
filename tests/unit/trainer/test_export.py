"""An exported model takes what stands in documents and answers as the job's model does, and what would not is refused.
How a process without streamtrain loads it: `integration/test_export.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bson
import numpy as np
import pytest

from streamtrain.errors import DependencyError, ModelError
from streamtrain.types import Schema
from tests.unit.trainer.loop_case import job_of

pytestmark = [
    pytest.mark.tensorflow,
    # Keras' own, when it writes a file
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

CLASSES = {"field": "kind", "dtype": "int32", "task": "classification", "classes": 3}
BINARY = {"field": "late", "dtype": "bool", "task": "classification"}


def model_of(builder: Any, **options: Any) -> Any:
    from streamtrain.trainer.model import JobModel, set_precision

    job = job_of(**options)
    set_precision(job.dtype)
    return JobModel(job=job, builder=builder)


def served(model: Any, directory: Path, **arguments: Any) -> dict[str, Any]:
    """What the exported model answers in this process."""
    import tensorflow as tf

    from streamtrain.trainer.export import export_model

    export_model(model, directory)
    function = tf.saved_model.load(str(directory)).signatures["serving_default"]
    return {name: value.numpy() for name, value in function(**to_tensors(function, arguments)).items()}


def to_tensors(function: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    specs = function.structured_input_signature[1]
    return {name: tf.constant(value, specs[name].dtype) for name, value in arguments.items()}


def linear(schema: Schema, hyper: dict[str, Any]) -> Any:
    """The sum of all numbers, one output for each label; `units` of them where the label has classes."""
    import keras

    inputs = [
        keras.Input((feature.width,) if feature.width else (1,), name=feature.field) for feature in schema.features
    ]
    joined = keras.layers.Concatenate()(inputs) if len(inputs) > 1 else inputs[0]
    outputs = [
        keras.layers.Dense(hyper.get("units", 1), hyper.get("activation"), kernel_initializer="ones", name=f"out_{n}")(
            joined
        )
        for n, _ in enumerate(schema.labels)
    ]
    return keras.Model(inputs, outputs if len(outputs) > 1 else outputs[0])


def test_a_float_that_is_missing_becomes_what_stands_in_for_it(strategy: Any, tmp_path: Path) -> None:
    model = model_of(
        linear, features=[{"field": "a.b", "dtype": "float32", "missing": 7}, {"field": "c", "dtype": "float32"}]
    )
    answers = served(model, tmp_path, a_b=[1.0, float("nan"), float("inf")], c=[10.0, 20.0, 30.0])
    assert answers["y"].tolist() == [11.0, 27.0, 37.0]


@pytest.mark.parametrize(("activation", "logits"), [(None, True), ("sigmoid", False)])
def test_two_classes_are_answered_as_both_probabilities_and_the_class(
    strategy: Any, tmp_path: Path, activation: str | None, logits: bool
) -> None:
    model = model_of(linear, labels=[BINARY], hyper={"activation": activation})
    assert model.losses.logits == {"late": logits}
    answers = served(model, tmp_path, x=[[-1.0, 0.0], [2.0, 1.0]])
    positive = 1 / (1 + np.exp([1.0, -3.0]))
    np.testing.assert_allclose(answers["late_probabilities"], np.stack([1 - positive, positive], axis=1), rtol=1e-6)
    assert answers["late"].tolist() == [0, 1]
    assert answers["late"].dtype == np.int64


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_several_classes_are_answered_alike(strategy: Any, tmp_path: Path, activation: str | None) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        place = keras.Input((2,), name="x")
        return keras.Model(place, keras.layers.Dense(3, activation, kernel_initializer=rising)(place))

    def rising(shape: Any, dtype: Any = None) -> Any:
        return np.broadcast_to(np.arange(3, dtype="float32"), shape)

    answers = served(model_of(build, labels=[CLASSES]), tmp_path, x=[[1.0, 0.0], [-1.0, -1.0]])
    scores = np.exp([[0.0, 1.0, 2.0], [0.0, -2.0, -4.0]])
    np.testing.assert_allclose(answers["kind_probabilities"], scores / scores.sum(axis=1, keepdims=True), rtol=1e-5)
    assert answers["kind"].tolist() == [2, 0]


def test_each_label_is_answered_under_its_own_name(strategy: Any, tmp_path: Path) -> None:
    labels = [{"field": "delay.arrival", "dtype": "float32", "task": "regression"}, BINARY]
    answers = served(model_of(linear, labels=labels), tmp_path, x=[[1.0, 2.0]])
    assert sorted(answers) == ["delay_arrival", "late", "late_probabilities"]
    assert answers["delay_arrival"].tolist() == [3.0]


def test_strings_are_hashed_inside_and_unseen_ones_are_answered(strategy: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    model = model_of(
        lambda schema, hyper: _embedded(schema),
        features=[{"field": "carrier", "dtype": "string", "buckets": 50}],
    )
    words = ["UA", "never seen", "", "Zürich"]
    table = model.keras.get_layer("table").get_weights()[0]
    places = tf.strings.to_hash_bucket_fast(words, 50).numpy()
    np.testing.assert_allclose(served(model, tmp_path, carrier=words)["y"], table[places, 0], rtol=1e-6)


def _embedded(schema: Schema) -> Any:
    import keras

    place = keras.Input((), name="carrier", dtype="int64")
    return keras.Model(place, keras.layers.Embedding(50, 1, name="table")(place))


SEQUENCE = {"field": "pages", "dtype": "float32", "max_length": 4, "pad": -1}


def test_a_shorter_list_is_padded_and_a_longer_one_is_refused(strategy: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    model = model_of(linear, features=[SEQUENCE])
    assert served(model, tmp_path, pages=[[1.0, 2.0], [3.0, 4.0]])["y"].tolist() == [1.0, 5.0]
    function = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert function(pages=tf.constant([[1.0, 1.0, 1.0, 1.0]]))["y"].numpy().tolist() == [4.0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="pages: give the last 4 elements of a list"):
        function(pages=tf.zeros((1, 5)))


def test_text_is_looked_up_by_tables_that_are_exported_too(strategy: Any, tmp_path: Path) -> None:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        text = keras.Input((), name="text", dtype="string")
        words = keras.layers.TextVectorization(vocabulary=["on", "time"], output_sequence_length=3)(text)
        return keras.Model(text, keras.layers.Dense(1, kernel_initializer="ones")(keras.ops.cast(words, "float32")))

    model = model_of(build, features=[{"field": "text", "dtype": "string"}])
    assert served(model, tmp_path, text=["on time", "late", ""])["y"].tolist() == [5.0, 1.0, 0.0]


def test_bytes_and_a_vector_in_a_subclassed_model(strategy: Any, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    class Pixels(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, columns: Any) -> Any:
            image = tf.cast(tf.io.decode_raw(columns["image"], tf.uint8, fixed_length=4), tf.float32)
            return self.dense(tf.concat([image, columns["v"]], axis=1))

    model = model_of(
        lambda schema, hyper: Pixels(),
        features=[{"field": "image", "dtype": "bytes"}, {"field": "v", "dtype": "float32", "length": 2}],
    )
    assert served(model, tmp_path, image=[b"\1\2\3\4", b""], v=[[0.5, 0.5], [1.0, 1.0]])["y"].tolist() == [11.0, 2.0]


def test_a_model_that_takes_only_what_it_was_built_with_is_compared_on_blanks(strategy: Any, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    class Strict(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, columns: Any) -> Any:
            text = tf.where(columns["n"] == "", "0", columns["n"])
            return self.dense(tf.strings.to_number(text)[:, None])

    model = model_of(lambda schema, hyper: Strict(), features=[{"field": "n", "dtype": "string"}])
    assert served(model, tmp_path, n=["2.5", ""])["y"].tolist() == [2.5, 0.0]


def test_a_model_that_is_random_in_service_is_refused(strategy: Any, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    class Noisy(keras.layers.Layer):  # type: ignore[misc]
        same_in_training = True

        def call(self, x: Any) -> Any:
            return x + tf.random.normal(tf.shape(x))

    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        x = keras.Input((2,), name="x")
        return keras.Model(x, keras.layers.Dense(1)(Noisy()(x)))

    from streamtrain.trainer.export import export_keras, export_model

    model = model_of(build)
    with pytest.raises(ModelError, match="the SavedModel answers otherwise than the model, for label 'y': "):
        export_model(model, tmp_path / "saved")
    with pytest.raises(ModelError, match=r"\.keras file"):
        export_keras(model, tmp_path / "model.keras")


def test_a_model_that_reads_python_values_when_called_is_refused(strategy: Any, tmp_path: Path) -> None:
    import keras

    from streamtrain.trainer.export import export_model

    class Eager(keras.layers.Layer):  # type: ignore[misc]
        same_in_training = True

        def call(self, x: Any) -> Any:
            return x * float(keras.ops.sum(x)) if hasattr(x, "numpy") else x

    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        x = keras.Input((2,), name="x")
        return keras.Model(x, keras.layers.Dense(1)(Eager()(x)))

    with pytest.raises(ModelError, match="answers otherwise"):
        export_model(model_of(build), tmp_path)


def test_documents_are_compared_too_and_bad_ones_are_passed_over(strategy: Any, tmp_path: Path) -> None:
    from streamtrain.trainer.export import export_model

    model = model_of(linear)
    export_model(model, tmp_path, documents=[bson.encode({"x": [1.0, 2.0], "y": 1.0}), bson.encode({"x": "no"}), b"?"])


def test_no_room_is_told_apart_from_a_model_that_cannot_be_written(strategy: Any, tmp_path: Path) -> None:
    from streamtrain.trainer.export import export_keras, export_model

    (tmp_path / "file").touch()
    with pytest.raises(DependencyError, match="the model could not be written to"):
        export_model(model_of(linear), tmp_path / "file" / "saved")
    with pytest.raises(DependencyError, match="the model could not be written to"):
        export_keras(model_of(linear), tmp_path / "file" / "model.keras")


def test_the_builtin_model_takes_every_field_as_documents_have_it(strategy: Any, tmp_path: Path) -> None:
    """As a server without Python loads it: by the graph and the names in its signature."""
    import tensorflow as tf

    from streamtrain.trainer.builtin import build
    from streamtrain.trainer.export import export_keras, export_model

    features = [
        {"field": "depDelay", "dtype": "float32", "missing": 0},
        {"field": "weather.wind", "dtype": "float64", "missing": 3.5},
        {"field": "carrier", "dtype": "string"},
        {"field": "dest", "dtype": "string", "buckets": 20},
        {"field": "at", "dtype": "datetime"},
        {"field": "seats", "dtype": "int32"},
        {"field": "full", "dtype": "bool"},
        {"field": "v", "dtype": "float32", "length": 3},
    ]
    model = model_of(build, features=features)
    export_model(model, tmp_path)
    export_keras(model, tmp_path / "model.keras")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path))
        signature = loaded.signature_def["serving_default"]
        kinds = {name: tf.as_dtype(tensor.dtype).name for name, tensor in signature.inputs.items()}
    assert kinds == {
        "depDelay": "float32",
        "weather_wind": "float64",
        "carrier": "string",
        "dest": "string",
        "at": "int64",
        "seats": "int32",
        "full": "bool",
        "v": "float32",
    }
    assert list(signature.outputs) == ["y"]
