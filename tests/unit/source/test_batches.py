import bson
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.source import envelope
from streamtrain.source.batches import build
from streamtrain.source.record_batch import RecordBatch
from streamtrain.types import ChangeEvent, Operation

LIMIT = 10_000


Record = tuple[bytes, bytes, list[tuple[str, bytes]]]


def records(batch: RecordBatch) -> list[Record]:
    """What aiokafka reads in a batch."""
    read = MemoryRecords(batch._build()).next_batch()
    assert read.validate_crc()
    return [(record.key, record.value, record.headers) for record in read]


def event(identity: object, size: int = 10, **changes: object) -> ChangeEvent:
    document = bson.encode({"_id": identity, "x": "a" * size})
    key = bson.encode({"_id": identity})
    return ChangeEvent(b"", Operation.INSERT, "air.flights", key, document, 1 << 32, 5)._replace(**changes)


def built(events, counts=(0, 0, 0), batch_bytes=LIMIT):
    return build(events, counts=counts, timestamp_ms=1, max_record_bytes=LIMIT, batch_bytes=batch_bytes)


@given(
    ids=st.lists(st.integers(0, 50) | st.text("ab", max_size=3), max_size=60),
    counts=st.lists(st.integers(0, 10**9), min_size=1, max_size=7),
    batch_bytes=st.integers(1_000, LIMIT),
)
def test_every_event_is_in_its_partition_in_order_and_numbered_on(ids, counts, batch_bytes):
    events = [event(identity) for identity in ids]
    made = built(events, counts, batch_bytes)
    for partition, batches in made.batches.items():
        expected = [each for each in events if envelope.partition_of(each.document_key, len(counts)) == partition]
        assert all(batch.record_count() == 1 or batch.size() <= batch_bytes for batch in batches)
        found = [record for batch in batches for record in records(batch)]
        decoded = [envelope.decode(value, headers) for _, value, headers in found]
        assert [record.n for record in decoded] == list(range(counts[partition], made.counts[partition]))
        assert [record.document for record in decoded] == [each.document for each in expected]
    assert made.records == len(events) == sum(made.counts) - sum(counts)
    assert made.bytes == sum(len(each.document) for each in events)
    assert not made.unfit


def test_an_event_that_is_too_large_leaves_its_neighbours():
    events = [event(1), event(2, size=LIMIT), event(3)]
    made = built(events, counts=(0,))
    assert [(unfit.event, unfit.reason) for unfit in made.unfit] == [(events[1], "too-large")]
    assert made.counts == (2,)
    assert made.records == 2


def test_the_size_counts_the_id_in_key_and_header_too():
    identity = "a" * (LIMIT // 2)
    assert [unfit.reason for unfit in built([event(identity)]).unfit] == ["too-large"]
    assert not built([event("a" * (LIMIT // 4))]).unfit


def test_an_event_without_id_leaves_its_neighbours():
    events = [event(1), event(2, document_key=bson.encode({"carrier": "AA"})), event(3)]
    made = built(events, counts=(0,))
    assert [(unfit.event, unfit.reason) for unfit in made.unfit] == [(events[1], "no-id")]
    assert made.counts == (2,)


def test_the_key_of_a_sharded_collection_is_the_id_alone():
    made = built([event(1, document_key=bson.encode({"carrier": "AA", "_id": 1}))], counts=(0,))
    ((key, _, headers),) = records(made.batches[0][0])
    assert key == bson.encode({"_id": 1})
    assert dict(headers)["dk"] == bson.encode({"carrier": "AA", "_id": 1})
