"""`streamtrain models`: what a job has learned, listed and exported, and loaded by a process that knows nothing of
streamtrain."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import bson
import numpy as np
import pymongo
import pytest
import yaml
from pymongo import AsyncMongoClient

from streamtrain import config
from streamtrain.artifacts import open_store
from streamtrain.errors import EXIT_CONFIG, EXIT_DEPENDENCY, EXIT_INTERNAL, EXIT_OK, EXIT_USAGE
from streamtrain.registry.store import ManifestStore
from streamtrain.sandbox.mongo_server import ThreadedMongo, User
from streamtrain.types import Learned, Manifest, RoundCounts, Scores

pytestmark = pytest.mark.tensorflow

PASSWORD = "hunter2/pl@nted"
ENCODED = "hunter2%2Fpl%40nted"
SECONDS = 120.0

FEATURES: list[dict[str, Any]] = [
    {"field": "depDelay", "dtype": "float32", "missing": 0},
    {"field": "weather.wind", "dtype": "float32", "missing": 3.5},
    {"field": "carrier", "dtype": "string"},
    {"field": "dest", "dtype": "string", "buckets": 20},
    {"field": "at", "dtype": "datetime"},
    {"field": "v", "dtype": "float32", "length": 3},
]
DELAY = {"field": "delay", "dtype": "float32", "task": "regression"}
LATE = {"field": "late", "dtype": "bool", "task": "classification"}
BUILTIN = {"name": "delay", "source": "flights", "features": FEATURES, "labels": [DELAY]}
OWN = {
    "name": "late",
    "source": "flights",
    "features": [*FEATURES, {"field": "pages", "dtype": "string", "max_length": 4, "buckets": 30}],
    "labels": [DELAY, LATE],
    "model": "own_model:build",
}
OWN_MODEL = textwrap.dedent("""
    import keras

    @keras.saving.register_keras_serializable(package="own")
    class Scaled(keras.layers.Layer):
        def call(self, x):
            return x / 60.0

    def build(schema, hyper):
        print("a model may print")
        delay = keras.Input((1,), name="depDelay")
        carrier = keras.Input((1,), name="carrier", dtype="string")
        dest = keras.Input((), name="dest", dtype="int64")
        pages = keras.Input((4,), name="pages", dtype="int64")
        v = keras.Input((3,), name="v")
        words = keras.layers.StringLookup(vocabulary=["UA", "B6"])(carrier)
        joined = keras.layers.Concatenate()([
            Scaled()(delay),
            v,
            keras.layers.Flatten()(keras.layers.Embedding(3, 2)(words)),
            keras.layers.Embedding(20, 2)(dest),
            keras.layers.GRU(3)(keras.layers.Embedding(30, 2, mask_zero=True)(pages)),
        ])
        hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(8, "tanh")(joined))
        return keras.Model(
            [delay, carrier, dest, pages, v], [keras.layers.Dense(1)(hidden), keras.layers.Dense(1, "sigmoid")(hidden)]
        )
