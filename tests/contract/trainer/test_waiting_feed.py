"""Documents that wait for their label, on real brokers: saved as places, read again when their time has come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamtrain import config
from streamtrain.trainer.feed import Feed
from streamtrain.trainer.rows import RoundRows
from streamtrain.trainer.waiting import Waiting
from streamtrain.trainer.waiting_file import read
from streamtrain.types import Learned, OffsetRange, Operation, Round
from tests.contract.source.numbered_events import source_topic
from tests.contract.trainer.test_feed import JOB, PARTITIONS, event, feeding, good, remove_before, write

PATIENCE_S = 1000.0  # event numbers are seconds here
DOCUMENTS = 300
LABEL = {"field": "y", "dtype": "float64", "task": "regression", "absent_after": PATIENCE_S, "absent_value": -1.0}
ALL = tuple(range(PARTITIONS))


def job(features_as_of: str = "label") -> config.Job:
    return config.Job.model_validate(JOB.model_dump() | {"labels": [LABEL], "features_as_of": features_as_of})


def waits(number: int) -> dict[str, object]:
    return {name: value for name, value in good(number).items() if name != "y"}


def rounds_between(
    kafka: config.Kafka, begins: Sequence[Learned], ends: Sequence[Learned], *, number: int = 0, watermark_s: int = 0
) -> Round:
    topic = source_topic(kafka)
    fresh = tuple(
        OffsetRange(topic, 0, partition, begin.offset, end.offset)
        for partition, (begin, end) in enumerate(zip(begins, ends, strict=True))
    )
    begun = tuple(begin.offset for begin in begins)
    return Round(number, fresh, begun, (0,) * PARTITIONS, 1, 32, watermark=watermark_s << 32)


def learn(feed: Feed, round_: Round) -> RoundRows:
    feed.submit(round_)
    return feed.next()


def rows(taken: Sequence[RoundRows]) -> dict[int, tuple[float, float, bool]]:
    """By the number in `carrier`'s place of a document: features and label that it was learned with, and scored."""
    found: dict[int, tuple[float, float, bool]] = {}
    for round_ in taken:
        for part in round_.rows:
            columns = (part.columns["x"], part.labels["y"], part.scored)
            for x, y, scored in zip(*columns, strict=True):
                number = int(x) % 1000
                assert number not in found
                found[number] = (float(x), float(y), bool(scored))
    return found


@pytest.mark.parametrize("features_as_of", ["label", "first"])
async def test_what_waits_is_found_again_by_any_number_of_ranks_long_after_the_window(
    kafka_config: config.Kafka, features_as_of: str
) -> None:
    """A third of the documents gets its label, a third is updated without one, a third stays as it is."""
    kafka, asked = kafka_config, job(features_as_of)
    numbers = range(DOCUMENTS)
    first = await write(kafka, [[event(n, waits(n)) for n in numbers[at : at + 50]] for at in range(0, DOCUMENTS, 50)])
    updated = [event(n, {**waits(n), "x": 1000.0 + n}, Operation.UPDATE, at=400) for n in numbers if n % 3 == 1]
    second = await write(kafka, [updated])
    late = [event(n, {**good(n), "x": 2000.0 + n}, Operation.UPDATE, at=500) for n in numbers if n % 3 == 0]
    third = await write(kafka, [late])

    with feeding(kafka, job=asked) as feed:
        begin = [Learned(0, 0)] * PARTITIONS
        taken = learn(feed, rounds_between(kafka, begin, first))
        assert (taken.waiting, taken.counts.waiting) == (DOCUMENTS, DOCUMENTS)
        taken = learn(feed, rounds_between(kafka, first, second))
        assert taken.waiting == DOCUMENTS
        assert taken.next_absent is not None
        content = feed.waiting_file()
        assert content is not None
        assert feed.next_absent == taken.next_absent

    saved: dict[int, Waiting] = read(content)
    found: list[RoundRows] = []
    for partitions in ((0, 2), (1,)):
        begins = [place.offset for place in second]
        with feeding(
            kafka, job=asked, learned=second, window_begins=begins, partitions=partitions, waiting=saved
        ) as rank:
            found.append(learn(rank, rounds_between(kafka, second, third)))
            over = 1000 + DOCUMENTS + int(PATIENCE_S) + 1
            found.append(learn(rank, rounds_between(kafka, third, third, watermark_s=over)))
            assert found[-1].waiting == 0
    learned = rows(found)
    assert set(learned) == set(numbers)
    as_first = features_as_of == "first"
    for number, (x, y, scored) in learned.items():
        latest = {0: 2000.0, 1: 1000.0, 2: 0.0}[number % 3]
        assert x == number + (0.0 if as_first else latest)
        assert y == (2.0 * number if number % 3 == 0 else -1.0)
        assert scored
    assert sum(round_.counts.late_labels for round_ in found) == DOCUMENTS // 3
    assert sum(round_.counts.absent_labels for round_ in found) == DOCUMENTS * 2 // 3
    assert sum(round_.counts.lost_waiting for round_ in found) == 0


async def test_documents_that_kafka_has_removed_are_counted_and_the_rest_is_learned(
    apache_kafka_config: config.Kafka,
) -> None:
    kafka, asked = apache_kafka_config, job()
    first = await write(kafka, [[event(n, waits(n)) for n in range(60)]])
    second = await write(kafka, [[event(n, waits(n)) for n in range(60, 90)]])
    begin = [Learned(0, 0)] * PARTITIONS
    with feeding(kafka, job=asked) as feed:
        learn(feed, rounds_between(kafka, begin, second))
        content = feed.waiting_file()
        assert content is not None
        await remove_before(kafka, first)
        taken = learn(feed, rounds_between(kafka, second, second, watermark_s=10_000))
    assert set(rows([taken])) == set(range(60, 90))
    assert taken.counts.lost_waiting == 60
    begins = [place.offset for place in second]
    with feeding(kafka, job=asked, learned=second, window_begins=begins, waiting=read(content)) as again:
        taken = learn(again, rounds_between(kafka, second, second, watermark_s=10_000))
    assert set(rows([taken])) == set(range(60, 90))
    assert taken.counts.lost_waiting == 60


async def test_a_job_without_patience_saves_no_places(kafka_config: config.Kafka) -> None:
    ends = await write(kafka_config, [[event(n, waits(n)) for n in range(10)]])
    with feeding(kafka_config) as feed:
        learn(feed, rounds_between(kafka_config, [Learned(0, 0)] * PARTITIONS, ends))
        assert feed.waiting_file() is None
        assert feed.next_absent is None
