"""Change events as Kafka batches, one or more per partition: what one transaction of the publisher sends. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from streamtrain.errors import EnvelopeError
from streamtrain.source.envelope import ID_ALONE, ID_ALONE_PREFIX, key_of
from streamtrain.source.record_batch import RecordBatch
from streamtrain.types import ChangeEvent

# More than the headers and the frame of a record take, apart from its documentKey.
_FRAME_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Unfit:
    """An event that cannot become a record, and why: `too-large` or `no-id`."""

    event: ChangeEvent
    reason: str


@dataclass(frozen=True, slots=True)
class Batches:
    """batches: by partition, in order. counts: records ever published per partition, these included.
    bytes: of the documents."""

    batches: dict[int, list[RecordBatch]]
    counts: tuple[int, ...]
    records: int
    bytes: int
    unfit: tuple[Unfit, ...]


def build(
    events: Sequence[ChangeEvent],
    *,
    counts: Sequence[int],
    timestamp_ms: int,
    max_record_bytes: int,
    batch_bytes: int,
) -> Batches:
    """counts: records published so far, per partition; their number is the stored partition count. batch_bytes:
    what a batch of more than one record may take."""
    numbers = list(counts)
    partitions = len(numbers)
    # A record's size is only computed where it could matter.
    careful = (max_record_bytes - _FRAME_BYTES) // 3
    room = batch_bytes - _FRAME_BYTES
    open_: list[RecordBatch | None] = [None] * partitions
    batches: dict[int, list[RecordBatch]] = {}
    unfit: list[Unfit] = []
    total = 0
    for event in events:
        _, _, _, document_key, document, _, _ = event
        size = 0 if document is None else len(document)
        if (size > careful or len(document_key) > careful) and _size(event) > max_record_bytes:
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
        batch = open_[partition]
        if batch is None or batch.bytes + size + 2 * len(document_key) > room:
            batch = open_[partition] = RecordBatch(timestamp_ms)
            batches.setdefault(partition, []).append(batch)
        number = numbers[partition]
        batch.append(event, key, number)
        numbers[partition] = number + 1
        total += size
    return Batches(
        batches=batches,
        counts=tuple(numbers),
        records=len(events) - len(unfit),
        bytes=total,
        unfit=tuple(unfit),
    )


def _size(event: ChangeEvent) -> int:
    """Bytes of its record, at most. The key repeats the documentKey's `_id`."""
    return len(event.document or b"") + 2 * len(event.document_key) + len(event.namespace) + _FRAME_BYTES
