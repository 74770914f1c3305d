"""Change events as Kafka batches, one or more per partition: what one transaction of the publisher sends. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from zlib import crc32

from streamtrain.errors import EnvelopeError
from streamtrain.source.envelope import ID_ALONE, ID_ALONE_PREFIX, headers_of, key_of
from streamtrain.types import ChangeEvent

# More than the headers and the frame of a record take, apart from its documentKey.
_FRAME_BYTES = 1024


class Builder(Protocol):
    """aiokafka's batch builder."""

    def append(self, *, timestamp: int, key: bytes, value: bytes, headers: Sequence[tuple[str, bytes]]) -> Any:
        """None when the batch has no room for the record; a batch takes its first record whatever its size."""

    def record_count(self) -> int: ...

    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Unfit:
    """An event that cannot become a record, and why: `too-large` or `no-id`."""

    event: ChangeEvent
    reason: str


@dataclass(frozen=True, slots=True)
class Batches:
    """batches: by partition, in order. counts: records ever published per partition, these included.
    bytes: of the documents."""

    batches: dict[int, list[Builder]]
    counts: tuple[int, ...]
    records: int
    bytes: int
    unfit: tuple[Unfit, ...]


def build(
    events: Sequence[ChangeEvent],
    *,
    counts: Sequence[int],
    create: Callable[[], Builder],
    timestamp_ms: int,
    max_record_bytes: int,
) -> Batches:
    """counts: records published so far, per partition; their number is the stored partition count."""
    numbers = list(counts)
    partitions = len(numbers)
    # The record's size is only computed where it could matter.
    careful = (max_record_bytes - _FRAME_BYTES) // 3
    appends: list[Callable[..., Any] | None] = [None] * partitions
    batches: dict[int, list[Builder]] = {}
    unfit: list[Unfit] = []
    size = 0
    for event in events:
        _, _, _, document_key, document, _, _ = event
        value = document or b""
        if (len(value) > careful or len(document_key) > careful) and _size(event) > max_record_bytes:
            unfit.append(Unfit(event, "too-large"))
            continue
        key = document_key
        if document_key[:ID_ALONE_PREFIX] not in ID_ALONE:  # key_of, without a call for nearly every record
            try:
                key = key_of(document_key)
            except EnvelopeError:
                unfit.append(Unfit(event, "no-id"))
                continue
        partition = crc32(key) % partitions  # envelope.partition_of, without a call per record
        number = numbers[partition]
        headers = headers_of(event, number)
        append = appends[partition]
        if append is None or append(timestamp=timestamp_ms, key=key, value=value, headers=headers) is None:
            batch = create()
            batches.setdefault(partition, []).append(batch)
            append = appends[partition] = batch.append
            append(timestamp=timestamp_ms, key=key, value=value, headers=headers)
        numbers[partition] = number + 1
        size += len(value)
    return Batches(
        batches=batches,
        counts=tuple(numbers),
        records=len(events) - len(unfit),
        bytes=size,
        unfit=tuple(unfit),
    )


def _size(event: ChangeEvent) -> int:
    """Bytes of its record, at most. The key repeats the documentKey's `_id`."""
    return len(event.document or b"") + 2 * len(event.document_key) + len(event.namespace) + _FRAME_BYTES
