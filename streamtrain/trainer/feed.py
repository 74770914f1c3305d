"""Feeds the loop: a thread of its own reads the owned partitions of each round, decodes them and keeps them in
memory, ahead of the steps that learn them, but never more than a few rounds."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import structlog

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.errors import WorkerError
from streamtrain.trainer.assemble import Intake, Refused, RoundBuilder, next_absent
from streamtrain.trainer.dead_letters import DeadLetters, Letter
from streamtrain.trainer.decode import Decoder
from streamtrain.trainer.field_statistics import FieldStatistics
from streamtrain.trainer.headers import headers_of
from streamtrain.trainer.memory import PartitionMemory
from streamtrain.trainer.reader import Reader
from streamtrain.trainer.records import Records
from streamtrain.trainer.redrive import Redrive
from streamtrain.trainer.reread import Rereader
from streamtrain.trainer.rows import RoundRows
from streamtrain.trainer.selection import Selection
from streamtrain.trainer.waiting import Waiting
from streamtrain.trainer.waiting_file import WaitingFiles
from streamtrain.types import Learned, Round

ROUNDS_AHEAD = 2
AHEAD_BYTES = 256 * 1024 * 1024  # of rows that are not learned yet; a single round may be larger
_STOP_WITHIN_S = 10.0
_LEAST_ABSENT = 64  # documents of a partition that may be learned with absent labels in one round

T = TypeVar("T")
_log = structlog.get_logger()


class Feed:
    """Rounds in, decoded rows out, in the order of `submit`. Call it from any thread but its own.

    partitions: those that this rank owns. learned: where each of them is read on from. window_begins: what
    `refill` reads from. on_progress(stage, records): called only when something was really read. forget_through: of a
    retrain, through where documents were deleted before it began: `refill` looks for them first. expelled: offsets of
    versions that must not come back into the memory. waiting: what the checkpoint says of the partitions' documents
    that wait, None where it says nothing: then those wait that the window shows. lineage: named in dead letters.
    redrive: reads those that were replayed.
    """

    def __init__(
        self,
        *,
        job: config.Job,
        kafka: config.Kafka,
        topic: str,
        topic_epoch: int,
        partitions: tuple[int, ...],
        learned: Mapping[int, Learned],
        window_begins: Mapping[int, int],
        dead_letter_topic: str,
        dead_letter_origin: str,
        clock: Clock,
        on_progress: Callable[[str, int], None],
        forget_through: Mapping[int, int] = MappingProxyType({}),
        expelled: Mapping[int, Sequence[int]] = MappingProxyType({}),
        waiting: Mapping[int, Waiting] | None = None,
        lineage: str = "",
        redrive: Redrive | None = None,
    ) -> None:
        schema = job.schema_()
        self._kafka = kafka
        self._topic = topic
        self._topic_epoch = topic_epoch
        self._partitions = tuple(sorted(partitions))
        self._learned = dict(learned)
        self._window_begins = dict(window_begins)
        self._dead_letter_topic = dead_letter_topic
        self._origin = dead_letter_origin
        self._clock = clock
        self._on_progress = on_progress
        self._expelled = expelled
        self._saved = waiting
        self._lineage = lineage
        self._redrive = redrive
        self._lost = 0  # documents that waited, and that Kafka does not hold any more; told with the next round
        self._decoder = Decoder.of(job)
        self._selection = Selection.of(job)
        self._statistics = FieldStatistics(schema, self._partitions)
        self._forget_through = forget_through
        self._most_records = job.round.max_records
        self._first_features = job.features_as_of == "first"
        self._memories = {
            number: PartitionMemory(
                schema=schema,
                partition=number,
                half_life=job.window.half_life,
                keep_deleted=job.on_delete == "keep",
                weighted=self._decoder.weighs,
                first=self._first_features,
            )
            for number in self._partitions
        }
        self._remembers = self._first_features or schema.longest_absence is not None
        self._files = WaitingFiles(self._memories)
        self._loop = asyncio.new_event_loop()
        self._reader: Reader
        self._rereader: Rereader
        self._dead_letters: DeadLetters
        self._serving: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._submitted: asyncio.Queue[Round] = asyncio.Queue()
        self._ready: queue.SimpleQueue[RoundRows | BaseException] = queue.SimpleQueue()
        self._room = asyncio.Event()
        self._ahead_rounds = 0
        self._ahead_bytes = 0
        self._error: BaseException | None = None

    def start(self) -> None:
        """Connects. Raises KafkaError, OffsetError."""
        self._thread.start()
        self._call(self._connect())

    def refill(self) -> None:
        """Reads the window up to what was learned into memory; then rounds are served."""
        self._call(self._refill())

    def submit(self, round_: Round) -> None:
        """Queues a round: it is read while earlier ones are learned."""
        self._loop.call_soon_threadsafe(self._submitted.put_nowait, round_)

    def next(self) -> RoundRows:
        """The next submitted round, once it is read. Raises what stopped the feed."""
        if self._error is None:
            ready = self._ready.get()
            if isinstance(ready, RoundRows):
                self._loop.call_soon_threadsafe(self._handed_over, _size(ready))
                return ready
            self._error = ready
        raise self._error

    def flush_dead_letters(self) -> None:
        """Returns once every dead letter of the rounds that `next` returned is acknowledged. Raises KafkaError."""
        self._call(self._dead_letters.flush())

    def dead_letter_rows(self, partition: int, offsets: Sequence[int], reason: str) -> int:
        """Sends records that were read before to the dead-letter topic; returns how many. One that Kafka holds no
        more is named in a letter without its document. Raises KafkaError."""
        return self._call(self._write_again(partition, offsets, reason))

    @property
    def next_absent(self) -> int | None:
        """The first cluster time at which a label is absent, as the memory stands."""
        return next_absent(self._memories.values())

    def waiting_file(self) -> bytes | None:
        """What a checkpoint after the rounds that `next` returned has to say (waiting_file.py): only while no other is
        submitted. None where the window alone says all."""
        return self._call(self._waiting_file())

    async def _waiting_file(self) -> bytes | None:
        return self._files.content() if self._remembers else None

    def expel(self, partition: int, offsets: Sequence[int]) -> None:
        """Takes these versions out of the memory, if they are still the latest of their documents."""
        self._call(self._expel({partition: offsets}))

    def close(self) -> None:
        """Ends the thread; what was read ahead is dropped. May be called twice."""
        if not self._thread.is_alive():
            return
        self._call(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_WITHIN_S)
        if self._thread.is_alive():
            raise WorkerError(f"the feed did not stop within {_STOP_WITHIN_S:g} s")

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` in the feed's thread and waits for it: everything in it has deadlines of its own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # ------------------------------------------------------------------ in the feed's own thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _connect(self) -> None:
        self._reader = Reader(kafka=self._kafka, topic=self._topic, partitions=self._partitions, clock=self._clock)
        self._dead_letters = DeadLetters(kafka=self._kafka, topic=self._dead_letter_topic)
        self._rereader = Rereader(kafka=self._kafka, topic=self._topic, clock=self._clock)
        await self._reader.start()

    async def _disconnect(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        # Brokers that do not answer must not keep the thread: every letter that counts was flushed before.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_WITHIN_S):
                await self._reader.stop()
                await self._rereader.stop()
                if self._redrive is not None:
                    await self._redrive.stop()
                await self._dead_letters.stop()

    async def _foresee(self) -> None:
        """Of a retrain: looks for the documents that end in what was learned once already. They must leave no trace
        in what is learned from it again."""
        through = {n: end for n, end in self._forget_through.items() if end > self._learned[n].offset}
        if not through or not self._selection.foresees:
            return
        here = {number: place.offset for number, place in self._learned.items()}
        await self._reader.locate(learned=self._learned, window_begins=here)
        async for chunk in self._reader.read(through):
            for records in chunk:
                self._selection.foresee(records)
            self._on_progress("foresee", sum(map(len, chunk)))

    async def _refill(self) -> None:
        await self._foresee()
        begins = await self._reader.locate(learned=self._learned, window_begins=self._window_begins)
        for number, memory in self._memories.items():
            memory.begin_refill()
            memory.evict(begins[number])
        intake = Intake(
            decoder=self._decoder,
            memories=self._memories,
            clock=self._clock,
            selection=self._selection,
            statistics=self._statistics,
        )
        async for chunk in self._reader.read({number: place.offset for number, place in self._learned.items()}):
            intake.take(chunk)  # what is bad in it has become a dead letter when it was learned
            self._on_progress("refill", sum(map(len, chunk)))
        if self._saved is not None:
            await self._remember(self._saved, intake)
        for memory in self._memories.values():
            memory.end_refill()
        await self._expel(self._expelled)
        self._statistics.end_round()  # what the window has shown is known, and was counted when it was learned
        self._reader.expect(self._learned)
        self._serving = asyncio.create_task(self._serve(), name="feed")

    async def _remember(self, saved: Mapping[int, Waiting], intake: Intake) -> None:
        """Brings back what the checkpoint says, from as much of it as the topic still holds."""
        saved = {number: saved[number] for number in self._partitions if number in saved}
        labelled = {number: self._memories[number].forget_waiting().labelled_before() for number in saved}
        async for records in self._rereader.stream({number: part.firsts for number, part in saved.items()}):
            number = records.partition
            self._memories[number].wait_again(records, saved[number])
            self._on_progress("refill", len(records))
        for number, part in saved.items():
            self._memories[number].waiting.note_labelled(labelled[number])
            self._lost += len(part.firsts) - len(self._memories[number].waiting)
            again = part.again()
            if len(again):
                found = (await self._rereader.read({number: again})).get(number) or Records.none(number)
                earlier = intake.again(found, features=self._first_features)
                self._lost += self._memories[number].recall(earlier, part)
                self._on_progress("refill", len(again))
        if self._lost:
            _log.warning("documents that waited for a label are not in Kafka any more", documents=self._lost)

    async def _expel(self, versions: Mapping[int, Sequence[int]]) -> None:
        for number, offsets in versions.items():
            if number in self._memories:
                self._memories[number].expel(np.array(offsets, np.int64))

    async def _serve(self) -> None:
        try:
            while True:
                while self._ahead_rounds >= ROUNDS_AHEAD or self._ahead_bytes >= AHEAD_BYTES:
                    self._room.clear()
                    await self._room.wait()
                ready = await self._read(await self._submitted.get())
                self._ahead_rounds += 1
                self._ahead_bytes += _size(ready)
                self._ready.put(ready)
        except Exception as error:  # noqa: BLE001 - raised again by `next`, in the thread that can act on it
            self._ready.put(error)

    def _handed_over(self, size: int) -> None:
        self._ahead_rounds -= 1
        self._ahead_bytes -= size
        self._room.set()

    async def _read(self, round_: Round) -> RoundRows:
        self._check(round_)
        started = self._clock.monotonic()
        working = 0.0
        builder = RoundBuilder(
            round_=round_,
            decoder=self._decoder,
            memories=self._memories,
            clock=self._clock,
            selection=self._selection,
            most_absent=max(_LEAST_ABSENT, self._most_records // max(1, len(round_.fresh))),
            first_features=self._first_features,
            statistics=self._statistics,
        )
        ends = {number: round_.fresh[number].end for number in self._partitions}
        async for chunk in self._reader.read(ends):
            began = self._clock.monotonic()
            refused = builder.take(chunk)
            working += self._clock.monotonic() - began
            if refused:
                await self._dead_letters.write([self._letter(bad) for bad in refused])
            self._on_progress("read", sum(map(len, chunk)))
        counts = self._reader.counts()
        self._learned = {
            number: Learned(offset=end, count=self._learned[number].count if (n := counts[number]) is None else n)
            for number, end in ends.items()
        }
        redriven = await self._read_redriven(round_, builder)
        if due := builder.due():
            again = await self._rereader.read(due)
            for number in due:
                records = again.get(number) or Records.none(number)
                if refused := builder.settle(number, records):
                    await self._dead_letters.write([self._letter(bad) for bad in refused])
                self._on_progress("settle", len(records) + 1)
        read_seconds = self._clock.monotonic() - started - working
        lost, self._lost = self._lost, 0
        return replace(builder.finish(learned=self._learned, read_seconds=read_seconds, lost=lost), redriven=redriven)

    async def _read_redriven(self, round_: Round, builder: RoundBuilder) -> Mapping[int, int]:
        """The round's dead letters that were replayed; returns through which offsets they have been read then."""
        ranges = {part.partition: part for part in round_.redriven if part.partition in self._memories and part.span}
        if not ranges or self._redrive is None:
            return {}
        async for records, outcomes in self._redrive.read(ranges, self._learned):
            if refused := builder.take_redriven(records, outcomes):
                await self._dead_letters.write([self._letter(bad) for bad in refused])
            self._on_progress("redrive", len(records))
        return {number: part.end for number, part in ranges.items()}

    def _check(self, round_: Round) -> None:
        """Raises WorkerError unless the round goes on where the last one ended."""
        for number in self._partitions:
            fresh, expected = round_.fresh[number], self._learned[number].offset
            same = fresh.topic == self._topic and fresh.epoch == self._topic_epoch and fresh.partition == number
            if not same or fresh.begin != expected or fresh.end < fresh.begin:
                raise WorkerError(
                    f"round {round_.number} asks for {fresh}, but {self._topic}/{number} was learned up to {expected}"
                )

    async def _write_again(self, partition: int, offsets: Sequence[int], reason: str) -> int:
        wanted = np.unique(np.array(offsets, np.int64))
        found = (await self._rereader.read({partition: wanted})).get(partition)
        letters = []
        if found is not None:
            letters = [self._letter(Refused(found, place, reason)) for place in range(len(found))]
            wanted = np.setdiff1d(wanted, found.offsets)
        gone = [
            Letter(self._origin_of(partition, offset), reason, b"", (), lineage=self._lineage)
            for offset in wanted.tolist()
        ]
        await self._dead_letters.write(letters + gone)
        return len(letters) + len(gone)

    def _origin_of(self, partition: int, offset: int) -> str:
        return f"{self._origin}/{partition}/{offset}"

    def _letter(self, bad: Refused) -> Letter:
        records, place = bad.records, bad.place
        return Letter(
            origin=self._origin_of(records.partition, int(records.offsets[place])),
            reason=bad.reason,
            value=records.values[place],
            headers=(("key", records.keys[place]), *headers_of(records, place)),
            lineage=self._lineage,
            attempt=0 if records.others is None else int(records.others[place].get("attempt", b"0")),
        )


def _size(ready: RoundRows) -> int:
    return sum(
        column.nbytes for rows in ready.rows for columns in (rows.columns, rows.labels) for column in columns.values()
    )
