"""Many waiting documents: what they take in memory, in a checkpoint, and of a save that follows another."""

from __future__ import annotations

import random
import resource
from time import process_time

import bson
import numpy as np
import pytest

from streamtrain.trainer.absence import Patience
from streamtrain.trainer.decode import WAITING, Decoded
from streamtrain.trainer.memory import PartitionMemory
from streamtrain.trainer.records import Records
from streamtrain.trainer.waiting_file import WaitingFiles, read
from streamtrain.trainer.waiting_index import NEVER, WaitingIndex
from tests.unit.trainer.waiting_case import SCHEMA

MANY = 5_000_000
CHECKPOINT_BYTES = 10_000_000
DOCUMENT_BYTES = 80
CHUNK = 100_000


def new_index() -> WaitingIndex:
    return WaitingIndex(Patience(SCHEMA).due, labels=1)


def key_of(number: int) -> bytes:
    return b"\x16\x00\x00\x00\x07_id\x00" + number.to_bytes(12, "big") + b"\x00"


def fill(index: WaitingIndex, numbers: range, *, density: float = 0.9) -> None:
    """A document at nearly each offset; the offsets between them are of others, and of commit markers."""
    for first in range(numbers.start, numbers.stop, CHUNK):
        some = np.arange(first, min(first + CHUNK, numbers.stop))
        keys = [key_of(number) for number in some.tolist()]
        gaps = np.random.default_rng(first).random(len(some)) >= density
        offsets = 2 * first + np.cumsum(1 + gaps) if density < 1 else some
        index.add_all(
            [b"d.c"] * len(some),
            keys,
            keys,
            firsts=offsets,
            latests=offsets,
            since=some << 20,
            missing=np.ones(len(some), np.int64),
        )


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_five_million_waiting_documents_take_little_memory_and_a_small_checkpoint() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = PartitionMemory(schema=SCHEMA, partition=0, half_life=1.0)
    fill(memory.waiting, range(MANY))
    assert len(memory.waiting) == MANY
    assert memory.nbytes / MANY <= DOCUMENT_BYTES
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown / MANY <= 2.5 * DOCUMENT_BYTES  # at its most: while the index grows there are two of it

    files = WaitingFiles({0: memory})
    began = process_time()
    content = files.content()
    first_save = process_time() - began
    assert len(content) < CHECKPOINT_BYTES

    for number in (17, MANY // 2):  # two labels come
        (row,) = memory.waiting.find(b"d.c", key_of(number))
        memory.waiting.remove(row)
    began = process_time()
    later = files.content()
    assert process_time() - began < max(0.05, first_save / 4), "only what has changed is compressed again"

    for saved, missing in ((content, 0), (later, 2)):
        found = read(saved)[0]
        assert len(found.firsts) == MANY - missing
        assert (found.missing == 1).all()
        assert (np.diff(found.firsts) > 0).all()
        np.testing.assert_array_equal(found.latests, found.firsts)
    np.testing.assert_array_equal(found.firsts, memory.waiting.places(memory.waiting.rows())[0])


def test_documents_are_found_by_identity_however_many_come_and_go() -> None:
    index, known = new_index(), dict[int, int]()
    chance = random.Random(5)
    for offset in range(30_000):
        number = chance.randrange(2000)
        rows = index.find(b"d.c", key_of(number))
        if number in known:
            (row,) = rows
            assert index.latest(row) == known[number]
            if chance.random() < 0.5:
                index.remove(row)
                del known[number]
            else:
                index.update(row, key_of(number), key_of(number), latest=offset, missing=1)
                known[number] = offset
        else:
            assert rows == ()
            key = key_of(number)
            index.add(b"d.c", key, key, first=offset, latest=offset, since=offset << 32, missing=1)
            known[number] = offset
    assert len(index) == len(known)
    assert index.find(b"d.e", key_of(next(iter(known)))) == ()
    assert {index.latest(row) for row in index.rows().tolist()} == set(known.values())
    assert index.nbytes < 400 * 2000


def test_an_index_whose_documents_come_and_go_takes_no_more_memory() -> None:
    index = new_index()
    sizes = []
    for begin in range(0, 200_000, 10_000):
        fill(index, range(begin, begin + 10_000), density=1.0)
        for row in index.rows(0, begin + 5_000).tolist():
            index.remove(row)
        sizes.append(index.nbytes)
    assert max(sizes[5:]) <= max(sizes[1:5]) * 1.2


def test_the_first_due_is_known_and_what_is_due_comes_in_order() -> None:
    index = new_index()
    fill(index, range(20_000))
    due = Patience(SCHEMA).due
    assert index.next_due == due(1, 0)
    rows = index.overdue(due(1, 9_000 << 20), 10**9)
    assert [index.since(row) >> 20 for row in rows] == list(range(9_000))
    for row in rows:
        index.remove(row)
    assert index.next_due == due(1, 9_000 << 20)
    assert len(index.overdue(NEVER, 100)) == 100


def test_a_checkpoint_tells_first_and_latest_versions_of_documents_that_were_updated() -> None:
    memory = PartitionMemory(schema=SCHEMA, partition=0, half_life=1.0)
    fill(memory.waiting, range(1000), density=0.01)
    rows = memory.waiting.rows().tolist()
    for row in rows[::7]:
        memory.waiting.update(row, b"", b"", latest=70_000 + 3 * row, missing=1)
    found = read(WaitingFiles({0: memory}).content())[0]
    firsts, latests, _ = memory.waiting.places(memory.waiting.rows())
    np.testing.assert_array_equal(found.firsts, firsts)
    np.testing.assert_array_equal(found.latests, latests)


def test_what_waits_in_vain_leaves_with_the_window_where_no_label_may_be_absent() -> None:
    schema = type(SCHEMA)(
        SCHEMA.features, (type(SCHEMA.labels[0])("y", SCHEMA.labels[0].dtype, SCHEMA.labels[0].task),)
    )
    memory = PartitionMemory(schema=schema, partition=0, half_life=1.0)
    keys = [bson.encode({"_id": number}) for number in range(10)]
    nothing = np.zeros(10, np.int64)
    records = Records(
        0, np.arange(10), np.arange(10), b"i" * 10, [b"d.c"] * 10, keys, keys, nothing, nothing, [b""] * 10
    )
    outcome = np.full(10, WAITING)
    decoded = Decoded(columns={"x": np.zeros(10)}, labels={"y": np.zeros(10)}, outcome=outcome, reasons={})
    memory.apply(records, outcome, decoded, np.arange(10))
    memory.evict(4)
    assert len(memory.waiting) == 6
    assert memory.waiting.next_due == NEVER
