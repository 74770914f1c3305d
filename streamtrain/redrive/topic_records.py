"""Everything that some topic holds now, read once from begin to end: committed records only, without a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka import errors as kafka_errors

from streamtrain import config
from streamtrain.errors import KafkaError
from streamtrain.kafka.failure import explain, explain_unreachable
from streamtrain.kafka.topics import kafka_options

STALLED_AFTER_S = 20.0
_POLL_MS = 200
_FAILURES = (kafka_errors.KafkaError, OSError, TimeoutError)


class TopicRecords:
    """Of one topic with `partitions` partitions. Raises KafkaError, AuthenticationError or PermissionMissingError."""

    def __init__(self, *, kafka: config.Kafka, topic: str, partitions: int) -> None:
        self._kafka = kafka
        self._topic = topic
        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self._consumer = AIOKafkaConsumer(
            **kafka_options(kafka),
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )

    async def __aenter__(self) -> TopicRecords:
        try:
            await self._consumer.start()
        except _FAILURES as error:
            await self._consumer.stop()
            raise await explain_unreachable(error, kafka=self._kafka, doing=f"reading {self._topic}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def bounds(self) -> tuple[list[int], list[int]]:
        """Log starts and last stable offsets, by partition."""
        try:
            async with asyncio.timeout(STALLED_AFTER_S):
                begins = await self._consumer.beginning_offsets(self._places)
                ends = await self._consumer.end_offsets(self._places)
        except _FAILURES as error:
            raise explain(error, kafka=self._kafka, doing=f"reading {self._topic}") from error
        return [begins[place] for place in self._places], [ends[place] for place in self._places]

    async def read(self) -> AsyncIterator[ConsumerRecord]:
        """Up to what is the end now."""
        begins, ends = await self.bounds()
        left = {place: end for place, begin, end in zip(self._places, begins, ends, strict=True) if begin < end}
        if not left:
            return
        try:
            self._consumer.assign(list(left))
            await self._consumer.seek_to_beginning(*left)
            moved = asyncio.get_running_loop().time()
            while left:
                batches = await self._consumer.getmany(*left, timeout_ms=_POLL_MS)
                for place, records in batches.items():
                    for record in records:
                        if record.offset < ends[place.partition]:
                            yield record
                # By position: after the last record there may be nothing but commit markers.
                done = [place for place, end in left.items() if await self._consumer.position(place) >= end]
                for place in done:
                    del left[place]
                now = asyncio.get_running_loop().time()
                if batches or done:
                    moved = now
                elif now - moved > STALLED_AFTER_S:
                    raise KafkaError(f"{self._topic}: nothing came for {STALLED_AFTER_S:g} s", hint="is the broker up?")
        except _FAILURES as error:
            raise explain(error, kafka=self._kafka, doing=f"reading {self._topic}") from error
