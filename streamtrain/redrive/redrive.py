"""Looks through a job's dead letters, and replays them: once each, whoever asks and however often, and none whose
document was deleted since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.kafka import topics
from streamtrain.kafka.topic_admin import TopicSpec, ensure_topics
from streamtrain.redrive.letters import Choice, Letter, by_record, choose, matches, parse
from streamtrain.redrive.replay_topic import ReplayTopic, replay_spec
from streamtrain.redrive.topic_records import TopicRecords
from streamtrain.source.envelope import decode
from streamtrain.source.position_log import read_position
from streamtrain.trainer.records import Records
from streamtrain.trainer.redrive import foresee
from streamtrain.trainer.selection import Selection
from streamtrain.trainer.taking import FORGOTTEN


@dataclass(frozen=True, slots=True)
class Reason:
    """Letters with one reason. example: where one of their records lies. replayed: how many were."""

    reason: str
    letters: int
    replayed: int
    first_ms: int
    last_ms: int
    example: str


@dataclass(frozen=True, slots=True)
class Redriven:
    """replayed: records, by reason. left: how many were not, by why."""

    replayed: Mapping[str, int]
    left: Mapping[str, int]


class Redrive:
    """Of one job. Every method raises KafkaError, AuthenticationError or PermissionMissingError."""

    def __init__(self, *, job: config.Job, source: config.Source, kafka: config.Kafka, clock: Clock) -> None:
        self._job = job
        self._source = source
        self._kafka = kafka
        self._clock = clock

    async def reasons(self, *, reason: str | None = None, field: str | None = None) -> list[Reason]:
        """What there is, the most frequent reason first."""
        spec, _ = await self._topics()
        found: dict[str, list[Letter]] = {}
        for record in by_record(await self._letters()):
            letter = record[-1]
            if matches(letter, reason=reason, field=field):
                found.setdefault(letter.reason, []).append(letter)
        replayed = (await ReplayTopic(kafka=self._kafka, job=self._job.name, spec=spec).state()).replayed
        return sorted(
            (
                Reason(
                    reason=name,
                    letters=len(letters),
                    replayed=sum(map(replayed.holds, letters)),
                    first_ms=min(letter.written_ms for letter in letters),
                    last_ms=max(letter.written_ms for letter in letters),
                    example=letters[-1].origin,
                )
                for name, letters in found.items()
            ),
            key=lambda each: (-each.letters, each.reason),
        )

    async def replay(self, *, reason: str | None = None, field: str | None = None) -> Redriven:
        """Publishes the letters' records to the job's replay topic, for its workers to learn."""
        spec, source_topic = await self._topics()
        replay_topic = ReplayTopic(kafka=self._kafka, job=self._job.name, spec=spec)
        try:
            state = await replay_topic.begin()
            async with TopicRecords(kafka=self._kafka, topic=source_topic, partitions=spec.partitions) as records:
                starts, ends = await records.bounds()
            choice = choose(
                await self._letters(),
                replayed=state.replayed,
                topic=source_topic,
                written_after_ms=int((self._clock.time() - self._kafka.retention) * 1000),
                log_starts=starts,
                reason=reason,
                field=field,
            )
            choice = await self._without_deleted(choice, source_topic, ends)
            await replay_topic.write(choice.letters, state=state, through=ends)
        finally:
            await replay_topic.close()
        reasons = {letter.origin: letter.reason for letter in choice.letters}
        return Redriven(dict(Counter(reasons.values())), choice.left)

    async def _topics(self) -> tuple[TopicSpec, str]:
        """The replay topic, which is there then, and the source's topic."""
        position = await read_position(self._kafka, self._source.name)
        epoch = 0 if position is None else position.topic_epoch
        partitions = self._source.partitions if position is None else len(position.counts)
        spec = replay_spec(self._kafka, self._job.name, epoch=epoch, partitions=partitions)
        await ensure_topics(self._kafka, [spec])
        return spec, topics.source_topic(self._kafka.topic_prefix, self._source.name, epoch)

    async def _letters(self) -> list[Letter]:
        topic = topics.dead_letter_topic(self._kafka.topic_prefix, self._job.name)
        async with TopicRecords(kafka=self._kafka, topic=topic, partitions=1) as records:
            found = [parse(each.value, each.headers, each.timestamp) async for each in records.read()]
        return [letter for letter in found if letter is not None]

    async def _without_deleted(self, choice: Choice, topic: str, ends: Sequence[int]) -> Choice:
        selection = Selection.of(self._job)
        if not selection.foresees or not choice.letters:
            return choice
        begins: dict[int, int] = {}
        for letter in choice.letters:
            begins[letter.partition] = min(begins.get(letter.partition, letter.offset), letter.offset)
        await foresee(
            kafka=self._kafka,
            topic=topic,
            ranges={number: (begin, ends[number]) for number, begin in begins.items()},
            selection=selection,
            clock=self._clock,
        )
        deleted = selection.outcomes(_records(choice.letters)) == FORGOTTEN
        kept = tuple(letter for letter, gone in zip(choice.letters, deleted.tolist(), strict=True) if not gone)
        left = Counter(choice.left)
        left["of deleted documents"] += len({letter.origin for letter in choice.letters} - {k.origin for k in kept})
        return replace(choice, letters=kept, left=+left)


def _records(letters: Sequence[Letter]) -> Records:
    """The letters as the records that they were, of any partition."""
    envelopes = [decode(letter.value, letter.headers) for letter in letters]
    return Records(
        partition=-1,
        sequence=np.array([each.n for each in envelopes], np.int64),
        offsets=np.array([letter.offset for letter in letters], np.int64),
        operations="".join(each.operation.value for each in envelopes).encode(),
        namespaces=[each.namespace.encode() for each in envelopes],
        keys=[letter.key for letter in letters],
        document_keys=[each.document_key for each in envelopes],
        cluster_times=np.array([each.cluster_time for each in envelopes], np.uint64).astype(np.int64),
        wall_times_ms=np.array([each.wall_time_ms or 0 for each in envelopes], np.int64),
        values=[letter.value for letter in letters],
    )
