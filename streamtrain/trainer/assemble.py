"""A round's records to rows: decoded together, taken into each partition's memory in order, and spread among the
versions that are replayed. No I/O: the feed hands it what was read, and sends the dead letters it returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from streamtrain.clock import Clock
from streamtrain.trainer.decode import BAD, INVALID_BSON, WAITING, Decoded, Decoder
from streamtrain.trainer.memory import DELETED, FILTERED, FORGOTTEN, SKIPPED, Fresh, PartitionMemory
from streamtrain.trainer.records import Records
from streamtrain.trainer.rows import Column, RoundRows, Rows
from streamtrain.trainer.selection import TO_DECODE, Selection
from streamtrain.types import Learned, Round, RoundCounts

_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that cannot be trained on."""

    records: Records
    place: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Piece:
    """Fresh rows of some of a partition's records, or replayed ones."""

    columns: Mapping[str, Column]
    labels: Mapping[str, Column]
    scored: npt.NDArray[np.bool_]
    weights: npt.NDArray[np.float64]
    wall_time_ms: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    held: npt.NDArray[np.bool_]


@dataclass(slots=True)
class Timings:
    decode: float = 0.0
    memory: float = 0.0


@dataclass(slots=True)
class Intake:
    """Decodes records and applies them to the memories; counts what became of them."""

    decoder: Decoder
    memories: Mapping[int, PartitionMemory]
    clock: Clock
    selection: Selection = field(default_factory=Selection)
    timings: Timings = field(default_factory=Timings)
    counts: Counter[str] = field(default_factory=Counter)

    def take(self, chunk: Sequence[Records]) -> tuple[list[tuple[Records, Fresh, _Piece]], list[Refused]]:
        """What is fresh among the records, and what must become a dead letter."""
        started = self.clock.monotonic()
        known = [self.selection.outcomes(records) for records in chunk]
        documents: list[bytes] = []
        for records, outcomes in zip(chunk, known, strict=True):
            wanted = outcomes == TO_DECODE
            documents.extend(records.values if wanted.all() else compress(records.values, wanted.tolist()))
        decoded = self.decoder.decode(documents)
        decoded_at = self.clock.monotonic()
        self.timings.decode += decoded_at - started
        taken: list[tuple[Records, Fresh, _Piece]] = []
        refused: list[Refused] = []
        first = 0
        for records, before in zip(chunk, known, strict=True):
            wanted = before == TO_DECODE
            rows = first + np.cumsum(wanted) - 1
            outcomes = before.copy()
            outcomes[wanted] = decoded.outcome[rows[wanted]]
            held = self.selection.held(records)
            fresh = self.memories[records.partition].apply(records, outcomes, decoded, rows, held)
            piece = _piece(records, fresh, decoded, rows, held)
            taken.append((records, fresh, piece))
            self._count(outcomes, fresh, int(piece.held.sum()))
            refused += [
                Refused(records, place, decoded.reasons[int(rows[place])] if wanted[place] else INVALID_BSON)
                for place in np.flatnonzero(outcomes == BAD).tolist()
            ]
            first += int(wanted.sum())
        self.timings.memory += self.clock.monotonic() - decoded_at
        return taken, refused

    def _count(self, outcomes: npt.NDArray[np.uint8], fresh: Fresh, held: int) -> None:
        amounts = np.bincount(outcomes, minlength=int(SKIPPED) + 1)
        self.counts["learned"] += len(fresh.records) - held
        self.counts["held_out"] += held
        self.counts["unchanged"] += fresh.unchanged
        self.counts["filtered"] += int(amounts[FILTERED])
        self.counts["forgotten"] += int(amounts[FORGOTTEN])
        self.counts["waiting"] += int(amounts[WAITING])
        self.counts["dead_letters"] += int(amounts[BAD])
        self.counts["deletes"] += int(amounts[DELETED])
        self.counts["skipped"] += int(amounts[SKIPPED])
        self.counts["late_labels"] += fresh.late


