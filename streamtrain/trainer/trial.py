"""`python -m streamtrain.trainer.trial`: tries a job's model as a worker would train it, on given documents. What it
finds goes to stdout, a JSON line for each stage; a process of its own, so that whatever the model does stays there."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import bson
import numpy as np

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.errors import ModelError, StreamtrainError
from streamtrain.trainer.worker import quieten

STEPS = 10
AFTER_RESTORE = 3  # steps that a restored model takes beside the one that it was saved from
LARGEST_BATCH = 256
_SHARES = (0, 1, 2, 3, 4)  # of the partitions in a step's rows: uneven, and one has none
_ORDERS = (1, 2)  # seeds of the orders of rows whose difference is what float arithmetic alone makes


class Trial:
    """The stages, in order. Each gives what the verdicts are made from; what it raises ends the trial."""

    def __init__(self, *, job: config.Job, documents: list[bytes], folder: Path, rank: int, world: int) -> None:
        import tensorflow as tf

        from streamtrain.trainer.model import set_precision

        tf.config.threading.set_intra_op_parallelism_threads(1)  # one order of adding up
        tf.config.threading.set_inter_op_parallelism_threads(2)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self._job, self._documents, self._folder = job, documents, folder
        self._rank, self._world = rank, world
        self._built: list[Any] = []
        set_precision(job.dtype)

    def alone(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """What a single worker shows."""
        yield "build", self.build
        yield "decode", self.decode
        yield "train", self.train
        yield "order", self.order
        yield "restore", self.restore
        yield "keras", self.keras
        yield "export", self.export

    def beside(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """One of several workers, which starts with the weights that `alone` has left."""
        yield "build", self.build
        yield "decode", self.decode
        yield "train", self.train

    def build(self) -> dict[str, Any]:
        from streamtrain.trainer import inspection

        self._model, self._loop = self._made()
        found = inspection.traits(self._model)
        self._loop.prepare()
        first = self._folder / "first.npz"
        if self._world == 1:
            self._save(first)
        else:
            self._restore(self._model, first)
        return found

    def decode(self) -> dict[str, Any]:
        from streamtrain.trainer.decode import LABELLED, WAITING, Decoder
        from streamtrain.trainer.filtering import NO, Filtering
        from streamtrain.trainer.selection import Selection

        documents = self._documents
        if self._job.filter is not None:
            answers = Filtering(self._job.filter).answers(documents)
            documents = [document for document, answer in zip(documents, answers, strict=True) if answer != NO]
        decoded = Decoder.of(self._job).decode(documents)
        labelled = np.flatnonzero(decoded.outcome == LABELLED)
        self._columns = {name: column[labelled] for name, column in decoded.columns.items()}
        self._labels = {name: column[labelled] for name, column in decoded.labels.items()}
        given = np.ones(len(labelled)) if decoded.weights is None else decoded.weights[labelled]
        self._weights = Selection.of(self._job).weights(self._labels, given)
        return {
            "documents": len(self._documents),
            "filtered": len(self._documents) - len(documents),
            "labelled": len(labelled),
            "waiting": int((decoded.outcome == WAITING).sum()),
            "reasons": dict(Counter(decoded.reasons.values())),
        }

    def train(self) -> dict[str, Any]:
        before = [np.array(v.numpy()) for v in self._model.keras.trainable_variables]
        seeds = [np.array(seed.numpy()) for seed in self._model.seeds]
        losses, refused = self._learn(self._loop, 0, STEPS)
        self._save(self._folder / f"trained-{self._world}-{self._rank}.npz")
        unmoved = [
            variable.path
            for variable, was in zip(self._model.keras.trainable_variables, before, strict=True)
            if np.array_equal(was, np.array(variable.numpy()))
        ]
        drawn = [
            seed.path
            for seed, was in zip(self._model.seeds, seeds, strict=True)
            if not np.array_equal(was, np.array(seed.numpy()))
        ]
        return {"steps": STEPS, "losses": losses, "refused": refused, "unmoved": unmoved, "random": drawn}

    def order(self) -> dict[str, Any]:
        """How far apart the rows' order within a batch alone drives the weights."""
        for seed in _ORDERS:
            model, loop = self._made()
            self._save(self._folder / "start.npz", model)
            loop.prepare()
            self._restore(model, self._folder / "first.npz")
            self._learn(loop, 0, STEPS, order=seed)
            self._save(self._folder / f"order-{seed}.npz", model)
        return {"orders": [f"order-{seed}.npz" for seed in _ORDERS]}

    def restore(self) -> dict[str, Any]:
        other, loop = self._made()
        # Not the very first model of the process: Keras draws a number more for it.
        same_start = _same(self._folder / "start.npz", self._save(self._folder / "another-start.npz", other))
        loop.prepare()
        trained = self._folder / f"trained-{self._world}-{self._rank}.npz"
        self._restore(other, trained)
        restored = self._save(self._folder / "restored.npz", other)
        self._learn(self._loop, STEPS, AFTER_RESTORE)
        self._learn(loop, STEPS, AFTER_RESTORE)
        self._save(self._folder / "went-on.npz")
        self._save(self._folder / "restored-went-on.npz", other)
        return {"same_start": same_start, "bit_for_bit": _same(trained, restored)}

    def keras(self) -> dict[str, Any]:
        from streamtrain.trainer.export import export_keras

        export_keras(self._model, self._folder / "model.keras", documents=self._documents)
        return {}

    def export(self) -> dict[str, Any]:
        from streamtrain.trainer.export import export_model

        signature = export_model(self._model, self._folder / "export", documents=self._documents)
        return {"inputs": dict(signature.inputs)}

    @property
    def rows(self) -> int:
        """Labelled rows of the documents."""
        return len(next(iter(self._labels.values())))

    # ------------------------------------------------------------------ parts

    def _made(self) -> tuple[Any, Any]:
        from streamtrain.trainer.loop import Loop
        from streamtrain.trainer.model import JobModel

        with self._strategy.scope():
            model = JobModel(job=self._job)
        if any(model.keras is other for other in self._built):
            raise ModelError(
                "the model's function returned the same model twice", hint="make a new keras.Model at every call"
            )
        self._built.append(model.keras)
        loop = Loop(
            strategy=self._strategy,
            model=model,
            partitions=len(_SHARES),
            clock=SystemClock(),
            on_progress=lambda stage, done: None,
        )
        return model, loop

    def _learn(self, loop: Any, first: int, steps: int, *, order: int = 0) -> tuple[dict[str, list[float]], int]:
        """A round for each step; the losses of each label, and how many rows the model refused."""
        from streamtrain import scores
        from streamtrain.trainer.rows import RoundRows
        from streamtrain.types import Round, RoundCounts

        losses: dict[str, list[float]] = {label.field: [] for label in self._job.schema_().labels}
        refused = 0
        batch = min(self._job.round.batch_size, LARGEST_BATCH)
        for number in range(first, first + steps):
            rows = tuple(
                part for part in self._rows(number, batch, order) if part.partition % self._world == self._rank
            )
            read = RoundRows(Round(number, (), (), (), 0, batch), rows, {}, RoundCounts(), {}, {}, 0, 0)
            report = loop.run(read, careful=True)
            refused += sum(report.dead_letter_reasons.values())
            for field, found in report.scores.items():
                loss = scores.loss(found)
                losses[field].append(float("nan") if loss is None else loss)
        return losses, refused

    def _rows(self, number: int, batch: int, order: int) -> Iterator[Any]:
        """The batch of a step by partition; the sample again and again."""
        from streamtrain.trainer.rows import Rows

        chosen = np.arange(number * batch, (number + 1) * batch) % self.rows
        bounds = np.cumsum((0, *_SHARES)) * batch // sum(_SHARES)
        for partition, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            part = chosen[begin:end]
            if order:
                part = np.random.default_rng([order, number, partition]).permutation(part)
            n = len(part)
            yield Rows(
                partition=partition,
                columns={name: column[part] for name, column in self._columns.items()},
                labels={name: column[part] for name, column in self._labels.items()},
                weights=self._weights[part],
                scored=np.ones(n, np.bool_),
                wall_time_ms=np.zeros(n, np.int64),
                offsets=np.arange(n),
            )

    def _save(self, path: Path, model: Any = None) -> Path:
        from streamtrain.trainer.checkpoint import state_bytes

        path.write_bytes(state_bytes(self._model if model is None else model, rank=self._rank))
        return path

    def _restore(self, model: Any, path: Path) -> None:
        from streamtrain.trainer.checkpoint import restore_state

        restore_state(model, path, rank=self._rank)


