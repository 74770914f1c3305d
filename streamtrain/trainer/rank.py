"""One rank of one generation: forms with the others, learns rounds as messages ask for them, saves. Its caller's
thread is the only one that runs TensorFlow, so collectives are issued in round order on every rank."""

from __future__ import annotations

import gc
import os
import socket
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
import tensorflow as tf

from streamtrain import config
from streamtrain.artifacts import open_store
from streamtrain.clock import Clock
from streamtrain.errors import ArtifactError, ModelError, WorkerError
from streamtrain.protocol import Form, Formed, Message, RoundReported, Save, Saved, StartRound, Stop
from streamtrain.trainer.channel import Channel
from streamtrain.trainer.checkpoint import (
    FILE_NAMES,
    KERAS_ROLE,
    STATE_ROLE,
    restore_state,
    state_bytes,
    write_keras,
)
from streamtrain.trainer.feed import Feed
from streamtrain.trainer.loop import Loop
from streamtrain.trainer.model import JobModel, set_precision
from streamtrain.trainer.redrive import Redrive
from streamtrain.trainer.refusals import Refusal, expelled
from streamtrain.trainer.waiting import Waiting
from streamtrain.trainer.waiting_file import ROLE as WAITING_ROLE
from streamtrain.trainer.waiting_file import read as read_waiting
from streamtrain.types import ArtifactRef, Manifest, Round

_log = structlog.get_logger()


