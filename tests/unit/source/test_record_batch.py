"""The batches are byte for byte what aiokafka would build: a release that changes its builder fails here."""

import inspect

import bson
from aiokafka.producer.message_accumulator import BatchBuilder, MessageBatch
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.source import envelope
from streamtrain.source.record_batch import RecordBatch
from streamtrain.types import ChangeEvent, Operation

events = st.builds(
    ChangeEvent,
    token=st.just(b""),
    operation=st.sampled_from(Operation),
    namespace=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90),
    document_key=st.integers(0, 2**31 - 1).map(lambda i: bson.encode({"_id": i}))
    | st.text("xy", max_size=90).map(lambda s: bson.encode({"z": 1, "_id": s})),
    document=st.none() | st.sampled_from([0, 60, 130, 8_100, 8_191, 8_192, 20_000, 3_000_000]).map(bytes),
    cluster_time=st.integers(0, 2**64 - 1),
    wall_time_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
)


def both(listed, first: int, timestamp_ms: int = 1_700_000_000_000):
    ours = RecordBatch(timestamp_ms)
    theirs = BatchBuilder(10**9, 0, is_transactional=1)
    for n, event in enumerate(listed, first):
        key, value, headers = envelope.encode(event, n)
        ours.append(event, key, n)
        theirs.append(timestamp=timestamp_ms, key=key, value=value, headers=headers)
    return ours, theirs


@given(st.lists(events, min_size=1, max_size=5), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_the_bytes_are_those_of_aiokafkas_builder(listed, first, sequence):
    ours, theirs = both(listed, first)
    assert ours.size() == theirs.size()
    assert ours.record_count() == theirs.record_count()
    for batch in (ours, theirs):
        batch._set_producer_state(12345, 7, sequence)
    assert ours._build() == bytes(theirs._build())
    assert ours._build() is ours._build(), "it is sent again as it was"


def test_a_batch_of_more_records_than_the_prepared_numbers():
    event = ChangeEvent(b"", Operation.INSERT, "a.b", bson.encode({"_id": 1}), b"x", 1, 1)
    ours, theirs = both([event] * 10_000, 0)
    assert ours._build() == bytes(theirs._build())
    assert MemoryRecords(ours._build()).next_batch().validate_crc()


def test_aiokafka_asks_nothing_else_of_a_batch():
    """MessageBatch is the only user of a builder; what it calls must be there."""
    source = inspect.getsource(MessageBatch)
    called = {part.split("(")[0] for part in source.split("self._builder.")[1:]}
    # append is for single messages, which the publisher never sends
    assert called - {"append"} <= set(dir(RecordBatch))