""")

DOCUMENTS: list[dict[str, Any]] = [
    {"depDelay": 12.5, "weather": {"wind": 3}, "carrier": "UA", "dest": "LAX", "at": 1_371_000_000_000},
    {"depDelay": None, "weather": {"wind": float("nan")}, "carrier": "never seen", "dest": "?", "at": -1},
    {"weather": {}, "carrier": "", "dest": "", "at": 1_900_000_000_000},
    {"depDelay": -3, "weather": {"wind": 40.0}, "carrier": "Zürich", "dest": "ÖÄÜ", "at": 0},
]
for _row, _document in enumerate(DOCUMENTS):
    _document["v"] = [_row * 0.5, -1.0, 2.0]
    _document["pages"] = [f"page {page}" for page in range(_row * 2)]  # of none, two, four and six pages

# What a client that has only the documents and `streamtrain.json` sends.
SENT: dict[str, list[Any]] = {
    "depDelay": [12.5, float("nan"), float("nan"), -3.0],
    "weather_wind": [3.0, float("nan"), float("nan"), 40.0],
    "carrier": [document["carrier"] for document in DOCUMENTS],
    "dest": [document["dest"] for document in DOCUMENTS],
    "at": [document["at"] for document in DOCUMENTS],
    "v": [document["v"] for document in DOCUMENTS],
}
PAGES = [(document["pages"][-4:] + [""] * 4)[:4] for document in DOCUMENTS]

STRANGER = textwrap.dedent("""
    import importlib.util, json, sys
    sys.path += json.loads(sys.argv[1])  # what is installed there; without the links of an editable install
    assert importlib.util.find_spec("streamtrain") is None
    import tensorflow as tf

    model = tf.saved_model.load(sys.argv[2])
    serve = model.signatures["serving_default"]
    kinds = {name: spec.dtype for name, spec in serve.structured_input_signature[1].items()}
    sent = json.load(sys.stdin)
    answers = serve(**{name: tf.constant(values, kinds[name]) for name, values in sent.items()})
    print(json.dumps({name: value.numpy().tolist() for name, value in answers.items()}))
""")

KERAS_STRANGER = textwrap.dedent("""
    import importlib.util, json, sys
    sys.path += json.loads(sys.argv[1])
    assert importlib.util.find_spec("streamtrain") is None
    import keras, own_model, tensorflow as tf

    sent = json.load(sys.stdin)
    kinds = {"dest": tf.int64, "pages": tf.int64, "carrier": tf.string}
    inputs = {name: tf.constant(values, kinds.get(name, tf.float32)) for name, values in sent.items()}
    model = keras.models.load_model(sys.argv[2] + "/model.keras")
    outputs = model([inputs[tensor.name] for tensor in model.inputs], training=False)
    print(json.dumps([output.numpy()[:, 0].tolist() for output in outputs]))
""")


class Saved:
    """Settings, a MongoDB that asks for a password, and jobs that have saved what they learned in its GridFS."""

    def __init__(self, mongo: ThreadedMongo, folder: Path) -> None:
        self.folder = folder
        self.uri = mongo.uri.replace("mongodb://", f"mongodb://trainer:{ENCODED}@").replace("/?", "/?authSource=admin&")
        (folder / "own_model.py").write_text(OWN_MODEL)
        self.write_settings(BUILTIN, OWN)

    def write_settings(self, *jobs: dict[str, Any]) -> None:
        source = {"name": "flights", "uri": self.uri, "database": "air", "collection": "flights"}
        settings = {"kafka": {"bootstrap_servers": "127.0.0.1:1"}, "sources": [source], "jobs": list(jobs)}
        (self.folder / "streamtrain.yaml").write_text(yaml.safe_dump(settings))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "streamtrain", *arguments],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd=self.folder,
            env=self.environment(),
            check=False,
        )
        for secret in (PASSWORD, ENCODED):
            assert secret not in done.stdout + done.stderr
        return done

    @staticmethod
    def environment() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("STREAMTRAIN")}

    def export(self, job: str, *arguments: str) -> dict[str, Any]:
        done = self.run("models", "export", job, "--to", "models", "--json", *arguments)
        assert done.returncode == EXIT_OK, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def save(self, job: config.Job, state: bytes, *, fingerprint: str, parent: Manifest | None = None) -> Manifest:
        options = {"kind": "gridfs", "uri": self.uri, "database": "streamtrain"}
        sequence = 0 if parent is None else parent.sequence + 1
        store = open_store(options)
        ref = store.put(f"{job.name}/l/e1-g1-r{sequence}/state.npz", state)
        manifest = Manifest(
            id=f"{job.name}/l/{sequence}",
            job=job.name,
            lineage="l",
            sequence=sequence,
            parent=None if parent is None else parent.id,
            epoch=1,
            generation=1,
            created_ms=1_764_547_200_000 + 1000 * sequence,
            topic="t.flights.0",
            topic_epoch=0,
            learned=(Learned(2**40, 7), Learned(5, 5)),
            window_begins=(0, 0),
            rounds=sequence + 1,
            steps=3,
            rows_learned=1012,
            counts=RoundCounts(learned=1012),
            scores={"delay": Scores(rows=2, weight=2.0, loss=5.0, sums={"absolute_error": 3.0, "squared_error": 5.0})},
            artifacts={"state": ref},
            schema_fingerprint=job.schema_().fingerprint(),
            model_fingerprint=fingerprint,
        )

        async def commit() -> None:
            client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(self.uri)
            await ManifestStore(database=client["streamtrain"], artifacts=store).commit(manifest, epoch=1)
            await client.close()

        asyncio.run(commit())
        store.close()
        return manifest


@pytest.fixture
def mongo() -> Iterator[ThreadedMongo]:
    server = ThreadedMongo(users=[User("trainer", PASSWORD)])
    server.start()
    yield server
    server.stop()


@pytest.fixture
def saved(mongo: ThreadedMongo, tmp_path: Path) -> Saved:
    return Saved(mongo, tmp_path)


def learned_model(job: config.Job, seed: int = 1) -> Any:
    """The job's model with weights that say something, in this process."""
    from streamtrain.trainer.model import JobModel

    model = JobModel(job=job)
    rng = np.random.default_rng(seed)
    for variable in model.keras.weights:
        value = np.asarray(variable.numpy())
        if value.dtype.kind == "f":
            variable.assign(np.abs(rng.normal(size=value.shape)).astype(value.dtype) + 0.1)
    return model