class Rank:
    """From `Form` to `Stop`."""

    def __init__(self, *, channel: Channel, form: Form, clock: Clock) -> None:
        self._channel = channel
        self._form = form
        self._clock = clock
        self._job = config.Job.model_validate(form.job)
        self._timings: dict[str, float] = {}
        self._without_keras = ""  # why, as it was last told
        self._careful_until_s = clock.monotonic() + form.careful_s
        manifest = form.manifest
        self._rounds = manifest.rounds if manifest is not None and manifest.lineage == form.lineage else 0

    def form(self, reserved: socket.socket) -> Formed:
        """Everything up to the first round. reserved: holds the port of `Ready` until TensorFlow's server has it."""
        form, channel = self._form, self._channel
        manifest = form.manifest
        started = self._clock.monotonic()
        strategy = _join_cluster(form)
        reserved.close()
        channel.progress("join", 1)
        set_precision(self._job.dtype)
        with strategy.scope():
            self._model = JobModel(job=self._job)
        self._loop = Loop(
            strategy=strategy,
            model=self._model,
            partitions=form.partitions,
            clock=self._clock,
            on_progress=channel.progress,
            on_refusals=self._leave_out,
        )
        self._loop.prepare()
        channel.progress("build", 1)
        self._timings["build"] = self._clock.monotonic() - started
        started = self._clock.monotonic()
        self._restore()
        self._timings["restore"] = self._clock.monotonic() - started
        started = self._clock.monotonic()
        owned = tuple(range(form.rank, form.partitions, form.world))
        self._feed = Feed(
            job=self._job,
            kafka=config.Kafka.model_validate(form.kafka),
            topic=form.topic,
            topic_epoch=form.topic_epoch,
            partitions=owned,
            learned={partition: form.learned[partition] for partition in owned},
            window_begins={partition: form.window_begins[partition] for partition in owned},
            dead_letter_topic=form.dead_letter_topic,
            dead_letter_origin=form.topic,
            clock=self._clock,
            on_progress=channel.progress,
            expelled={} if manifest is None or manifest.lineage != form.lineage else manifest.expelled,
            waiting=self._waiting(),
            forget_through={partition: form.forget_through[partition] for partition in owned if form.forget_through},
            lineage=form.lineage,
            redrive=self._redrive(owned),
        )
        self._feed.start()
        self._feed.refill()
        self._timings["refill"] = self._clock.monotonic() - started
        channel.on_message(self._read_ahead)
        gc.collect()
        gc.freeze()  # TensorFlow's million objects stay: never look through them again
        return Formed(
            generation=form.generation,
            model_fingerprint=self._model.fingerprint(),
            timings=dict(self._timings),
            next_absent=self._feed.next_absent,
        )

    def _redrive(self, owned: Sequence[int]) -> Redrive | None:
        form = self._form
        if not form.replay_topic or not form.redriven:
            return None
        return Redrive(
            job=self._job,
            kafka=config.Kafka.model_validate(form.kafka),
            topic=form.replay_topic,
            source_topic=form.topic,
            offsets={partition: form.redriven[partition] for partition in owned},
            lineage=form.lineage,
            begins={partition: form.begins[partition] for partition in owned if form.begins},
            clock=self._clock,
        )

    def _waiting(self) -> Mapping[int, Waiting] | None:
        """What the lineage's checkpoint says of documents that wait, whichever ranks wrote it."""
        manifest = self._form.manifest
        if manifest is None or manifest.lineage != self._form.lineage:
            return None
        refs = [ref for role, ref in manifest.artifacts.items() if role.startswith(f"{WAITING_ROLE}-")]
        if not refs:
            return None
        found: dict[int, Waiting] = {}
        store = open_store(self._form.artifacts)
        try:
            with self._folder() as directory:
                path = Path(directory) / WAITING_ROLE
                for ref in refs:
                    store.get(ref, path)
                    found |= read_waiting(path.read_bytes())
        finally:
            store.close()
        return found

    def _restore(self) -> None:
        manifest = self._form.manifest
        if manifest is not None and self._form.restore_weights:
            with self._folder() as directory:
                path = Path(directory) / FILE_NAMES[STATE_ROLE]
                store = open_store(self._form.artifacts)
                try:
                    store.get(_state_of(manifest), path)
                finally:
                    store.close()
                restore_state(self._model, path, rank=self._form.rank)
        else:
            self._model.part_seeds(self._form.rank)

    def serve(self) -> None:
        """Answers messages until `Stop`."""
        while True:
            message = self._channel.next()
            if isinstance(message, StartRound):
                read = self._feed.next()
                report = self._loop.run(read, careful=self._is_careful(message.round))
                self._rounds = message.round.number + 1
                self._channel.send(RoundReported(generation=self._form.generation, report=report))
            elif isinstance(message, Save):
                self._channel.send(self._save(message))
            elif isinstance(message, Stop):
                self._feed.close()
                return
            else:
                raise WorkerError(f"unexpected message {type(message).__name__}")

    def _is_careful(self, round_: Round) -> bool:
        """Whether the round may hold a row that the model has refused in the generation before."""
        places = zip(round_.fresh, self._form.careful_until, strict=False)
        return self._clock.monotonic() < self._careful_until_s or any(asked.begin < end for asked, end in places)

    def _leave_out(self, refusals: Sequence[Refusal]) -> None:
        """Makes dead letters of the rows that are not learned, and takes them out of the memory."""
        by_reason: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        for refusal in refusals:
            if not refusal.replayed:  # else it was learned when it came
                by_reason[refusal.partition, refusal.reason].append(refusal.offset)
        for (partition, reason), offsets in by_reason.items():
            self._feed.dead_letter_rows(partition, offsets, reason)
        for partition, gone in expelled(refusals).items():
            self._feed.expel(partition, gone)
        _log.warning("rows were left out", rows=len(refusals), first=asdict(refusals[0]))

    def _read_ahead(self, message: Message) -> None:
        """In the control reader's thread: the next round is read while this one is learned."""
        if isinstance(message, StartRound):
            self._feed.submit(message.round)

    def _save(self, save: Save) -> Saved:
        started = self._clock.monotonic()
        self._feed.flush_dead_letters()
        self._loop.verify()
        artifacts = self._write(save.prefix) if self._form.rank == 0 else {}
        if (waiting := self._feed.waiting_file()) is not None:
            role = f"{WAITING_ROLE}-{self._form.rank}"
            store = open_store(self._form.artifacts)
            try:
                artifacts = {**artifacts, role: store.put(f"{save.prefix}{role}.bson", waiting)}
            finally:
                store.close()
            self._channel.progress("save", 1)
        return Saved(
            generation=self._form.generation,
            rounds=self._rounds,
            artifacts=artifacts,
            seconds=self._clock.monotonic() - started,
        )

    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        """For files in passing. A system that cleans up temporary files may have taken the daemon's folder away."""
        parent = self._form.work_dir or None
        if parent is not None:
            Path(parent).mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=parent)

    def _write(self, prefix: str) -> Mapping[str, ArtifactRef]:
        store = open_store(self._form.artifacts)
        try:
            state = state_bytes(self._model, rank=self._form.rank)
            self._channel.progress("save", 1)
            found = {STATE_ROLE: store.put(prefix + FILE_NAMES[STATE_ROLE], state)}
            self._channel.progress("save", 1)
            with self._folder() as directory:
                path = Path(directory) / FILE_NAMES[KERAS_ROLE]
                try:
                    write_keras(self._model, path)
                except ModelError as error:  # training and restart do not need it
                    if error.message != self._without_keras:
                        _log.warning("checkpoints have no .keras file", reason=error.message, hint=error.hint)
                    self._without_keras = error.message
                else:
                    found[KERAS_ROLE] = store.put(prefix + FILE_NAMES[KERAS_ROLE], path)
            return found
        finally:
            store.close()


def _state_of(manifest: Manifest) -> ArtifactRef:
    if STATE_ROLE not in manifest.artifacts:
        raise ArtifactError(f"manifest {manifest.id} names no saved state")
    return manifest.artifacts[STATE_ROLE]


def _join_cluster(form: Form) -> Any:
    """The strategy of this generation, once all its ranks are there."""
    os.environ["TF_CONFIG"] = form.tf_config
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // form.world))
    tf.config.threading.set_inter_op_parallelism_threads(2)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    return tf.distribute.MultiWorkerMirroredStrategy()
