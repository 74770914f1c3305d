"""A job's dead letters as they lie in its topic, and which of them are to be replayed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field

Headers = Sequence[tuple[str, bytes]]

_LETTER_HEADERS = frozenset({"reason", "field", "origin", "lineage", "attempt", "key", "bytes"})


@dataclass(frozen=True, slots=True)
class Letter:
    """topic, partition, offset: where its record lies. field: of the reason, empty where it speaks of none. lineage:
    the one that could not learn it. attempt: how often it had been replayed before that. value, headers: the record's
    own, without what the letter adds. whole: whether the letter holds all of its record."""

    topic: str
    partition: int
    offset: int
    reason: str
    field: str
    lineage: str
    attempt: int
    written_ms: int
    key: bytes
    value: bytes
    headers: Headers
    whole: bool

    @property
    def origin(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def parse(value: bytes | None, headers: Headers, written_ms: int) -> Letter | None:
    """The letter that `trainer.dead_letters` wrote; None for what is none."""
    found = dict(headers)
    try:
        topic, partition, offset = found["origin"].decode().rsplit("/", 2)
        return Letter(
            topic=topic,
            partition=int(partition),
            offset=int(offset),
            reason=found["reason"].decode(),
            field=found.get("field", b"").decode(),
            lineage=found.get("lineage", b"").decode(),
            attempt=int(found.get("attempt", b"0")),
            written_ms=written_ms,
            key=found.get("key", b""),
            value=value or b"",
            headers=[header for header in headers if header[0] not in _LETTER_HEADERS],
            whole="key" in found and "v" in found and "bytes" not in found,
        )
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the replay topic holds. letters: the origin, lineage and attempt of each letter that was replayed. times:
    how often each origin was."""

    letters: frozenset[tuple[str, str, int]] = frozenset()
    times: Mapping[str, int] = dataclass_field(default_factory=dict)

    @classmethod
    def of(cls, headers: Iterable[Headers]) -> Replayed:
        found = [dict(each) for each in headers]
        origins = [each["origin"].decode() for each in found]
        letters = (
            (origin, each["lineage"].decode(), int(each["after"])) for origin, each in zip(origins, found, strict=True)
        )
        return cls(frozenset(letters), Counter(origins))

    def holds(self, letter: Letter) -> bool:
        return (letter.origin, letter.lineage, letter.attempt) in self.letters


def by_record(letters: Iterable[Letter]) -> list[list[Letter]]:
    """Of each record, in order, the letters that count: of every lineage that could not learn it the one after its last
    replay, the newest lineage's last."""
    found: dict[str, dict[str, Letter]] = {}
    for letter in letters:
        lineages = found.setdefault(letter.origin, {})
        known = lineages.get(letter.lineage)
        if known is None or letter.attempt >= known.attempt:
            lineages[letter.lineage] = letter
    records = [[lineages[lineage] for lineage in sorted(lineages)] for lineages in found.values()]
    return sorted(records, key=lambda record: (record[0].topic, record[0].partition, record[0].offset))


@dataclass(frozen=True, slots=True)
class Choice:
    """letters: those to replay. left: how many other records there are, by why."""

    letters: tuple[Letter, ...]
    left: Mapping[str, int]


def choose(
    letters: Iterable[Letter],
    *,
    replayed: Replayed,
    topic: str,
    written_after_ms: int,
    log_starts: Sequence[int],
    reason: str | None = None,
    field: str | None = None,
) -> Choice:
    """topic: the source's; letters of another epoch's have other partitions. written_after_ms: what is older may have
    been replayed, and expired in the replay topic. log_starts: of the source's topic, per partition: whether a document
    was deleted after a record that lies before them is not known any more."""
    chosen: list[Letter] = []
    left: Counter[str] = Counter()

    def why_not(letter: Letter) -> str | None:
        if not matches(letter, reason=reason, field=field):
            return "not asked for"
        if replayed.holds(letter):
            return "replayed before"
        if not letter.whole:
            return "without their document"
        if letter.topic != topic or letter.partition >= len(log_starts):
            return "of an earlier topic"
        if letter.written_ms < written_after_ms or letter.offset < log_starts[letter.partition]:
            return "too old"
        return None

    for record in by_record(letters):
        # A lineage learns its own letters only: each has to be replayed.
        reasons = [why_not(letter) for letter in record]
        chosen += [letter for letter, told in zip(record, reasons, strict=True) if told is None]
        if (told := reasons[-1]) is not None and None not in reasons:
            left[told] += 1
    return Choice(tuple(chosen), dict(left))


def matches(letter: Letter, *, reason: str | None, field: str | None) -> bool:
    """reason: whole (`type:dep_delay`), or what stands before the colon."""
    return reason in (None, letter.reason, letter.reason.partition(":")[0]) and field in (None, letter.field)
