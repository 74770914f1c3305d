"""The second ledger (I2): every version is learned as often as it should be, with labels that come late, never, or
after they were given up, with updates and deletes in between, whatever dies."""

from __future__ import annotations

import heapq
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import numpy as np
import pymongo
import pytest

from streamtrain import config
from streamtrain.artifacts import GridFSStore
from streamtrain.registry.manifests import from_stored
from streamtrain.sandbox.mongo_server import MongoProcess
from streamtrain.types import Manifest
from tests.deployment import Deployment, one_job, wait_until

VERSIONS = 3
DOCUMENTS = 20_000  # at most
PATIENCE_S = 4.0
EARLY_S, LATE_S = 3.0, 5.0  # by MongoDB's clock, whose seconds are whole: surely before it is over, surely after
TICK_S = 0.25
SEED = 20261201
TRAINING_AGAIN_S = 60.0
TICKER = VERSIONS * DOCUMENTS  # the slot of documents that only keep the stream's time going

LABEL = {"y": 0.0}


@dataclass(frozen=True)
class Story:
    """What becomes of a document. steps: (seconds after the first version, the update's `$set` and `$unset` without
    the slot; None: a delete). learned: times, by version."""

    labelled: bool
    steps: tuple[tuple[float, dict[str, Any] | None], ...]
    learned: tuple[int, ...]


UNCHANGED: dict[str, Any] = {"$set": {}}
STORIES = (
    Story(True, ((1.0, UNCHANGED),), (1, 1, 0)),
    Story(False, ((1.5, {"$set": LABEL}),), (0, 1, 0)),
    Story(False, (), (1, 0, 0)),
    Story(False, ((1.0, UNCHANGED),), (0, 1, 0)),
    Story(False, ((8.0, {"$set": LABEL}),), (1, 1, 0)),
    Story(False, ((1.0, None),), (0, 0, 0)),
    Story(True, ((1.0, None),), (1, 0, 0)),
    Story(False, ((1.0, UNCHANGED), (8.0, UNCHANGED)), (0, 1, 0)),
    Story(True, ((1.0, {"$set": {}, "$unset": {"y": 1}}),), (1, 1, 0)),
    Story(False, ((1.0, UNCHANGED), (8.0, {"$set": LABEL})), (0, 1, 1)),
    Story(False, ((8.0, None),), (1, 0, 0)),
)


@dataclass
class Told:
    """A document, and when its versions were surely not yet, and surely, written."""

    story: Story
    written: list[tuple[float, float]] = field(default_factory=list)

    def certain(self) -> bool:
        """Whether no step fell so near to the end of the patience that MongoDB's clock alone decides."""
        begin, end = self.written[0]
        gaps = [(before - end, after - begin) for before, after in self.written[1:]]
        return all(longest < EARLY_S or shortest > LATE_S for shortest, longest in gaps)


class Writer(threading.Thread):
    """Tells the stories, a few of each at a time, until it is told to stop; then it tells the begun ones to their end,
    and keeps the stream's time going."""

    def __init__(self, uri: str) -> None:
        super().__init__(name="version-ledger-writer", daemon=True)
        self._uri = uri
        self._due: list[tuple[float, int, int]] = []  # (when, document, step)
        self.told: list[Told] = []
        self.begin_no_more = threading.Event()
        self.ended = threading.Event()
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with pymongo.MongoClient[dict[str, Any]](self._uri, w="majority") as client:
                collection = client["ledger"]["documents"]
                while not self.stop.wait(TICK_S):
                    if not self.begin_no_more.is_set() and len(self.told) + 3 * len(STORIES) <= DOCUMENTS:
                        self._begin(collection)
                    self._go_on(collection)
                    if self.begin_no_more.is_set() and not self._due:
                        self.ended.set()
                        collection.insert_one({"_id": f"ticker-{monotonic()}", "slot": TICKER, **LABEL})
        except pymongo.errors.PyMongoError as error:
            self.error = error

    def _begin(self, collection: Any) -> None:
        first = len(self.told)
        begun = [Told(story) for story in STORIES for _ in range(3)]
        before = monotonic()
        collection.insert_many(
            [
                {"_id": first + place, "slot": VERSIONS * (first + place), **(LABEL if each.story.labelled else {})}
                for place, each in enumerate(begun)
            ]
        )
        after = monotonic()
        for place, each in enumerate(begun):
            each.written.append((before, after))
            for step, (seconds, _) in enumerate(each.story.steps):
                heapq.heappush(self._due, (after + seconds, first + place, step))
        self.told += begun

    def _go_on(self, collection: Any) -> None:
        changes: list[Any] = []
        changed: list[Told] = []
        while self._due and self._due[0][0] <= monotonic():
            _, number, step = heapq.heappop(self._due)
            update = self.told[number].story.steps[step][1]
            changed.append(self.told[number])
            if update is None:
                changes.append(pymongo.DeleteOne({"_id": number}))
                continue
            slot = {"slot": VERSIONS * number + step + 1}
            changes.append(pymongo.UpdateOne({"_id": number}, {**update, "$set": {**update["$set"], **slot}}))
        if changes:
            before = monotonic()
            collection.bulk_write(changes)
            for each in changed:
                each.written.append((before, monotonic()))


