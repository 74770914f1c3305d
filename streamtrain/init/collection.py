"""Looks at a collection: some of its documents, the newest ones, and for some seconds how it is written to. It only
reads, from a secondary where there is one, and stops at its own limits of time and bytes."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import bson
from bson import ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient, ReadPreference
from pymongo.collection import Collection
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

from streamtrain.clock import Clock
from streamtrain.errors import ConfigError, DependencyError, MongoError, StreamtrainError
from streamtrain.init.habits import Habits
from streamtrain.init.pace import Pace
from streamtrain.init.profile import Profile
from streamtrain.init.suggestion import Seen
from streamtrain.masking import Mask
from streamtrain.mongo_failure import text
from streamtrain.source.failures import meaning

SELECTION_TIMEOUT_S = 8.0
SAMPLE_TIMEOUT_S = 60.0
MOST_BYTES = 256 * 1024**2
NEWEST = 200
MOST_EVENTS = 100_000
_GETMORE_S = 0.25
_FEWEST_EVENTS = 10
_FEWEST_IDS = 50
_SHORTEST_GROWTH_S = 300.0

_OPTIONS: dict[str, Any] = {
    "serverSelectionTimeoutMS": int(SELECTION_TIMEOUT_S * 1000),
    "connectTimeoutMS": int(SELECTION_TIMEOUT_S * 1000),
    "appName": "streamtrain-init",
}
# Whatever a document holds can be read: dates beyond the calendar, texts that are no UTF-8.
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


def look(
    *,
    uri: str,
    database: str,
    collection: str,
    sample: int,
    watch_s: float,
    clock: Clock,
    say: Callable[[str], None] = lambda text: None,
) -> Seen:
    """say: told what is being done. Raises ConfigError or DependencyError when there is nothing to look at."""
    namespace = f"{database}.{collection}"
    with _connected(uri) as client, _explained(namespace):
        raw = client.get_database(database).with_options(codec_options=_RAW)
        there = raw.get_collection(collection, read_preference=ReadPreference.SECONDARY_PREFERRED)
        _followable(client, database, collection)
        say(f"reading up to {sample:,} documents of {namespace}")
        profile, ids = _profile(_sampled(there, sample), clock)
        if not profile.documents:
            raise _nothing(client, database, collection)
        newest, newest_ids = _profile(_newest(there, by_key=len(ids) == profile.documents), clock)
        count = there.estimated_document_count(maxTimeMS=int(SAMPLE_TIMEOUT_S * 1000))
        if watch_s > 0:
            say(f"watching for {watch_s:g} s how it is written to")
        habits = _watch(client[database].get_collection(collection, codec_options=CODEC), watch_s, clock)
        return Seen(
            database=database,
            collection=collection,
            profile=profile,
            newest=newest,
            habits=habits,
            pace=_pace(count, habits, sampled=ids, newest=newest_ids),
        )


@contextmanager
def _connected(uri: str) -> Iterator[MongoClient[dict[str, Any]]]:
    given = {name.lower() for name in re.findall(r"[?&]([^=&]+)=", uri)}
    options = {name: value for name, value in _OPTIONS.items() if name.lower() not in given}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # pymongo would ignore an option that it does not know
            client: MongoClient[dict[str, Any]] = MongoClient(uri, **options)
    except (PyMongoError, ValueError, UserWarning) as error:
        raise ConfigError(
            f"the uri cannot be used: {Mask.of([uri]).text(str(error))}",
            hint="it looks like mongodb://user:password@host:27017/?replicaSet=rs0",
        ) from None
    with client:
        yield client


@contextmanager
def _explained(namespace: str) -> Iterator[None]:
    try:
        yield
    except ServerSelectionTimeoutError as error:
        raise MongoError(
            f"MongoDB cannot be reached within {SELECTION_TIMEOUT_S:g} s: {text(error)}",
            hint="is it running, is the uri right, and does a firewall let you through?",
        ) from None
    except PyMongoError as error:
        known = meaning(error, namespace=namespace)
        raise known or MongoError(f"MongoDB failed while {namespace} was read: {text(error)}") from None


def _sampled(there: Collection[RawBSONDocument], sample: int) -> Iterator[RawBSONDocument]:
    """At random; where the server cannot, or not in time, what was written last."""
    limit_ms = int(SAMPLE_TIMEOUT_S * 1000)
    try:
        stages = [{"$sample": {"size": sample}}]
        yield from there.aggregate(stages, maxTimeMS=limit_ms, batchSize=100)
    except OperationFailure as error:
        if meaning(error, namespace=there.full_name) is not None:
            raise
        yield from there.find().sort("$natural", -1).limit(sample).max_time_ms(limit_ms)


def _newest(there: Collection[RawBSONDocument], *, by_key: bool) -> Iterator[RawBSONDocument]:
    """by_key: whether the keys are object ids, which tell the time; else in the order in which documents are stored,
    which is about that of their inserts."""
    try:
        order = "_id" if by_key else "$natural"
        yield from there.find().sort(order, -1).limit(NEWEST).max_time_ms(int(SAMPLE_TIMEOUT_S * 1000))
    except OperationFailure as error:
        if meaning(error, namespace=there.full_name) is not None:
            raise


def _profile(documents: Iterable[RawBSONDocument], clock: Clock) -> tuple[Profile, list[ObjectId]]:
    """And the keys that tell when they were made."""
    profile, ids = Profile(), []
    give_up = clock.monotonic() + SAMPLE_TIMEOUT_S
    for raw in documents:
        document = bson.decode(raw.raw, CODEC)
        profile.add(document, size=len(raw.raw))
        if isinstance(key := document.get("_id"), ObjectId):
            ids.append(key)
        if profile.bytes > MOST_BYTES or clock.monotonic() > give_up:
            break
    return profile, ids


def _watch(there: Collection[dict[str, Any]], seconds: float, clock: Clock) -> Habits:
    """What a change stream shows; why it shows nothing, where there can be none."""
    if seconds <= 0:
        return Habits()
    habits = Habits()
    began = clock.monotonic()
    try:
        with there.watch(max_await_time_ms=int(_GETMORE_S * 1000)) as stream:
            events = 0
            while habits.seconds < seconds and events < MOST_EVENTS:
                event = stream.try_next()
                habits.seconds = clock.monotonic() - began
                if event is not None:
                    habits.add(event)
                    events += 1
                elif not stream.alive:
                    break
    except PyMongoError as error:
        known = meaning(error, namespace=there.full_name)
        if known is not None and not isinstance(known, DependencyError):
            raise known from None
        habits.unseen = known.message if known is not None else text(error)
    return habits


def _pace(count: int, habits: Habits, *, sampled: list[ObjectId], newest: list[ObjectId]) -> Pace:
    """From what was seen being written, else from the time in which the younger half of the documents was made."""
    if habits.writes >= _FEWEST_EVENTS and habits.seconds:
        return Pace(count, habits.per_second(habits.writes), f"seen in {habits.seconds:.0f} s")
    times = sorted(key.generation_time.timestamp() for key in sampled)
    if len(times) < _FEWEST_IDS:
        return Pace(count)
    seconds = max(key.generation_time.timestamp() for key in (*sampled, *newest)) - times[len(times) // 2]
    if seconds < _SHORTEST_GROWTH_S:
        return Pace(count)  # loaded in one go: nothing is known of how it grows
    return Pace(count, count / 2 / seconds, "from the times in the keys")


def _followable(client: MongoClient[dict[str, Any]], database: str, collection: str) -> None:
    """Raises MongoError for what has documents but no changes to follow."""
    try:
        found = list(client[database].list_collections(filter={"name": collection}))
    except OperationFailure:
        return  # this user may not look; the change stream will tell
    kind = found[0].get("type", "collection") if found else "collection"
    if kind != "collection":
        raise MongoError(
            f"{database}.{collection} is a {kind}: MongoDB tells no changes of it",
            hint="name the collection that the documents are written to",
        )


def _nothing(client: MongoClient[dict[str, Any]], database: str, collection: str) -> StreamtrainError:
    """Why a collection gave no documents."""
    try:
        names = client[database].list_collection_names()
    except PyMongoError:
        names = [collection]  # it may be there: this user is not told
    if collection in names:
        return MongoError(
            f"{database}.{collection} is empty: there is nothing to suggest from",
            hint="write some documents as your application will, with and without what is to be predicted",
        )
    close = difflib.get_close_matches(collection, names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else ""
    if not close:
        hint = f"there are: {', '.join(sorted(names)[:20])}" if names else f"the database {database!r} is empty"
    return MongoError(f"there is no collection {database}.{collection}", hint=hint)
