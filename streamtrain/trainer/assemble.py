"""A round's records to rows: decoded together, taken into each partition's memory in order, and spread among the
versions that are replayed. No I/O: the feed hands it what was read, and sends the dead letters it returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from streamtrain.clock import Clock
from streamtrain.trainer.decode import BAD, INVALID_BSON, LABELLED, WAITING, Absent, Decoded, Decoder
from streamtrain.trainer.field_statistics import FieldStatistics, Segment
from streamtrain.trainer.memory import Fresh, PartitionMemory
from streamtrain.trainer.records import Records
from streamtrain.trainer.rows import Column, RoundRows, Rows
from streamtrain.trainer.selection import TO_DECODE, Selection
from streamtrain.trainer.settling import Earlier, Settled
from streamtrain.trainer.taking import DELETED, FILTERED, FORGOTTEN, SKIPPED
from streamtrain.trainer.waiting_index import NEVER
from streamtrain.types import LABEL_LATENCY_BUCKETS_S, Learned, Round, RoundCounts

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
    origins: npt.NDArray[np.int64] | None = None  # of versions whose features are to be brought, else -1
    absent: bool = False  # learned because their labels are absent: their records are none of the round


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
    latencies: list[int] = field(default_factory=list)  # seconds that late labels took
    statistics: FieldStatistics | None = None

    def take(self, chunk: Sequence[Records]) -> tuple[list[tuple[Records, Fresh, _Piece]], list[Refused]]:
        """What is fresh among the records, and what must become a dead letter."""
        started = self.clock.monotonic()
        known = [self.selection.outcomes(records) for records in chunk]
        documents: list[bytes] = []
        for records, outcomes in zip(chunk, known, strict=True):
            wanted = outcomes == TO_DECODE
            documents.extend(records.values if wanted.all() else compress(records.values, wanted.tolist()))
        decoded = self.decoder.decode(documents)
        if self.statistics is not None:
            ends = np.cumsum([int((outcomes == TO_DECODE).sum()) for outcomes in known]).tolist()
            segments = zip(chunk, [0, *ends], ends, strict=False)
            self.statistics.observe(decoded, [Segment(records.partition, *part) for records, *part in segments])
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
        self.counts["labels_after_absent"] += fresh.after_absent
        self.latencies += fresh.latencies

    def take_redriven(self, records: Records, before: npt.NDArray[np.uint8]) -> tuple[_Piece, list[Refused]]:
        """As `take`, of records of one partition that leave the memory as it is. before: their outcomes so far."""
        started = self.clock.monotonic()
        outcomes = before.copy()
        wanted = before == TO_DECODE
        rows = np.cumsum(wanted) - 1
        decoded = self.decoder.decode(list(compress(records.values, wanted.tolist())))
        outcomes[wanted] = decoded.outcome
        held = self.selection.held(records)
        learned = np.flatnonzero(outcomes == LABELLED)
        fresh = Fresh(records=learned, scored=np.zeros(len(learned), np.bool_), late=0)
        piece = replace(
            _piece(records, fresh, decoded, rows, held),
            wall_time_ms=np.zeros(len(learned), np.int64),  # written long before: no sample of freshness
        )
        self._count(outcomes, fresh, int(piece.held.sum()))
        self.counts["redriven"] += len(learned)
        refused = [
            Refused(records, place, decoded.reasons[int(rows[place])] if wanted[place] else INVALID_BSON)
            for place in np.flatnonzero(outcomes == BAD).tolist()
        ]
        self.timings.decode += self.clock.monotonic() - started
        return piece, refused

    def again(self, records: Records, *, features: bool) -> Earlier:
        """What versions that were read again say now. features: whether they are asked for by themselves."""
        started = self.clock.monotonic()
        earlier = Earlier(
            records=records,
            usable=self.selection.outcomes(records) == TO_DECODE,
            held=self.selection.held(records),
            labels=self.decoder.decode(records.values, Absent.GIVE),
            features=self.decoder.decode(records.values, Absent.IGNORE) if features else None,
        )
        self.timings.decode += self.clock.monotonic() - started
        return earlier


class RoundBuilder:
    """One round of the owned partitions: `take` its records in chunks, `settle` what is `due`, then `finish`.

    most_absent: documents of a partition that are learned with absent labels at most; the others wait for the next
    round. first_features: whether rows get the features of their documents' first versions.
    """

    def __init__(
        self,
        *,
        round_: Round,
        decoder: Decoder,
        memories: Mapping[int, PartitionMemory],
        clock: Clock,
        selection: Selection | None = None,
        most_absent: int = 1024,
        first_features: bool = False,
        statistics: FieldStatistics | None = None,
    ) -> None:
        self._round = round_
        self._memories = memories
        self._clock = clock
        self._selection = Selection() if selection is None else selection
        self._most_absent = most_absent
        self._first_features = first_features
        self._statistics = statistics
        self._intake = Intake(
            decoder=decoder, memories=memories, clock=clock, selection=self._selection, statistics=statistics
        )
        self._pieces: dict[int, list[_Piece]] = {number: [] for number in memories}
        self._replayed: dict[int, _Piece] = {}
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

    def take_redriven(self, records: Records, outcomes: npt.NDArray[np.uint8]) -> list[Refused]:
        """Dead letters that were replayed, of one partition, with their offsets in the source's topic, and what has
        become of them already. They are learned unscored, and without entering the memory. Returns those that must
        become dead letters once more."""
        piece, refused = self._intake.take_redriven(records, outcomes)
        if len(piece.scored):
            self._pieces[records.partition].append(piece)
        self._reasons.update(bad.reason for bad in refused)
        return refused

    def due(self) -> dict[int, npt.NDArray[np.int64]]:
        """Once all records are taken: offsets, per partition, that have to be read again for `settle`."""
        started = self._clock.monotonic()
        self._evict()
        wanted = {}
        for number, memory in self._memories.items():
            fresh = self._round.fresh[number]
            # Before anything more is learned: what is new in this round is not replayed in it.
            chosen = memory.replay(count=self._round.replay[number], seed=self._round.seed, below=fresh.begin)
            if len(chosen) or not self._pieces[number]:
                self._replayed[number] = _replayed(memory, chosen)
            memory.fall_due(self._round.watermark, self._most_absent)
            if len(offsets := memory.wanted()):
                wanted[number] = offsets
        self._intake.timings.memory += self._clock.monotonic() - started
        return wanted

    def settle(self, number: int, records: Records) -> list[Refused]:
        """What was read again of a partition that is `due`; returns those that must become dead letters."""
        earlier = self._intake.again(records, features=self._first_features)
        settled = self._memories[number].settle(earlier, end=self._round.fresh[number].end)
        self._pieces[number] = [self._with_features(piece, earlier) for piece in self._pieces[number]]
        absent = _absent(settled, earlier)
        if len(absent.scored):
            self._pieces[number].append(absent)
        counts = self._intake.counts
        counts["absent_labels"] += len(absent.scored) - int(absent.held.sum())
        counts["lost_waiting"] += settled.lost
        refused = [Refused(records, place, reason) for place, reason in settled.refused]
        self._reasons.update(bad.reason for bad in refused)
        return refused

    def _with_features(self, piece: _Piece, earlier: Earlier) -> _Piece:
        """The piece with the features of first versions; without the rows where these cannot be trained on."""
        if piece.origins is None or earlier.features is None:
            return piece
        places = earlier.find(piece.origins)
        there = np.flatnonzero(places >= 0)
        brought = earlier.features_of(places[there])
        columns = {}
        for field_, column in piece.columns.items():
            columns[field_] = column.copy()
            columns[field_][there] = brought[field_]
        good = np.ones(len(places), np.bool_)
        good[there] = earlier.features.outcome[places[there]] != BAD
        held = piece.held[~good]
        counts = self._intake.counts
        counts["learned"] -= len(held) - int(held.sum())
        counts["held_out"] -= int(held.sum())
        counts["dead_letters"] += len(held)
        return replace(
            piece,
            columns={field_: column[good] for field_, column in columns.items()},
            labels={field_: column[good] for field_, column in piece.labels.items()},
            scored=piece.scored[good],
            weights=piece.weights[good],
            wall_time_ms=piece.wall_time_ms[good],
            offsets=piece.offsets[good],
            held=piece.held[good],
            origins=None,
        )

    def finish(self, *, learned: Mapping[int, Learned], read_seconds: float, lost: int = 0) -> RoundRows:
        """lost: documents that waited and were found to be gone before the round."""
        started = self._clock.monotonic()
        rows = tuple(self._rows(number) for number in sorted(self._memories))
        timings = self._intake.timings
        timings.memory += self._clock.monotonic() - started
        replayed = sum(len(piece.scored) for piece in self._replayed.values())
        memories = self._memories.values()
        self._intake.counts["lost_waiting"] += lost
        return RoundRows(
            round=self._round,
            rows=rows,
            learned=dict(learned),
            counts=RoundCounts(**self._intake.counts, replayed=replayed),
            dead_letter_reasons=dict(self._reasons),
            timings={"read": read_seconds, "decode": timings.decode, "memory": timings.memory},
            memory_rows=sum(memory.rows for memory in memories),
            memory_bytes=sum(memory.nbytes for memory in memories),
            waiting=sum(len(memory.waiting) for memory in memories),
            next_absent=next_absent(memories),
            label_latency=_histogram(self._intake.latencies),
            fields={} if self._statistics is None else self._statistics.end_round(),
        )

    def _evict(self) -> None:
        for number, memory in self._memories.items():
            memory.evict(self._round.window_begins[number])

    def _rows(self, number: int) -> Rows:
        round_ = self._round
        pieces = list(self._pieces[number])
        n = sum(len(piece.scored) for piece in pieces)
        replayed = self._replayed.get(number)
        m = 0 if replayed is None else len(replayed.scored)
        if replayed is not None and (m or not pieces):
            pieces.append(replayed)
        order = spread(n, m) if n and m else slice(None)
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
            replayed=(np.arange(n + m) >= n)[order],
            absent=_joined([np.full(len(p.scored), p.absent) for p in pieces])[order]
            if any(piece.absent for piece in pieces)
            else None,
        )


def next_absent(memories: Iterable[PartitionMemory]) -> int | None:
    """The first cluster time at which a label is absent, None without one."""
    due = min((memory.waiting.next_due for memory in memories), default=NEVER)
    return None if due == NEVER else due


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
    features = fresh.features
    return _Piece(
        columns={name: column[where] for name, column in decoded.columns.items()} if features is None else features,
        labels={name: column[where] for name, column in decoded.labels.items()},
        scored=fresh.scored,
        weights=np.ones(len(chosen)) if decoded.weights is None else decoded.weights[where],
        # Servers before 6.0 tell no wall time: the second of the cluster time is nearest to it.
        wall_time_ms=np.where(wall > 0, wall, (cluster >> 32) * 1000),
        offsets=records.offsets[fresh.records],
        held=np.zeros(len(chosen), np.bool_) if held is None else held[fresh.records],
        origins=fresh.origins,
    )


def _absent(settled: Settled, earlier: Earlier) -> _Piece:
    """Documents whose labels were absent. They were written long before they are learned: no samples of freshness."""
    n = len(settled.places)
    weights = settled.decoded.weights
    return _Piece(
        columns=settled.decoded.columns,
        labels=settled.decoded.labels,
        scored=settled.scored,
        weights=np.ones(n) if weights is None else weights,
        wall_time_ms=np.zeros(n, np.int64),
        offsets=earlier.records.offsets[settled.places],
        held=np.zeros(n, np.bool_) if earlier.held is None else earlier.held[settled.places],
        absent=True,
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


def _histogram(seconds: Sequence[int]) -> tuple[int, ...]:
    """Counts per bucket of LABEL_LATENCY_BUCKETS_S, empty without any."""
    if not seconds:
        return ()
    places = np.searchsorted(np.asarray(LABEL_LATENCY_BUCKETS_S), seconds)
    return tuple(np.bincount(places, minlength=len(LABEL_LATENCY_BUCKETS_S) + 1).tolist())
