"""The messages between the daemon and its workers (DESIGN 5), as BSON documents on a stream socket.

A BSON document begins with its own length (int32, little-endian), so a message needs no other frame. Each
message carries the generation it belongs to; a message of another generation is ignored by its receiver.

    worker                                daemon
    Ready{token, pid, host, port}   ->
                                    <-    Form{generation, rank, ...}
    Formed                          ->
                                    <-    StartRound (the next may be queued while one runs)
    Progress*, RoundReported        ->
                                    <-    Save
    Saved                           ->
                                    <-    Stop
    Failed                          ->    at any time; the worker exits after it
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import bson

from streamtrain.codec import from_document, to_document
from streamtrain.errors import WorkerError
from streamtrain.types import ArtifactRef, Learned, Manifest, Round, RoundReport

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_LENGTH_BYTES = 4

LOST_PEER = frozenset({"UnavailableError", "AbortedError", "CancelledError"})
"""Kinds of `Failed`: a collective was broken off, since another rank has gone, which says why itself."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A standby: TensorFlow is imported, nothing is initialised. port: free for TensorFlow's server."""

    token: str = field(repr=False)
    pid: int
    host: str
    port: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Form:
    """Everything a worker needs to serve one generation.

    tf_config: the TF_CONFIG value (JSON). job, kafka, artifacts: the config sections as documents
    (kafka holds credentials: never logged). learned: where each partition is read on from. manifest:
    what to restore, None for new weights. topic: the source's topic, of `partitions` partitions.
    dead_letter_topic: the job's. work_dir: for temporary files. careful_until: offsets per partition, through which
    each rank tries its rows by itself before they take part in a step, and for at least `careful_s` seconds; empty:
    it need not. forget_through: offsets per partition, of a retrain: documents that end before them are not learned
    again, nor what they were before; empty: it is none. replay_topic: the job's; redriven: the offsets from
    which it is read on. begins: offsets at which the lineage began to read the source's topic.
    """

    generation: int
    epoch: int
    rank: int
    world: int
    tf_config: str
    job: Mapping[str, Any] = field(repr=False)
    kafka: Mapping[str, Any] = field(repr=False)
    artifacts: Mapping[str, Any] = field(repr=False)
    topic: str
    topic_epoch: int
    partitions: int
    dead_letter_topic: str
    learned: tuple[Learned, ...]
    window_begins: tuple[int, ...]
    manifest: Manifest | None
    restore_weights: bool
    lineage: str
    work_dir: str
    careful_until: tuple[int, ...] = ()
    careful_s: float = 0.0
    forget_through: tuple[int, ...] = ()
    replay_topic: str = ""
    redriven: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Formed:
    """The group is up and the window is in memory. timings: seconds of `build`, `restore`, `refill`. next_absent: as
    in RoundReport."""

    generation: int
    model_fingerprint: str
    timings: Mapping[str, float]
    next_absent: int | None = None


@dataclass(frozen=True, slots=True)
class StartRound:
    generation: int
    round: Round


@dataclass(frozen=True, slots=True)
class Progress:
    """Proof of work, at most once a second and only when something was done since the last one."""

    generation: int
    stage: str
    done: int


@dataclass(frozen=True, slots=True)
class RoundReported:
    generation: int
    report: RoundReport


@dataclass(frozen=True, slots=True)
class Save:
    """Write artifacts named `prefix` + role, of the state after the last round that was started before it."""

    generation: int
    prefix: str


@dataclass(frozen=True, slots=True)
class Saved:
    """The rank wrote artifacts (rank 0 the model's, each rank what waits in its partitions), and its dead letters up to
    here are acknowledged. rounds: the number of rounds of the lineage that the weights contain."""

    generation: int
    rounds: int
    artifacts: Mapping[str, ArtifactRef]
    seconds: float


@dataclass(frozen=True, slots=True)
class Stop:
    generation: int


@dataclass(frozen=True, slots=True)
class Failed:
    """kind: the class name of the error; hint: what to do; fatal: a new generation would fail the same way."""

    generation: int
    kind: str
    message: str
    hint: str = ""
    fatal: bool = False


Message = Ready | Form | Formed | StartRound | Progress | RoundReported | Save | Saved | Stop | Failed
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Ready, Form, Formed, StartRound, Progress, RoundReported, Save, Saved, Stop, Failed)
}


def encode(message: Message) -> bytes:
    return bson.encode({"type": type(message).__name__, **to_document(message)})


def decode(data: bytes) -> Message:
    """Raises WorkerError when the bytes are not a message of this protocol."""
    try:
        document = bson.decode(data)
        kind = _KINDS[document.pop("type")]
        message: Message = from_document(kind, document)
    except (bson.errors.BSONError, KeyError, ValueError) as error:
        raise WorkerError(f"not a message of the worker protocol: {type(error).__name__}") from error
    return message


def _checked_length(head: bytes) -> int:
    length = int.from_bytes(head, "little", signed=True)
    if not _LENGTH_BYTES < length <= MAX_MESSAGE_BYTES:
        raise WorkerError(f"a control message claims {length} bytes")
    return length


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or None once the peer has closed the connection."""
    try:
        head = await reader.readexactly(_LENGTH_BYTES)
        return decode(head + await reader.readexactly(_checked_length(head) - _LENGTH_BYTES))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive_message(connection: socket.socket) -> Message | None:
    """`read_message` for the worker's blocking socket."""
    head = _receive_exactly(connection, _LENGTH_BYTES)
    if head is None:
        return None
    body = _receive_exactly(connection, _checked_length(head) - _LENGTH_BYTES)
    return None if body is None else decode(head + body)


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    chunks = bytearray()
    while len(chunks) < size:
        try:
            chunk = connection.recv(size - len(chunks))
        except ConnectionError:
            return None
        if not chunk:
            return None
        chunks += chunk
    return bytes(chunks)
