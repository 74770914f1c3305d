"""Filter, unchanged versions, weights, hold-out and deletes through a real topic, and what a restart makes of them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import bson
import numpy as np
import pytest

from streamtrain import config
from streamtrain.trainer.rows import RoundRows
from streamtrain.types import ChangeEvent, Learned, Operation, RoundCounts
from tests.contract.trainer.test_feed import JOB, PARTITIONS, event, feeding, rounds_to, take, write

DOCUMENTS = 60
WRITES = 600


def job_of(on_delete: str) -> config.Job:
    return config.Job.model_validate(
        {
            **JOB.model_dump(),
            "features": [*JOB.model_dump()["features"], {"field": "_id", "dtype": "int64"}],
            "filter": {"carrier": {"$nin": ["hidden"]}, "x": {"$lt": 9}},
            "weight": {"field": "w", "missing": 0.5},
            "holdout": "15%",
            "on_delete": on_delete,
        }
    )


@dataclass(frozen=True)
class Change:
    number: int
    operation: Operation
    document: dict[str, Any] | None


def history() -> list[Change]:
    """Documents come, change or only seem to, hide from the filter, lose and find their label, go and come again."""
    choose = random.Random(7)
    alive: dict[int, dict[str, Any]] = {}
    changes = []
    for _ in range(WRITES):
        number = choose.randrange(DOCUMENTS)
        before = alive.get(number)
        if before is None:
            document = {"x": float(choose.randrange(3)), "carrier": "c", "y": 1.0, "views": 0}
            operation = Operation.INSERT
        elif choose.random() < 0.15:
            del alive[number]
            changes.append(Change(number, Operation.DELETE, None))
            continue
        else:
            change = choose.choice(
                [{"views": before["views"] + 1}, {"x": 9.0}, {"x": 1.0}, {"w": 2.0}, {"y": None}, {"y": 3.0},
                 {"carrier": "hidden"}, {"carrier": "d"}]
            )  # fmt: skip
            document, operation = {**before, **change}, Operation.UPDATE
        alive[number] = document
        changes.append(Change(number, operation, document))
    return changes


def events_of(changes: Sequence[Change]) -> list[list[ChangeEvent]]:
    events = [event(c.number, c.document, c.operation, at=place + 1) for place, c in enumerate(changes)]
    return [events[first : first + 50] for first in range(0, len(events), 50)]


def assert_same(found: RoundRows, expected: RoundRows) -> None:
    assert found.counts == expected.counts
    assert found.learned == expected.learned
    for ours, theirs in zip(found.rows, expected.rows, strict=True):
        for name in ("weights", "scored", "wall_time_ms", "held", "offsets", "replayed"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
        for name, column in theirs.columns.items():
            np.testing.assert_array_equal(ours.columns[name], column)


@pytest.mark.parametrize("on_delete", ["forget", "keep"])
async def test_a_restart_goes_on_as_if_nothing_had_happened(kafka_config: config.Kafka, on_delete: str) -> None:
    job = job_of(on_delete)
    ends = await write(kafka_config, events_of(history()))
    rounds = rounds_to(kafka_config, ends, cuts=5, replay=25)
    with feeding(kafka_config, job=job) as feed:
        lived = take(feed, rounds)
    learned = (Learned(0, 0),) * PARTITIONS
    for round_, expected in zip(rounds, lived, strict=True):
        with feeding(kafka_config, job=job, learned=learned) as feed:
            assert_same(take(feed, [round_])[0], expected)
        learned = tuple(expected.learned[number] for number in range(PARTITIONS))
    total = sum((taken.counts for taken in lived), start=RoundCounts())
    assert min(total.learned, total.held_out, total.unchanged, total.filtered, total.deletes, total.replayed) > 10
    parts = (total.learned, total.held_out, total.unchanged, total.filtered, total.deletes, total.waiting)
    assert sum(parts) == WRITES


@pytest.mark.parametrize("on_delete", ["forget", "keep"])
async def test_what_is_gone_is_never_replayed_and_what_is_held_out_never_learned(
    kafka_config: config.Kafka, on_delete: str
) -> None:
    changes = history()
    ends = await write(kafka_config, events_of(changes))
    by_partition: list[list[Change]] = [[] for _ in range(PARTITIONS)]
    for change in changes:
        by_partition[zlib.crc32(bson.encode({"_id": change.number})) % PARTITIONS].append(change)
    with feeding(kafka_config, job=job_of(on_delete)) as feed:
        taken = take(feed, rounds_to(kafka_config, ends, cuts=6, replay=60))
    held_out: set[int] = set()
    learned: set[int] = set()
    deleted_and_replayed: set[int] = set()
    for round_ in taken:
        for rows in round_.rows:
            read = by_partition[rows.partition][: round_.learned[rows.partition].count]
            latest = {change.number: change for change in read}
            hidden = {number for number, change in latest.items() if change.document is not None and away(change)}
            deleted = {number for number, change in latest.items() if change.document is None}
            held = np.zeros(len(rows), np.bool_) if rows.held is None else rows.held
            assert rows.replayed is not None
            numbers = rows.columns["_id"]
            replayed = set(numbers[rows.replayed].tolist())
            held_out |= set(numbers[held].tolist())
            learned |= set(numbers[~held].tolist())
            assert replayed.isdisjoint(hidden)
            deleted_and_replayed |= replayed & deleted
            assert not rows.scored[held | rows.replayed].any()
            assert (rows.columns["x"] < 9).all()
            assert set(rows.weights.tolist()) <= {0.5, 2.0}
    assert held_out
    assert held_out.isdisjoint(learned)
    assert bool(deleted_and_replayed) is (on_delete == "keep")


def away(change: Change) -> bool:
    """Whether the filter turns this version away."""
    return change.document is not None and (change.document["x"] >= 9 or change.document["carrier"] == "hidden")