@pytest.fixture
def deployment(
    apache_kafka_config: config.Kafka, mongo_process: Callable[..., MongoProcess], tmp_path: Path
) -> Iterator[tuple[Deployment, str]]:
    mongo = mongo_process(data_file=tmp_path / "mongo.data")
    with pymongo.MongoClient[dict[str, Any]](mongo.uri) as client:
        client["ledger"].create_collection("documents", changeStreamPreAndPostImages={"enabled": True})
    settings = one_job(
        apache_kafka_config,
        mongo.uri,
        database="ledger",
        partitions=4,
        job={
            "name": "ledger",
            "features": [{"field": "slot", "dtype": "int32"}],
            "labels": [
                {
                    "field": "y",
                    "dtype": "float32",
                    "task": "regression",
                    "absent_after": f"{PATIENCE_S:g}s",
                    "absent_value": 0.0,
                }
            ],
            "model": "tests.ledger_model:build",
            "hyper": {"slots": TICKER + 1},
            "loss_reduction": "sum",
            "round": {"replay_ratio": 0},
            "checkpoint": {"every": "2s"},
            "workers": {"min": 2},
        },
    )
    running = Deployment(config=settings, folder=tmp_path, python_path=Path(__file__).parents[2])
    yield running, mongo.uri
    running.stop()


def _training(running: Deployment) -> dict[str, Any] | None:
    job = running.job()
    return job if job and job["phase"] in ("training", "saving") else None


def _rows(running: Deployment) -> int:
    job = _training(running)
    return int(job["rows_learned"]) if job else 0


def _at_rest(running: Deployment) -> bool:
    """Whether all stories are learned to their end."""
    job = _training(running)
    return bool(job) and job is not None and job["report"]["rounds"] > 0 and job["report"]["waiting"] == 0


def _all_learned(running: Deployment, written_ms: float) -> bool:
    """Whether everything is learned that was written before: a daemon that is drained leaves its backlog to the next,
    and what has not come from MongoDB yet is in nobody's backlog."""
    status = running.status()
    if status is None or not _at_rest(running):
        return False
    through = status["sources"]["ledger"]["last_event_ms"]
    return through is not None and through >= written_ms and status["jobs"]["ledger"]["backlog"] == 0


def _times_learned(uri: str) -> tuple[np.ndarray[Any, Any], Manifest]:
    with pymongo.MongoClient[dict[str, Any]](uri) as client:
        database = client["streamtrain"]
        head = database["jobs"].find_one({"_id": "ledger"})
        assert head is not None
        document = database["manifests"].find_one({"_id": head["head"]})
        assert document is not None
    manifest = from_stored(document)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        store = GridFSStore(uri=uri, database="streamtrain")
        store.get(manifest.artifacts["state"], path)
        store.close()
        with np.load(path) as arrays:
            weights = next(arrays[name] for name in arrays.files if arrays[name].size == TICKER + 1)
            return weights.reshape(-1)[:TICKER].reshape(DOCUMENTS, VERSIONS), manifest


@pytest.mark.apache
@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_version_is_learned_as_often_as_it_should_whatever_is_killed(deployment: tuple[Deployment, str]) -> None:
    running, uri = deployment
    chance = random.Random(SEED)
    running.start()
    wait_until(lambda: (running.job() or {}).get("phase") == "training", timeout=120, what="the first generation")
    writer = Writer(uri)
    writer.start()

    happened = []
    for victim in ("worker", "daemon", "drain", "worker"):
        before = _rows(running)
        wait_until(
            lambda before=before: _rows(running) > before,
            timeout=TRAINING_AGAIN_S,
            what=f"training to go on after {happened}",
        )
        sleep(chance.uniform(0.5, 3.0))  # anywhere within rounds, saves and waits
        happened.append(f"{victim} with {len(writer.told)} begun, {_rows(running)} learned")
        if victim == "daemon":
            running.kill()
            running.start()
        elif victim == "worker":
            workers = wait_until(running.workers, timeout=TRAINING_AGAIN_S, what=f"a worker to kill; {happened}")
            chance.choice(workers).kill()
        else:
            assert running.drain() == 0, running.log_file.read_text()[-4000:]
            running.start()
    writer.begin_no_more.set()
    wait_until(writer.ended.is_set, timeout=60, what="the stories' ends")
    wait_until(lambda: _at_rest(running), timeout=120, what=f"all labels to come or to be given up; {happened}")
    writer.stop.set()
    writer.join(timeout=30)
    assert writer.error is None, writer.error
    with pymongo.MongoClient[dict[str, Any]](uri, w="majority") as client:
        last_ms = time() * 1000
        client["ledger"]["documents"].insert_one({"_id": "last", "slot": TICKER, **LABEL})
    wait_until(lambda: _all_learned(running, last_ms), timeout=60, what=f"the last versions to be learned; {happened}")
    assert running.drain() == 0, running.log_file.read_text()[-4000:]

    times, manifest = _times_learned(uri)
    begun = len(writer.told)
    certain = np.array([each.certain() for each in writer.told])
    assert certain.sum() > 0.8 * begun, "the machine was too slow for stories of seconds"
    expected = np.array([each.story.learned for each in writer.told])
    wrong = np.flatnonzero((times[:begun] != expected).any(axis=1) & certain)
    stories = [(int(n), writer.told[n].story, times[n].tolist()) for n in wrong[:5]]
    assert not len(wrong), f"{len(wrong)} of {begun} documents are not learned as they should be: {stories}; {happened}"
    assert not times[begun:].any()
    labels = np.array([VERSIONS * number + step + 1 for number, each in enumerate(writer.told)
                       for step, (_, update) in enumerate(each.story.steps) if update and update["$set"]])  # fmt: skip
    assert np.all(times.reshape(-1)[labels] == 1), "a version that brings a label is learned once, certain or not"
    assert manifest.counts.lost_waiting == 0
    assert min(manifest.counts.absent_labels, manifest.counts.late_labels, manifest.counts.labels_after_absent) > 0
    assert manifest.rows_learned == manifest.counts.learned + manifest.counts.absent_labels
