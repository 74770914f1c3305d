import bson
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.source import envelope
from streamtrain.source.batches import build
from streamtrain.types import ChangeEvent, Operation

LIMIT = 10_000


class ListBuilder:
    """aiokafka's builder as a list that holds at most `room` records."""

    def __init__(self, room: int) -> None:
        self.records = []
        self._room = room

    def append(self, *, timestamp, key, value, headers):
        if len(self.records) == self._room:
            return None
        self.records.append((key, value, headers))
        return object()

    def record_count(self):
        return len(self.records)

    def size(self):
        return 0


def event(identity: object, size: int = 10, **changes: object) -> ChangeEvent:
    document = bson.encode({"_id": identity, "x": "a" * size})
    key = bson.encode({"_id": identity})
    return ChangeEvent(b"", Operation.INSERT, "air.flights", key, document, 1 << 32, 5)._replace(**changes)


def built(events, counts=(0, 0, 0), room=100):
    return build(events, counts=counts, create=lambda: ListBuilder(room), timestamp_ms=1, max_record_bytes=LIMIT)


@given(
    ids=st.lists(st.integers(0, 50) | st.text("ab", max_size=3), max_size=60),
    counts=st.lists(st.integers(0, 10**9), min_size=1, max_size=7),
    room=st.integers(1, 9),
)
def test_every_event_is_in_its_partition_in_order_and_numbered_on(ids, counts, room):
    events = [event(identity) for identity in ids]
    made = built(events, counts, room)
    left = {p: [e for e in events if envelope.partition_of(e.document_key, len(counts)) == p] for p in made.batches}
    for partition, batches in made.batches.items():
        records = [record for batch in batches for record in batch.records]
        assert all(batch.records for batch in batches)
        decoded = [envelope.decode(value, headers) for _, value, headers in records]
        assert [record.n for record in decoded] == list(range(counts[partition], made.counts[partition]))
        assert [record.document for record in decoded] == [each.document for each in left[partition]]
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
    ((key, _, headers),) = made.batches[0][0].records
    assert key == bson.encode({"_id": 1})
    assert dict(headers)["dk"] == bson.encode({"carrier": "AA", "_id": 1})
