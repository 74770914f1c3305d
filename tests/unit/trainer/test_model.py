"""What is wrong with a user's model is said before a document is read, with what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamtrain.errors import ModelError
from streamtrain.types import Schema
from tests.unit.trainer.loop_case import BINARY, REGRESSION, VECTOR, job_of

pytestmark = pytest.mark.tensorflow

THREE = {**BINARY, "classes": 3}
MIXED = (
    {"field": "a.b", "dtype": "float32"},
    {"field": "word", "dtype": "string"},
    {"field": "city", "dtype": "string", "buckets": 5},
    {"field": "v", "dtype": "float32", "length": 3},
)


@pytest.fixture
def make(strategy: Any) -> Callable[..., Any]:
    def make(builder: Callable[..., Any] | None = None, **options: Any) -> Any:
        from streamtrain.trainer.model import JobModel, set_precision

        job = job_of(**options)
        set_precision(job.dtype)
        with strategy.scope():
            return JobModel(job=job, builder=builder)

    return make


def dense(units: int = 1, activation: str | None = None, **compile_options: Any) -> Callable[..., Any]:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        model = keras.Sequential([keras.layers.Dense(units, activation)])
        if compile_options:
            model.compile(**compile_options)
        return model

    return build


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        (None, "importing failed: ModuleNotFoundError", "PYTHONPATH"),
        ("import nothing_like_it", "importing failed: ModuleNotFoundError", "PYTHONPATH"),
        ("1 / 0", "importing failed: ZeroDivisionError", "shows where"),
        ("x = 1", "has no 'build'", "build(schema, hyper)"),
        ("build = 3", "is a int, not a function", "build(schema, hyper)"),
    ],
)
def test_a_builder_that_cannot_be_found_says_why(
    source: str | None, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamtrain.trainer.model import find_builder

    name = f"user_module_{abs(hash(source))}"
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError) as raised:
        find_builder(f"{name}:build")
    sys.modules.pop(name, None)
    assert message in raised.value.message
    assert hint in raised.value.hint


def _raises(schema: Schema, hyper: dict[str, Any]) -> Any:
    raise KeyError("units")


def _wrong_arguments() -> Any:
    return None


def _frozen(schema: Schema, hyper: dict[str, Any]) -> Any:
    model = dense()(schema, hyper)
    model.trainable = False
    return model


def _wrong_input_name(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    x = keras.Input((2,), name="other")
    y = keras.Input((2,), name="x")
    return keras.Model([x, y], keras.layers.Dense(1)(keras.layers.Add()([x, y])))


def _two_outputs(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    x = keras.Input((2,), name="x")
    return keras.Model(x, [keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)])


def _named_output(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    x = keras.Input((2,), name="x")
    return keras.Model(x, {"z": keras.layers.Dense(1)(x)})


@pytest.mark.parametrize(
    ("builder", "label", "message", "hint"),
    [
        (_raises, REGRESSION, "raised KeyError: 'units'", "build(schema, hyper)"),
        (_wrong_arguments, REGRESSION, "raised TypeError", "build(schema, hyper)"),
        (lambda schema, hyper: "model", REGRESSION, "returned str", "keras.Model"),
        (lambda schema, hyper: None, REGRESSION, "returned NoneType", "keras.Model"),
        (_frozen, REGRESSION, "no trainable weights", "frozen"),
        (_wrong_input_name, REGRESSION, "cannot take the job's features", "'x'"),
        (_two_outputs, REGRESSION, "2 outputs for 1 labels", "one output for each label"),
        (_named_output, REGRESSION, "gives the outputs ['z']", "['y']"),
        (dense(2), REGRESSION, "['batch', 2] for the regression label", "[batch, 1]"),
        (dense(4), THREE, "['batch', 4] for the classification label", "[batch, 3]"),
        (dense(1), THREE, "['batch', 1] for the classification label", "[batch, 3]"),
        (dense(loss=lambda y, p: (y - p) ** 2 @ 1), REGRESSION, "the loss of model", "y_true [batch, 1]"),
        (dense(loss="no_such_loss"), REGRESSION, "is unknown: ValueError", "keras.losses"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_advice(
    make: Callable[..., Any], builder: Callable[..., Any], label: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(ModelError) as raised:
        make(builder, labels=[label])
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_loss_that_averages_by_itself_is_refused(make: Callable[..., Any]) -> None:
    import keras

    with pytest.raises(ModelError, match="gives shape"):
        make(dense(loss=lambda y, p: keras.ops.mean(keras.ops.square(y - p))))


def test_accumulated_gradients_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="accumulates gradients"):
        make(dense(), optimizer={"class_name": "sgd", "gradient_accumulation_steps": 2})


def test_an_unknown_optimizer_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="optimizer cannot be made"):
        make(dense(), optimizer={"class_name": "magic"})


def test_the_configured_optimizer_wins_over_the_compiled_one_and_adam_is_the_default(make: Callable[..., Any]) -> None:
    compiled = dense(optimizer="rmsprop", loss="mse")
    assert type(make(dense()).optimizer).__name__ == "Adam"
    assert type(make(compiled).optimizer).__name__ == "RMSprop"
    configured = make(compiled, optimizer={"class_name": "sgd", "config": {"learning_rate": 0.5}}).optimizer
    assert type(configured).__name__ == "SGD"
    assert float(configured.learning_rate.numpy()) == 0.5
    assert type(make(dense(), optimizer={"name": "adamw"}).optimizer).__name__ == "AdamW"


@pytest.mark.parametrize(
    ("builder", "label", "logits"),
    [
        (dense(1, "sigmoid"), BINARY, False),
        (dense(2, "softmax"), BINARY, False),
        (dense(3), THREE, True),
        (dense(1), BINARY, True),
    ],
)
def test_logits_and_probabilities_give_the_same_loss_for_the_same_belief(
    make: Callable[..., Any], builder: Callable[..., Any], label: dict[str, Any], logits: bool
) -> None:
    import tensorflow as tf

    model = make(builder, labels=[label])
    assert model.losses.logits == {"y": logits}
    outputs = model.outputs(model.keras(model.inputs({"x": tf.zeros((2, 2))})))
    losses = model.losses.rows({"y": tf.zeros(2)}, outputs)["y"]
    np.testing.assert_allclose(losses, np.log(label.get("classes", 2)), rtol=1e-5)


@pytest.mark.parametrize("from_logits", [True, False])
def test_a_compiled_loss_says_by_itself_whether_it_takes_logits(make: Callable[..., Any], from_logits: bool) -> None:
    import keras

    loss = keras.losses.BinaryCrossentropy(from_logits=from_logits)
    assert make(dense(loss=loss), labels=[BINARY]).losses.logits == {"y": from_logits}


@pytest.mark.parametrize("form", ["operation", "layer", "reshaped", "subclassed"])
def test_a_sigmoid_is_found_wherever_the_model_ends_in_it(make: Callable[..., Any], form: str) -> None:
    import keras

    class Subclassed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.last = keras.layers.Dense(1, "sigmoid")
            self.first = keras.layers.Dense(4)

        def call(self, inputs: dict[str, Any]) -> Any:
            return self.last(self.first(inputs["x"]))

    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        if form == "subclassed":
            return Subclassed()
        x = keras.Input((2,), name="x")
        score = keras.layers.Dense(1)(x)
        if form == "operation":
            return keras.Model(x, keras.ops.sigmoid(score))
        probability = keras.layers.Activation("sigmoid")(score)
        return keras.Model(x, keras.layers.Flatten()(probability) if form == "reshaped" else probability)

    assert make(build, labels=[BINARY]).losses.logits == {"y": False}


def test_a_variable_that_was_made_before_is_named(make: Callable[..., Any]) -> None:
    import keras

    before = keras.layers.Dense(1)
    before.build((None, 2))
    with pytest.raises(ModelError, match=r"dense.*/kernel was made before the model's function was called"):
        make(lambda schema, hyper: keras.Sequential([keras.Input((2,)), before]))


LABELS = [REGRESSION, {**BINARY, "field": "b"}, {**THREE, "field": "c"}]


def several(form: str, **compile_options: Any) -> Callable[..., Any]:
    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        x = keras.Input((2,), name="x")
        y = keras.layers.Dense(1, name="out_y", kernel_initializer="zeros")(x)
        b = keras.layers.Dense(1, "sigmoid", name="out_b", kernel_initializer="zeros")(x)
        c = keras.layers.Dense(3, name="out_c", kernel_initializer="zeros")(x)
        model = keras.Model(x, [y, b, c] if form == "list" else {"c": c, "y": y, "b": b})
        if compile_options:
            model.compile(**compile_options)
        return model

    return build


@pytest.mark.parametrize("form", ["list", "dict"])
def test_several_outputs_have_a_loss_and_a_kind_each(make: Callable[..., Any], form: str) -> None:
    import tensorflow as tf

    model = make(several(form), labels=LABELS)
    assert {label: model.losses.logits[label] for label in "bc"} == {"b": False, "c": True}
    outputs = model.outputs(model.keras(model.inputs({"x": tf.zeros((2, 2))})))
    rows = model.losses.rows({"y": tf.constant([1.0, 2.0]), "b": tf.zeros(2), "c": tf.zeros(2)}, outputs)
    np.testing.assert_allclose(rows["y"], [1.0, 4.0])
    np.testing.assert_allclose(rows["b"], np.log(2), rtol=1e-5)
    np.testing.assert_allclose(rows["c"], np.log(3), rtol=1e-5)
    np.testing.assert_allclose(model.losses.total(rows), np.array([1.0, 4.0]) + np.log(2) + np.log(3), rtol=1e-5)


@pytest.mark.parametrize(
    ("form", "loss", "weights"),
    [
        ("list", ["mae", None, None], [0.5, 1, 0]),
        ("list", [lambda y, p: abs(y - p), None, None], [0.5, 1, 0]),
        ("list", {"out_y": "mae"}, {"out_y": 0.5, "out_c": 0}),
        ("dict", {"y": "mae"}, {"y": 0.5, "c": 0}),
    ],
)
def test_compiled_losses_and_their_weights_belong_to_labels(
    make: Callable[..., Any], form: str, loss: Any, weights: Any
) -> None:
    import tensorflow as tf

    model = make(several(form, loss=loss, loss_weights=weights), labels=LABELS)
    outputs = model.outputs(model.keras(model.inputs({"x": tf.zeros((2, 2))})))
    rows = model.losses.rows({"y": tf.constant([1.0, 2.0]), "b": tf.zeros(2), "c": tf.zeros(2)}, outputs)
    np.testing.assert_allclose(rows["y"], [1.0, 2.0])
    np.testing.assert_allclose(model.losses.total(rows), 0.5 * np.array([1.0, 2.0]) + np.log(2), rtol=1e-5)


def test_weights_count_also_without_a_compiled_loss(make: Callable[..., Any]) -> None:
    import tensorflow as tf

    model = make(several("list", loss_weights=[0, 0, 3]), labels=LABELS)
    rows = {"y": tf.constant([1.0]), "b": tf.constant([1.0]), "c": tf.constant([2.0])}
    np.testing.assert_allclose(model.losses.total(rows), [6.0])


@pytest.mark.parametrize(
    ("compile_options", "message", "hint"),
    [
        ({"loss": {"z": "mse"}}, "names 'z', which is no label", "['y', 'b', 'c']"),
        ({"loss": ["mse", "mse"]}, "has 2 entries for 3 labels", "in the order"),
        ({"loss": "mse", "loss_weights": [1, -1, 1]}, "-1 for 'b' is no number", "loss_weights"),
        ({"loss": "mse", "loss_weights": {"z": 1}}, "names 'z'", "['y', 'b', 'c']"),
    ],
)
def test_losses_that_belong_to_no_label_are_refused(
    make: Callable[..., Any], compile_options: Any, message: str, hint: str
) -> None:
    with pytest.raises(ModelError) as raised:
        make(several("list", **compile_options), labels=LABELS)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_hashed_list_keeps_0_for_its_padding(make: Callable[..., Any]) -> None:
    import tensorflow as tf

    def build(schema: Schema, hyper: dict[str, Any]) -> Any:
        import keras

        tags = keras.Input((3,), name="tags", dtype="int64")
        return keras.Model(tags, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(4, 2)(tags))))

    model = make(build, features=({"field": "tags", "dtype": "string", "max_length": 3, "buckets": 4},))
    words = tf.constant([["a", "", ""], ["b", "c", "d"]])
    hashed = model.inputs({"tags": words}).numpy()
    assert hashed[0, 1:].tolist() == [0, 0]
    assert set(hashed[1]) | {hashed[0, 0]} <= {1, 2, 3}


def _named_inputs(schema: Schema, hyper: dict[str, Any]) -> list[Any]:
    import keras

    return [
        keras.Input((), name="a.b"),
        keras.Input((1,), name="word", dtype="string"),
        keras.Input((), name="city", dtype="int64"),
        keras.Input((3,), name="v"),
    ]


def _over(inputs: Any, a: Any, word: Any, city: Any, v: Any) -> Any:
    import keras

    hashed = keras.layers.Flatten()(keras.layers.Embedding(4, 2)(keras.layers.Hashing(4)(word)))
    parts = [keras.layers.Reshape((1,))(a), hashed, keras.layers.Embedding(5, 2)(city), v]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))


def _listed(schema: Schema, hyper: dict[str, Any]) -> Any:
    a, word, city, v = _named_inputs(schema, hyper)
    return _over([v, city, word, a], a, word, city, v)  # in another order than the features


def _mapped(schema: Schema, hyper: dict[str, Any]) -> Any:
    a, word, city, v = _named_inputs(schema, hyper)
    return _over({"v": v, "city": city, "word": word, "a.b": a}, a, word, city, v)


@pytest.mark.parametrize("builder", [_listed, _mapped])
def test_inputs_are_found_by_name_whatever_their_order_and_rank(
    make: Callable[..., Any], builder: Callable[..., Any]
) -> None:
    import tensorflow as tf

    model = make(builder, features=MIXED)
    columns = {
        "a.b": tf.constant([1.0, 2.0]),
        "word": tf.constant([b"x", b"\xc3\xa9"]),
        "city": tf.constant(["Bern", "Rome"]),
        "v": tf.ones((2, 3)),
    }
    given = model.inputs(columns)
    by_name = given if isinstance(given, dict) else dict(zip(("v", "city", "word", "a.b"), given, strict=True))
    assert by_name["word"].shape == (2, 1)
    assert by_name["city"].numpy().tolist() == [
        int(tf.strings.to_hash_bucket_fast(name, 5).numpy()) for name in ("Bern", "Rome")
    ]
    assert model.outputs(model.keras(given))["y"].shape == (2,)


def test_a_subclassed_model_gets_all_columns_by_field(make: Callable[..., Any]) -> None:
    import keras

    class Subclassed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, inputs: dict[str, Any]) -> Any:
            return {"y": self.layer(inputs["x"])}

    assert make(lambda schema, hyper: Subclassed()).outputs({"y": np.zeros((2, 1))})["y"].shape == (2,)


@pytest.mark.parametrize(
    ("layer", "differs"),
    [
        ("Dropout(0.1)", True),
        ("Dropout(0.0)", False),
        ("GaussianNoise(0.1)", True),
        ("BatchNormalization()", True),
        ("BatchNormalization(trainable=False)", False),
        ("LayerNormalization()", False),
        ("Dense(2)", False),
        ("RandomRotation(0.1)", True),
        ("SpectralNormalization(keras.layers.Dense(2))", True),
    ],
)
def test_layers_that_behave_differently_in_training_are_known(
    make: Callable[..., Any], layer: str, differs: bool
) -> None:
    import keras

    from streamtrain.trainer.model import _differs_in_training

    made = eval(f"keras.layers.{layer}", {"keras": keras})
    assert _differs_in_training(made) is differs


def test_the_fingerprint_follows_shapes_schema_and_optimizer_and_nothing_else(make: Callable[..., Any]) -> None:
    base = make(dense()).fingerprint()
    assert make(dense()).fingerprint() == base  # layer names count up within a process
    assert make(dense(), hyper={"unused": 1}, seed=3).fingerprint() == base
    wider = ({**VECTOR[0], "length": 3},)
    others = [
        make(dense(), features=wider),
        make(dense(), optimizer={"class_name": "sgd"}),
        make(dense(), features=({**VECTOR[0], "missing": 0.0},)),
    ]
    assert len({base, *(other.fingerprint() for other in others)}) == 4


def test_weights_are_the_same_on_every_rank_and_differ_by_seed(make: Callable[..., Any]) -> None:
    first, again, other = (make(dense(), seed=seed).keras.weights[0].numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
