"""Which dead letters are replayed: each once for each time that its record could not be learned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamtrain.redrive.letters import Choice, Letter, Replayed, by_record, choose, parse

LETTER = Letter(
    topic="t.s.0",
    partition=1,
    offset=7,
    reason="type:dep_delay",
    field="dep_delay",
    lineage="b",
    attempt=0,
    written_ms=1000,
    key=b"k",
    value=b"v",
    headers=[("v", b"\x01"), ("n", bytes(8))],
    whole=True,
)
HEADERS = [
    ("reason", b"type:dep_delay"),
    ("field", b"dep_delay"),
    ("origin", b"t.s.0/1/7"),
    ("lineage", b"b"),
    ("attempt", b"0"),
    ("key", b"k"),
    ("v", b"\x01"),
    ("n", bytes(8)),
]


def chosen(*letters: Letter, replayed: Replayed = Replayed(), **options: str) -> Choice:  # noqa: B008 - frozen
    return choose(letters, replayed=replayed, topic="t.s.0", written_after_ms=500, log_starts=(0, 5), **options)


def after(*letters: Letter) -> Replayed:
    """What the replay topic holds once these have been replayed."""
    return Replayed.of(
        [
            ("origin", letter.origin.encode()),
            ("lineage", letter.lineage.encode()),
            ("after", str(letter.attempt).encode()),
        ]
        for letter in letters
    )


def test_a_letter_is_read_as_it_was_written() -> None:
    assert parse(b"v", HEADERS, 1000) == LETTER


def test_one_of_an_earlier_release_has_no_lineage() -> None:
    old = parse(b"v", [header for header in HEADERS if header[0] not in ("lineage", "attempt")], 1000)
    assert old == replace(LETTER, lineage="", attempt=0)


@pytest.mark.parametrize("headers", [[], [("origin", b"nonsense"), ("reason", b"r")], [("origin", b"t/1/2")]])
def test_what_is_no_letter_is_passed_over(headers: list[tuple[str, bytes]]) -> None:
    assert parse(b"v", headers, 0) is None


@pytest.mark.parametrize("left_out", ["key", "v"])
def test_a_letter_that_only_names_its_record_is_known_by_what_it_lacks(left_out: str) -> None:
    letter = parse(b"", [header for header in HEADERS if header[0] != left_out], 0)
    assert letter is not None
    assert not letter.whole
    assert chosen(replace(letter, written_ms=1000)).left == {"without their document": 1}


def test_of_a_large_record_only_its_size_is_there() -> None:
    letter = parse(b"", [*HEADERS, ("bytes", b"17000000")], 1000)
    assert letter is not None
    assert not letter.whole


def test_the_letters_that_count_are_those_of_each_lineage_after_its_last_replay() -> None:
    letters = [replace(LETTER, lineage=lineage, attempt=n) for lineage, n in (("a", 3), ("b", 0), ("b", 1), ("b", 0))]
    assert by_record(letters) == [[replace(LETTER, lineage="a", attempt=3), replace(LETTER, lineage="b", attempt=1)]]


def test_a_letter_that_was_replayed_is_not_replayed_again() -> None:
    assert chosen(LETTER).letters == (LETTER,)
    assert chosen(LETTER, replayed=after(LETTER)) == Choice((), {"replayed before": 1})


def test_one_that_failed_again_is() -> None:
    again = replace(LETTER, attempt=1)
    assert chosen(LETTER, again, replayed=after(LETTER)).letters == (again,)


def test_one_that_another_lineage_could_not_learn_either_is() -> None:
    later = replace(LETTER, lineage="c")
    assert chosen(LETTER, later, replayed=after(LETTER)).letters == (later,)
    assert after(LETTER, later).times == {"t.s.0/1/7": 2}


def test_each_lineage_that_could_not_learn_a_record_gets_its_own_letter() -> None:
    """One that is learned beside the job must not take the job's letter away."""
    beside = replace(LETTER, lineage="c")
    assert chosen(beside, LETTER) == Choice((LETTER, beside), {})
    assert chosen(beside, LETTER, replayed=after(beside)) == Choice((LETTER,), {})
    assert chosen(beside, LETTER, replayed=after(beside, LETTER)) == Choice((), {"replayed before": 1})


def test_letters_are_chosen_by_reason_and_field() -> None:
    other = replace(LETTER, offset=8, reason="missing:distance", field="distance")
    assert chosen(LETTER, other, reason="type").letters == (LETTER,)
    assert chosen(LETTER, other, reason="missing:distance").letters == (other,)
    assert chosen(LETTER, other, field="distance") == Choice((other,), {"not asked for": 1})
    assert chosen(LETTER, other, reason="type", field="distance").letters == ()


def test_what_may_have_been_replayed_already_or_deleted_since_is_left() -> None:
    old = replace(LETTER, written_ms=499)
    before_the_log = replace(LETTER, offset=4)
    elsewhere = replace(LETTER, topic="t.s.1")
    assert chosen(old, before_the_log, elsewhere) == Choice((), {"too old": 2, "of an earlier topic": 1})