class RoundBuilder:
    """One round of the owned partitions: `begin` with its records in chunks, `finish` with its rows."""

    def __init__(
        self,
        *,
        round_: Round,
        decoder: Decoder,
        memories: Mapping[int, PartitionMemory],
        clock: Clock,
        selection: Selection | None = None,
    ) -> None:
        self._round = round_
        self._memories = memories
        self._clock = clock
        self._selection = Selection() if selection is None else selection
        self._intake = Intake(decoder=decoder, memories=memories, clock=clock, selection=self._selection)
        self._pieces: dict[int, list[_Piece]] = {number: [] for number in memories}
        self._reasons: Counter[str] = Counter()
        self._evict()

    def take(self, chunk: Sequence[Records]) -> list[Refused]:
        """The round's next records; returns those that must become dead letters."""
        taken, refused = self._intake.take(chunk)
        for records, fresh, piece in taken:
            if len(fresh.records):
                self._pieces[records.partition].append(piece)
        self._reasons.update(bad.reason for bad in refused)
        return refused

    def finish(self, *, learned: Mapping[int, Learned], read_seconds: float) -> RoundRows:
        started = self._clock.monotonic()
        self._evict()
        rows = tuple(self._rows(number) for number in sorted(self._memories))
        timings, counts = self._intake.timings, self._intake.counts
        timings.memory += self._clock.monotonic() - started
        replayed = sum(map(len, rows)) - counts["learned"] - counts["held_out"]
        return RoundRows(
            round=self._round,
            rows=rows,
            learned=dict(learned),
            counts=RoundCounts(**counts, replayed=replayed),
            dead_letter_reasons=dict(self._reasons),
            timings={"read": read_seconds, "decode": timings.decode, "memory": timings.memory},
            memory_rows=sum(memory.rows for memory in self._memories.values()),
            memory_bytes=sum(memory.nbytes for memory in self._memories.values()),
        )

    def _evict(self) -> None:
        for number, memory in self._memories.items():
            memory.evict(self._round.window_begins[number])

    def _rows(self, number: int) -> Rows:
        round_, memory = self._round, self._memories[number]
        replayed = memory.replay(count=round_.replay[number], seed=round_.seed, below=round_.fresh[number].begin)
        pieces = list(self._pieces[number])
        n = sum(len(piece.scored) for piece in pieces)
        if len(replayed) or not pieces:
            pieces.append(_replayed(memory, replayed))
        order = spread(n, len(replayed)) if n and len(replayed) else slice(None)
        labels = {name: _joined([p.labels[name] for p in pieces])[order] for name in pieces[0].labels}
        held = _joined([p.held for p in pieces])[order]
        return Rows(
            partition=number,
            columns={name: _joined([p.columns[name] for p in pieces])[order] for name in pieces[0].columns},
            labels=labels,
            weights=self._selection.weights(labels, _joined([p.weights for p in pieces])[order]),
            scored=_joined([p.scored for p in pieces])[order] & round_.scored & ~held,
            wall_time_ms=_joined([p.wall_time_ms for p in pieces])[order] * (round_.scored & ~held),
            held=held if held.any() else None,
            offsets=_joined([p.offsets for p in pieces])[order],
            replayed=(np.arange(n + len(replayed)) >= n)[order],
        )


def spread(fresh: int, replayed: int) -> npt.NDArray[np.int64]:
    """The order that spreads `replayed` rows, which stand behind `fresh` ones, evenly among them."""
    places = np.concatenate([(np.arange(fresh) + 0.5) / fresh, (np.arange(replayed) + 0.5) / replayed])
    return np.argsort(places, kind="stable")


def _joined(arrays: Sequence[npt.NDArray[_T]]) -> npt.NDArray[_T]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _piece(
    records: Records,
    fresh: Fresh,
    decoded: Decoded,
    rows: npt.NDArray[np.int64],
    held: npt.NDArray[np.bool_] | None,
) -> _Piece:
    chosen = rows[fresh.records]
    where: slice | npt.NDArray[np.int64] = chosen
    if len(chosen) and int(chosen[-1]) - int(chosen[0]) + 1 == len(chosen):
        where = slice(int(chosen[0]), int(chosen[-1]) + 1)
    wall, cluster = records.wall_times_ms[fresh.records], records.cluster_times[fresh.records]
    return _Piece(
        columns={name: column[where] for name, column in decoded.columns.items()},
        labels={name: column[where] for name, column in decoded.labels.items()},
        scored=fresh.scored,
        weights=np.ones(len(chosen)) if decoded.weights is None else decoded.weights[where],
        # Servers before 6.0 tell no wall time: the second of the cluster time is nearest to it.
        wall_time_ms=np.where(wall > 0, wall, (cluster >> 32) * 1000),
        offsets=records.offsets[fresh.records],
        held=np.zeros(len(chosen), np.bool_) if held is None else held[fresh.records],
    )


def _replayed(memory: PartitionMemory, places: npt.NDArray[np.int64]) -> _Piece:
    columns, labels = memory.take(places)
    weights = memory.weights(places)
    nothing = np.zeros(len(places), np.int64)
    return _Piece(
        columns=columns,
        labels=labels,
        scored=nothing.astype(np.bool_),
        weights=np.ones(len(places)) if weights is None else weights,
        wall_time_ms=nothing,
        offsets=memory.offsets(places),
        held=nothing.astype(np.bool_),
    )