def expected(model: Any) -> dict[str, Any]:
    """What the job's model says of the documents, decoded as a worker decodes them."""
    import tensorflow as tf

    from streamtrain.trainer.decode import BAD, Decoder
    from streamtrain.trainer.model import TF_DTYPES

    labelled = [{**document, "delay": 1.0, "late": True} for document in DOCUMENTS]
    times = [{**document, "at": bson.DatetimeMS(document["at"])} for document in labelled]
    decoded = Decoder(model.schema).decode([bson.encode(document) for document in times])
    assert (decoded.outcome != BAD).all(), decoded.reasons
    columns = {f.field: tf.constant(decoded.columns[f.field], TF_DTYPES[f.dtype]) for f in model.schema.features}
    outputs = model.outputs(model.keras(model.inputs(columns), training=False))
    return {field: output.numpy() for field, output in outputs.items()}


def stranger(script: str, path: str, sent: dict[str, Any], *folders: Path) -> Any:
    """What a Python answers that has TensorFlow, but has never heard of streamtrain."""
    import keras

    installed = str(Path(keras.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, json.dumps([installed, *map(str, folders)]), path],
        input=json.dumps(sent),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd="/",
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def served(path: str, sent: dict[str, Any]) -> dict[str, Any]:
    """The same in this process, which has TensorFlow already."""
    import tensorflow as tf

    serve = tf.saved_model.load(path).signatures["serving_default"]
    kinds = {name: spec.dtype for name, spec in serve.structured_input_signature[1].items()}
    return {n: v.numpy() for n, v in serve(**{name: tf.constant(v, kinds[name]) for name, v in sent.items()}).items()}


def save_state(saved: Saved, job: config.Job, model: Any, parent: Manifest | None = None) -> Manifest:
    from streamtrain.trainer.checkpoint import state_bytes

    return saved.save(job, state_bytes(model, rank=0), fingerprint=model.fingerprint(), parent=parent)


def test_a_stranger_gets_the_same_answers_from_the_builtin_model(saved: Saved) -> None:
    job = config.Job.model_validate(BUILTIN)
    model = learned_model(job)
    manifest = save_state(saved, job, model)
    found = saved.export("delay")
    path = saved.folder / "models" / "delay" / str(found["version"])
    assert found["path"] == str(path)
    assert [each.name for each in (saved.folder / "models" / "delay").iterdir()] == [path.name]
    assert found["files"] == [
        "assets", "fingerprint.pb", "model.keras", "saved_model.pb", "streamtrain.json", "variables",
    ]  # fmt: skip
    answers = stranger(STRANGER, found["path"], SENT)
    np.testing.assert_allclose(answers["delay"], expected(model)["delay"], rtol=1e-5)
    assert len(set(answers["delay"])) == len(DOCUMENTS)

    text = (path / "streamtrain.json").read_text()
    record = json.loads(text)
    assert record["manifest"]["id"] == manifest.id
    assert record["manifest"]["offsets"] == [2**40, 5]
    assert record["scores"]["delay"]["mae"] == 1.5
    assert record["signature"]["inputs"]["weather.wind"] == "weather_wind"
    assert record["schema"]["features"][1] == {
        **record["schema"]["features"][1],
        "field": "weather.wind",
        "missing": 3.5,
    }
    assert record["fingerprints"] == {"schema": job.schema_().fingerprint(), "model": model.fingerprint()}
    assert PASSWORD not in text
    assert ENCODED not in text
    assert "mongodb" not in text


def test_a_stranger_gets_the_same_answers_from_a_model_of_ones_own_in_both_formats(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    monkeypatch.syspath_prepend(saved.folder)
    job = config.Job.model_validate(OWN)
    model = learned_model(job)
    save_state(saved, job, model)
    found = saved.export("late")
    wanted = expected(model)
    answers = stranger(STRANGER, found["path"], {**SENT, "pages": PAGES})
    assert sorted(answers) == ["delay", "late", "late_probabilities"]
    np.testing.assert_allclose(answers["delay"], wanted["delay"], rtol=1e-5)
    np.testing.assert_allclose(np.array(answers["late_probabilities"])[:, 1], wanted["late"], rtol=1e-5)
    assert answers["late"] == (wanted["late"] > 0.5).astype(int).tolist()

    places = 1 + tf.strings.to_hash_bucket_fast(PAGES, 29).numpy()
    taken = {
        "depDelay": [[12.5], [0.0], [0.0], [-3.0]],
        "carrier": [[carrier] for carrier in SENT["carrier"]],
        "dest": tf.strings.to_hash_bucket_fast(SENT["dest"], 20).numpy().tolist(),
        "pages": np.where(np.array(PAGES) == "", 0, places).tolist(),
        "v": SENT["v"],
    }
    delay, late = stranger(KERAS_STRANGER, found["path"], taken, saved.folder)
    np.testing.assert_allclose(delay, wanted["delay"], rtol=1e-5)
    np.testing.assert_allclose(late, wanted["late"], rtol=1e-5)


def test_any_manifest_that_is_kept_can_be_exported_and_each_export_is_served_next(saved: Saved) -> None:
    job = config.Job.model_validate(BUILTIN)
    models = [learned_model(job, seed) for seed in (1, 2)]
    first = save_state(saved, job, models[0])
    second = save_state(saved, job, models[1], first)
    listed = json.loads(saved.run("models", "list", "--json").stdout)["jobs"]
    assert listed["late"] == []
    assert [(each["id"], each["head"], each["fits"]) for each in listed["delay"]] == [
        (second.id, True, True),
        (first.id, False, True),
    ]
    text = saved.run("models", "list", "delay").stdout
    assert f"* {second.id}  2025-12-01 00:00:01Z  1,012 rows learned" in text
    assert "delay: loss 2.5, mae 1.5" in text

    newer = saved.export("delay", "--format", "savedmodel")
    older = saved.export("delay", "--format", "savedmodel", "--manifest", first.id)
    assert (newer["manifest"], older["manifest"]) == (second.id, first.id)
    assert older["version"] > newer["version"]
    assert "model.keras" not in older["files"]
    for found, model in ((newer, models[1]), (older, models[0])):
        np.testing.assert_allclose(served(found["path"], SENT)["delay"], expected(model)["delay"], rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["delay"], EXIT_USAGE, "job delay has saved nothing yet"),
        (["dely"], EXIT_USAGE, "there is no job 'dely'"),
        (["delay", "--manifest", "delay/l/7"], EXIT_USAGE, "job delay has no manifest 'delay/l/7'"),
    ],
)
def test_what_is_not_there_cannot_be_exported(saved: Saved, arguments: list[str], code: int, said: str) -> None:
    done = saved.run("models", "export", *arguments, "--to", "models")
    assert done.returncode == code
    assert said in done.stderr
    assert not (saved.folder / "models").exists()


