"""Asks the leaders of partitions for record batches as they are stored, and for the ends of their logs. Only the
reading itself is done here: aiokafka's own consumer makes an object of every record, which costs more than all
the rest of a record's way to the model."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.errors import KafkaError
from streamtrain.kafka.failure import explain, explain_unreachable
from streamtrain.kafka.topics import kafka_options
from streamtrain.trainer.record_batches import Fetched

START_WITHIN_S = 20.0
REQUEST_TIMEOUT_S = 20.0
_WAIT_MS = 100  # how long a broker may wait for records that are not there yet
_BACK_OFF_S = 0.1
_FETCH_BYTES = 16 * 1024 * 1024  # of one answer; a single batch may be larger
PARTITION_BYTES = 1024 * 1024
_READ_COMMITTED = 1
_LATEST, _EARLIEST = -1, -2


class OutOfRangeError(Exception):
    """A partition's log does not hold the offset that was asked for."""


class BatchFetcher:
    """Reads one topic. All methods belong to one event loop."""

    def __init__(
        self, *, kafka: config.Kafka, topic: str, clock: Clock, partition_bytes: int = PARTITION_BYTES
    ) -> None:
        """partition_bytes: of a partition in one answer; a single batch may be larger."""
        self._kafka = kafka
        self._topic = topic
        self._clock = clock
        self._partition_bytes = partition_bytes
        self._doing = f"reading {topic}"
        self._client: AIOKafkaClient | None = None

    async def start(self) -> None:
        """Raises KafkaError when no broker can be reached, or the topic does not exist."""
        client = AIOKafkaClient(
            **kafka_options(self._kafka), request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000), metadata_max_age_ms=60_000
        )
        try:
            async with asyncio.timeout(START_WITHIN_S):
                await client.bootstrap()
                # Asking for a topic by name would create it where brokers do that: look whether it is there first.
                while (await client.fetch_all_metadata()).partitions_for_topic(self._topic) is None:
                    await self._clock.sleep(_BACK_OFF_S)
                await client.set_topics([self._topic])
                self._client = client
        except TimeoutError as error:
            await client.close()
            raise KafkaError(
                f"the topic {self._topic} cannot be found", hint="was its source ever published?"
            ) from error
        except kafka_errors.KafkaError as error:
            await client.close()
            raise await explain_unreachable(error, kafka=self._kafka, doing=self._doing) from error

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def fetch(self, positions: Mapping[int, int]) -> list[Fetched]:
        """What follows the offsets `positions`, as much as a broker returns at once; empty while leaders are
        unknown or not reachable. Raises OutOfRangeError, PermissionMissingError, KafkaError."""
        answers = await asyncio.gather(
            *(self._fetch_from(node, wanted) for node, wanted in (await self._by_leader(positions)).items())
        )
        return [fetched for answer in answers for fetched in answer]

    async def _fetch_from(self, node: int, wanted: Mapping[int, int]) -> list[Fetched]:
        request = FetchRequest(
            _WAIT_MS,
            1,
            _FETCH_BYTES,
            _READ_COMMITTED,
            [(self._topic, [(number, offset, self._partition_bytes) for number, offset in wanted.items()])],
        )
        response = await self._send(node, request)
        if response is None:
            return []
        fetched: list[Fetched] = []
        # Behind the high water mark come the last stable offset, since version 5 the log start, the aborted
        # transactions, since version 11 a preferred replica, and the records.
        for number, code, _, *rest in (answer for _, answers in response.topics for answer in answers):
            if self._usable(code):
                aborted = rest[-3] if response.API_VERSION >= 11 else rest[-2]
                fetched.append(Fetched(number, wanted[number], bytes(rest[-1] or b""), aborted or ()))
        if len(fetched) < len(wanted):
            await self._look_again()
        return fetched

    async def bounds(self, partitions: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int]]:
        """Log starts and last stable offsets of the partitions whose leaders answer."""
        return await self._offsets(partitions, _EARLIEST), await self._offsets(partitions, _LATEST)

    async def _offsets(self, partitions: tuple[int, ...], which: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for node, wanted in (await self._by_leader(dict.fromkeys(partitions, which))).items():
            response = await self._send(node, OffsetRequest(-1, _READ_COMMITTED, [(self._topic, list(wanted.items()))]))
            for _, answers in () if response is None else response.topics:
                found.update({number: offset for number, code, _, offset in answers if self._usable(code)})
        if len(found) < len(partitions):
            await self._look_again()
        return found

    async def _by_leader(self, partitions: Mapping[int, int]) -> dict[int, dict[int, int]]:
        assert self._client is not None
        leaders: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for number, value in partitions.items():
            leader = self._client.cluster.leader_for_partition(TopicPartition(self._topic, number))
            if leader is not None and leader != -1:
                leaders[leader][number] = value
        if sum(map(len, leaders.values())) < len(partitions):
            await self._look_again()
        return leaders

    async def _send(self, node: int, request: Any) -> Any:
        """None when the broker could not answer, but may later."""
        assert self._client is not None
        try:
            return await self._client.send(node, request)
        except kafka_errors.KafkaError as error:
            if not error.retriable:
                raise explain(error, kafka=self._kafka, doing=self._doing) from error
            await self._look_again()
            return None

    def _usable(self, code: int) -> bool:
        """Whether a partition's answer is good; False when another broker may have a better one."""
        error = kafka_errors.for_code(code)
        if error is kafka_errors.NoError:
            return True
        if error is kafka_errors.OffsetOutOfRangeError:
            raise OutOfRangeError
        if not error.retriable:
            raise explain(error(), kafka=self._kafka, doing=self._doing)
        return False

    async def _look_again(self) -> None:
        """Leaders may have moved."""
        assert self._client is not None
        self._client.force_metadata_update()
        await self._clock.sleep(_BACK_OFF_S)