def _same(one: Path, other: Path) -> bool:
    with np.load(one) as left, np.load(other) as right:
        return all(np.array_equal(left[name], right[name]) for name in left.files)


def _import_file(name: str, path: str) -> None:
    """Makes the module that a test has loaded known here under the same name."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{path} cannot be imported", hint="define the model's function in a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"importing {path} failed: {type(error).__name__}: {error}") from error


def run(given: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """given: job, documents (a file of BSON documents), folder, rank, world, and perhaps module and its file."""
    stage = "build"
    try:
        trial = Trial(
            job=config.Job.model_validate(given["job"]),
            documents=[bytes(raw.raw) for raw in _documents(Path(given["documents"]))],
            folder=Path(given["folder"]),
            rank=given["rank"],
            world=given["world"],
        )
        if given.get("file"):
            _import_file(given["module"], given["file"])
        for stage, do in trial.alone() if given["world"] == 1 else trial.beside():
            try:
                say({"stage": stage, "found": do()})
            except ModelError as error:
                say({"stage": stage, "error": _told(error)})
                if stage not in ("keras", "export"):  # the others are the ground that the next ones stand on
                    return
            if stage == "decode" and not trial.rows:
                return
    except Exception as error:  # noqa: BLE001  whatever the model raises is the answer
        say({"stage": stage, "error": _told(error)})


def _documents(path: Path) -> list[Any]:
    from bson.raw_bson import RawBSONDocument

    options: Any = bson.CodecOptions(document_class=RawBSONDocument)
    return list(bson.decode_all(path.read_bytes(), options))


def _told(error: Exception) -> dict[str, str]:
    if isinstance(error, StreamtrainError):
        return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    text = str(error).strip()[:1000]
    return {"kind": type(error).__name__, "message": f"{type(error).__name__}: {text}", "hint": ""}


def main() -> None:
    """Reads what to do, as JSON, from stdin. What the model prints goes to stderr."""
    quieten(os.environ)
    given = json.loads(sys.stdin.read())
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            run(given, lambda line: _say(out, line))


def _say(out: IO[str], line: dict[str, Any]) -> None:
    out.write(json.dumps(line) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