def test_what_cannot_be_exported_is_told_and_leaves_nothing(saved: Saved) -> None:
    job = config.Job.model_validate(BUILTIN)
    manifest = save_state(saved, job, learned_model(job))

    def refused(*arguments: str) -> tuple[int, dict[str, Any]]:
        done = saved.run("models", "export", "delay", "--json", *arguments)
        return done.returncode, json.loads(done.stdout)["error"]

    (saved.folder / "file").touch()
    code, error = refused("--to", "file")
    assert (code, error["kind"]) == (EXIT_DEPENDENCY, "DependencyError")
    assert "nothing can be exported to" in error["message"]

    saved.write_settings({**BUILTIN, "model": "own_model:kill"})
    (saved.folder / "own_model.py").write_text(
        "import os, signal\ndef kill(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code, error = refused("--to", "models")
    assert (code, error["kind"]) == (EXIT_CONFIG, "ModelError")
    assert "the process ended with status -9" in error["message"]

    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(saved.uri)
    client["streamtrain"]["checkpoints.chunks"].delete_many({"files_id": manifest.artifacts["state"].name})
    client.close()
    code, error = refused("--to", "models")
    assert (code, error["kind"]) == (EXIT_INTERNAL, "ArtifactError")
    assert list((saved.folder / "models" / "delay").iterdir()) == []


def test_an_export_that_is_killed_leaves_no_version_and_the_next_one_clears_up(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of writing: a layer that waits when it is exported gives the time for it."""
    slow = OWN_MODEL + textwrap.dedent("""
        import os, pathlib, time

        @keras.saving.register_keras_serializable(package="own")
        class Slow(keras.layers.Layer):
            def call(self, x):
                place = pathlib.Path("models/late")
                if os.environ.get("WAIT") and place.exists() and list(place.glob(".arriving-*/version")):
                    (place / "waits").write_text(str(os.getpid()))
                    time.sleep(600)
                return x

        def slow(schema, hyper):
            model = build(schema, hyper)
            return keras.Model(model.inputs, [Slow()(output) for output in model.outputs])
    """)
    (saved.folder / "own_model.py").write_text(slow)
    monkeypatch.syspath_prepend(saved.folder)
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    written = {**OWN, "model": "own_model:slow"}
    saved.write_settings(written)
    job = config.Job.model_validate(written)
    save_state(saved, job, learned_model(job))
    folder = saved.folder / "models" / "late"
    command = [sys.executable, "-m", "streamtrain", "models", "export", "late", "--to", "models"]
    process = subprocess.Popen(
        command, cwd=saved.folder, env=saved.environment() | {"WAIT": "1"}, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = monotonic() + SECONDS
        while not (folder / "waits").exists() or not (folder / "waits").read_text():
            assert monotonic() < deadline
            assert process.poll() is None, process.stderr and process.stderr.read()
            sleep(0.05)
        os.kill(int((folder / "waits").read_text()), signal.SIGKILL)
        assert process.wait(SECONDS) == EXIT_CONFIG
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()
    (folder / "waits").unlink()
    left = [path.name for path in folder.iterdir()]
    assert len(left) == 1
    assert left[0].startswith(".arriving-")
    found = saved.export("late")
    assert [path.name for path in folder.iterdir()] == [str(found["version"])]
