"""What a real MongoDB 4.4 said is what the sandbox says, request by request; where not, it is written down here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from streamtrain.sandbox.mongo_server import ThreadedMongo
from tests.contract.corpus_replay import RECORDED, Difference, Replay, read

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus"

REPLAYED = (
    "rs-hello", "rs-crud", "rs-gridfs", "rs-sessions", "rs-types", "rs-ops", "rs-lookup", "rs-pipelines", "rs-resume",
    "rs-ddl", "rs-ttl", "rs-transactions", "rs-awaiting", "rs-stepdown", "small-history", "standalone-standalone",
)  # fmt: skip

LEFT_OUT = {
    "rs-large": "the padding of its documents was cut, so their sizes are not those that were refused",
    "auth-auth": "the sandbox has no users",
    **dict.fromkeys(
        [f"sh-{name}" for name in ("awaiting", "crud", "ddl", "events", "hello", "large", "lookup", "migration", "ops",
                                   "pipelines", "resume", "topology", "transactions", "ttl", "types")],
        "the sandbox is a replica set; mongos behaves in other ways",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that is meant: patterns of scenario, command and path, and why."""

    scenario: str
    command: str
    path: str
    reason: str


NEWER = "MongoDB 7.0 answers so; the corpus is from 4.4"
STATE = "depends on what the recording server had gone through before"
STATISTICS = "the sandbox has no such engine; it answers the fields that clients of this project read"

KNOWN = (
    Known("*", "event", "*.wallTime", "events have it since 6.0"),
    Known("*", "event", "*.updateDescription.truncatedArrays", "updates name truncated arrays since 5.0"),
    Known("rs-ddl", "event", "rename[[]?[]].<order>", "`to` stands behind `ns` since 5.0"),
    Known("rs-ddl", "event", "rename[[]7[]].ns.coll", "the random name of a temporary collection"),
    Known("rs-pipelines", "event", "*.<order>", "4.4 keeps a place for fullDocument in events that have none"),
    Known(
        "rs-types", "event", "insert[[]22[]]._id._typeBits", "the sandbox keeps one code for all doubles, -0.0 included"
    ),
    Known("rs-ttl", "event", "count", "the TTL monitor runs by the clock, which a replay does not wait for"),
    Known("*", "hello", ".topologyVersion", "left out, so that monitors poll instead of waiting"),
    Known("*", "ismaster", ".topologyVersion", "left out, so that monitors poll instead of waiting"),
    Known("rs-stepdown", "insert", ".topologyVersion", "left out, so that monitors poll instead of waiting"),
    Known("*", "hello", ".maxWireVersion", NEWER),
    Known("*", "ismaster", ".maxWireVersion", NEWER),
    Known("*", "hello", ".connectionId", STATE),
    Known("*", "ismaster", ".connectionId", STATE),
    Known("*", "dropDatabase", ".dropped", STATE),
    Known("*", "killCursors", ".cursors*", STATE),
    Known("*", "createIndexes", ".<order>", NEWER),
    Known("rs-crud", "createIndexes", ".errmsg", NEWER),
    Known("rs-crud", "drop", ".*", "7.0 drops what is not there without an error"),
    Known("rs-crud", "aggregate", ".cursor.firstBatch.*", "$sample is random"),
    Known("*", "find", ".cursor.<order>", "4.4 orders the cursor of a collection that does not exist in another way"),
    Known("rs-sessions", "abortTransaction", ".errmsg", NEWER),
    Known(
        "rs-lookup",
        "aggregate",
        ".*",
        "7.0 knows whenAvailable, required and showExpandedEvents; pre-images are refused",
    ),
    Known("rs-hello", "replSetGetStatus", ".*", STATISTICS),
    Known("rs-hello", "serverStatus", ".*", STATISTICS),
    Known("rs-hello", "collStats", ".*", STATISTICS),
    Known("rs-hello", "dbStats", ".*", STATISTICS),
    Known("rs-hello", "buildInfo", ".*", "another product"),
    Known("rs-hello", "features", ".*", "removed in later versions"),
    Known("rs-hello", "listCommands", ".*", "the sandbox does not list its commands"),
    Known("rs-hello", "whatsmyuri", ".*", "the sandbox does not know it"),
    Known("rs-hello", "getParameter", ".featureCompatibilityVersion.version", NEWER),
    Known("rs-hello", "listDatabases", ".databases", STATE),
    Known("rs-hello", "insert", ".*", "names with a dollar are stored since 5.0"),
)


class RecordedClock:
    """The wall clock of the recording, moved on by the cluster times that pass by."""

    def __init__(self) -> None:
        self._now = float(RECORDED[0])

    def set(self, seconds: int) -> None:
        self._now = max(self._now, float(seconds))

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def known(difference: Difference) -> Known | None:
    for entry in KNOWN:
        if (
            fnmatchcase(difference.scenario, entry.scenario)
            and fnmatchcase(difference.command, entry.command)
            and fnmatchcase(difference.path, entry.path)
        ):
            return entry
    return None


@cache
def replay(scenario: str) -> Replay:
    """The scenario against a fresh server that lives in the recording's time."""
    path = CORPUS / f"{scenario}.bson"
    if not path.exists():
        pytest.skip("the recorded corpus is not beside this checkout (../shared/corpus)")
    clock = RecordedClock()
    server = ThreadedMongo(clock=clock, replica_set=None if scenario.startswith("standalone") else "rs0")
    server.start()
    try:
        run = Replay(scenario, server.port, clock.set, _actions(scenario, server))
        run.run(list(read(path)), frozenset())
    finally:
        server.stop()
    return run


def _actions(scenario: str, server: ThreadedMongo) -> Mapping[int, Callable[[], None]]:
    """What the recording did to its server beside the messages, by the message that follows."""
    if scenario != "small-history":
        return {}

    def overwrite_oplog() -> None:
        server.call(server.server.dispatcher.engine.note)
        server.cut_oplog()

    return {22: overwrite_oplog}


@pytest.mark.parametrize("scenario", REPLAYED)
def test_sandbox_answers_as_the_recorded_server_did(scenario: str) -> None:
    run = replay(scenario)
    unknown = [str(difference) for difference in run.differences if known(difference) is None]
    assert unknown == []
    assert run.compared > 5


def test_every_recorded_scenario_is_replayed_or_left_out_by_name() -> None:
    if not CORPUS.exists():
        pytest.skip("the recorded corpus is not beside this checkout (../shared/corpus)")
    recorded = {path.stem for path in CORPUS.glob("*.bson")}
    assert recorded == {*REPLAYED, *LEFT_OUT}
    assert not set(REPLAYED) & set(LEFT_OUT)


def test_every_known_difference_still_exists() -> None:
    used: Counter[Known] = Counter()
    for scenario in REPLAYED:
        used.update(entry for difference in replay(scenario).differences if (entry := known(difference)) is not None)
    assert [entry for entry in KNOWN if not used[entry]] == []
