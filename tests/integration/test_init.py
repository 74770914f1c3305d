"""`streamtrain init` on the embedded MongoDB: what it writes validates and trains, it only reads, it hides passwords,
and where there is nothing to suggest it says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pymongo
import pytest
import yaml

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.errors import (
    EXIT_DEPENDENCY,
    EXIT_OK,
    EXIT_USAGE,
    AuthenticationError,
    ConfigError,
    MongoError,
    PermissionMissingError,
    UsageError,
)
from streamtrain.init.command import Options, Written, init
from streamtrain.sandbox.kafka_broker import free_ports
from streamtrain.sandbox.mongo_server import ThreadedMongo, User
from streamtrain.sandbox.streams import FlightEvent, flights
from streamtrain.settings import settings_file
from tests.deployment import Deployment, wait_until
from tests.integration.nasty_documents import nasty

SECRET = "hunter2-planted"
LEARN_S = 90.0
Client = pymongo.MongoClient[dict[str, Any]]


@pytest.fixture
def client(mongo_server: ThreadedMongo) -> Iterator[Client]:
    with pymongo.MongoClient[dict[str, Any]](mongo_server.uri) as found:
        yield found


def run(uri: str | None, folder: Path, collection: str, *, database: str = "shop", **options: Any) -> Written:
    values: dict[str, Any] = {
        "uri_file": None,
        "job": None,
        "label": None,
        "sample": 1000,
        "watch": "0s",
        "kafka": "127.0.0.1:9092",
        "output": str(folder / f"{collection}.yaml"),
        "force": False,
        **options,
    }
    wanted = Options(uri=uri, database=database, collection=collection, **values)
    return init(wanted, clock=SystemClock(), say=lambda _: None)


def command_line(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "streamtrain", *arguments], capture_output=True, text=True, timeout=120, cwd=folder
    )
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done


def write(client: Client, events: Iterator[FlightEvent], count: int) -> int:
    """Writes so many changes; the number of labels among them."""
    batch = list(islice(events, count))
    client["air"]["flights"].bulk_write([event.request() for event in batch], ordered=True)
    return sum("arr_delay" in event.fields for event in batch)


class Writing(threading.Thread):
    """Flights, until it is stopped."""

    def __init__(self, client: Client, events: Iterator[FlightEvent]) -> None:
        super().__init__(name="writing")
        self._client = client
        self._events = events
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            write(self._client, self._events, 20)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_it_writes_validates_and_trains(
    mongo_server: ThreadedMongo, client: Client, kafka_config: config.Kafka, tmp_path: Path
) -> None:
    """Of a tidy stream and of nasty documents, side by side in one daemon: TensorFlow takes seconds to start."""
    events = flights()
    write(client, events, 3000)
    client["shop"]["docs"].insert_many(nasty(400))
    writing = Writing(client, events)
    writing.start()
    tidy = run(mongo_server.uri, tmp_path, "flights", database="air", watch="2s")
    writing.stopped.set()
    writing.join()
    wild = run(mongo_server.uri, tmp_path, "docs")

    assert (tidy.suggestion.label.field, wild.suggestion.label.field) == ("arr_delay", "label")
    assert {each.field for each in tidy.suggestion.features} >= {"dep_delay", "carrier", "distance", "recent.dest"}
    left_out = {each.field for each in tidy.suggestion.left_out}
    assert left_out >= {"_id", "tailnum", "air_time", "arr_time"}
    assert tidy.suggestion.seen.habits.updates > 20

    settings, other = (yaml.safe_load(written.file.read_text()) for written in (tidy, wild))
    settings["sources"] += other["sources"]
    settings["jobs"] += other["jobs"]
    settings["kafka"] = {
        "bootstrap_servers": kafka_config.bootstrap_servers,
        "topic_prefix": kafka_config.topic_prefix,
    }
    settings["admin"] = {"listen": f"127.0.0.1:{free_ports(1)[0]}"}
    deployment = Deployment(config=settings, folder=tmp_path, python_path=Path(__file__).parents[2])
    done = command_line(tmp_path, "validate", "--connect")
    assert done.returncode == EXIT_OK, done.stderr
    assert done.stdout.splitlines()[1:3] == [f"ok    model of job {job['name']}" for job in settings["jobs"]]
    deployment.start()
    try:

        def jobs() -> dict[str, Any]:
            status = deployment.status()
            return {} if status is None else status["jobs"]

        wait_until(
            lambda: (found := jobs()) and all(job["phase"] == "training" for job in found.values()),
            timeout=LEARN_S,
            what="both jobs to train",
        )
        labels = write(client, events, 1500)
        client["shop"]["docs"].insert_many(nasty(300, first=400))
        wait_until(
            lambda: (
                jobs()["flights-arr-delay"]["rows_learned"] >= labels and jobs()["docs-label"]["rows_learned"] == 300
            ),
            timeout=LEARN_S,
            what=f"{labels} flights and 300 documents to be learned",
        )
        assert not any(job["report"]["dead_letter_reasons"] for job in jobs().values())
        assert deployment.drain() == EXIT_OK
    finally:
        deployment.stop()


def test_the_command_line_tells_what_it_found_and_what_to_do_next(
    mongo_server: ThreadedMongo, client: Client, tmp_path: Path
) -> None:
    client["shop"]["orders"].insert_many([{"items": n % 7, "price": 3.5 * (n % 7)} for n in range(200)])
    options = ["--uri", mongo_server.uri, "--database", "shop", "--collection", "orders", "--label", "price"]
    done = command_line(tmp_path, "init", *options, "--watch", "0s")
    assert done.returncode == EXIT_OK, done.stderr
    assert "predicts  price, a regression" in done.stdout
    assert "streamtrain validate --connect" in done.stdout
    assert done.stderr == "reading up to 1,000 documents of shop.orders\n"
    assert command_line(tmp_path, "validate", "--no-models").returncode == EXIT_OK

    again = command_line(tmp_path, "init", *options, "--watch", "0s")
    assert again.returncode == EXIT_USAGE
    assert "streamtrain.yaml exists already" in again.stderr
    assert "--force replaces it" in again.stderr

    done = command_line(tmp_path, "init", *options, "--watch", "0s", "--force", "--json")
    assert done.returncode == EXIT_OK
    found = json.loads(done.stdout)
    assert found["label"]["field"] == "price"
    assert [each["field"] for each in found["features"]] == ["items"]
    assert (found["sampled"], found["uri_file"]) == (200, None)


def test_a_password_goes_to_a_file_of_its_own_and_a_reader_is_enough(tmp_path: Path) -> None:
    users = [User("root", SECRET), User("looker", SECRET, roles=(("read", "shop"),))]
    mongo = ThreadedMongo(users=users)
    mongo.start()
    try:
        address = mongo.uri.removeprefix("mongodb://").rpartition("@")[2]
        root, looker = (f"mongodb://{name}:{SECRET}@{address}&authSource=admin" for name in ("root", "looker"))
        with pymongo.MongoClient[dict[str, Any]](root) as client:
            client["shop"]["orders"].insert_many([{"items": n % 7, "result": 0.5 * n} for n in range(100)])
        found = run(looker, tmp_path, "orders", watch="500ms")
        assert not found.suggestion.seen.habits.unseen
        assert found.uri_file == tmp_path / "orders.uri"
        assert found.uri_file.read_text() == f"{looker}\n"
        assert found.uri_file.stat().st_mode & 0o777 == 0o600
        assert SECRET not in found.file.read_text()
        loaded = settings_file.load(found.file, environ={})
        assert loaded.settings.sources[0].uri.get_secret_value() == looker

        named = run(None, tmp_path, "orders", uri_file=str(found.uri_file), output=str(tmp_path / "second.yaml"))
        assert named.uri_file is None
        assert "uri_file: orders.uri" in named.file.read_text().replace('"', "")

        with pytest.raises(PermissionMissingError, match=r"does not allow this user to follow other\.orders"):
            run(looker, tmp_path, "orders", database="other", force=True)
        done = command_line(
            tmp_path, "init", "--uri", looker.replace(SECRET, "wrong"), "--database", "shop", "--collection", "orders"
        )
        assert done.returncode == EXIT_DEPENDENCY
        assert "MongoDB refuses the credentials for shop.orders" in done.stderr
        with pytest.raises(AuthenticationError):
            run(looker.replace(SECRET, "wrong"), tmp_path, "orders", force=True)
        assert not (tmp_path / "streamtrain.yaml").exists()
    finally:
        mongo.stop()


@pytest.mark.parametrize("kind", ["unknown stage", "too slow"])
def test_a_server_that_cannot_sample_is_read_in_its_own_order(
    mongo_server: ThreadedMongo, client: Client, tmp_path: Path, kind: str
) -> None:
    client["shop"]["orders"].insert_many([{"items": n % 7, "result": 0.5 * n} for n in range(300)])
    mongo_server.faults.error("aggregate", 40324 if kind == "unknown stage" else 50)
    assert run(mongo_server.uri, tmp_path, "orders", sample=100).suggestion.seen.profile.documents == 100


def test_a_change_stream_that_cannot_be_opened_is_a_remark(
    mongo_server: ThreadedMongo, client: Client, tmp_path: Path
) -> None:
    client["shop"]["orders"].insert_many([{"items": n % 7, "result": 0.5 * n} for n in range(300)])
    mongo_server.faults.error("aggregate", 40573, skip=1, message="not a replica set")
    found = run(mongo_server.uri, tmp_path, "orders", watch="1s")
    assert "standalone server" in found.suggestion.seen.habits.unseen
    assert "could not be watched: the MongoDB of shop.orders is a standalone server" in " ".join(
        found.file.read_text().replace("#", "").split()
    )


def test_where_there_is_nothing_to_suggest_it_says_what_to_do(
    mongo_server: ThreadedMongo, client: Client, tmp_path: Path
) -> None:
    client["shop"].create_collection("empty")
    client["shop"].create_collection("seen", viewOn="static")
    with pytest.raises(MongoError, match=r"shop\.seen is a view") as told:
        run(mongo_server.uri, tmp_path, "seen")
    assert told.value.hint.startswith("name the collection")
    client["shop"]["static"].insert_many([{"a": n / 3, "kind": "st"[n % 2]} for n in range(100)])
    with pytest.raises(MongoError, match=r"shop\.empty is empty") as told:
        run(mongo_server.uri, tmp_path, "empty")
    assert told.value.hint.startswith("write some documents")
    with pytest.raises(MongoError, match=r"there is no collection shop\.sttic") as told:
        run(mongo_server.uri, tmp_path, "sttic")
    assert told.value.hint == "did you mean static?"
    with pytest.raises(UsageError, match="looks like what is to be predicted") as asked:
        run(mongo_server.uri, tmp_path, "static")
    assert asked.value.hint == "name it: --label FIELD; those that can be one: a"
    assert list(tmp_path.iterdir()) == []
    assert run(mongo_server.uri, tmp_path, "static", label="a").suggestion.job == "static-a"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"uri": "http://x"}, "not a MongoDB URI"),
        ({"uri": None}, "give --uri or --uri-file"),
        ({"uri": None, "uri_file": "/does/not/exist"}, "--uri-file /does/not/exist: No such file"),
        ({"database": "a b"}, "cannot hold ' '"),
        ({"kafka": "here"}, "--kafka: 'here' is not host:port"),
        ({"watch": "10"}, "--watch: '10' is not a duration"),
        ({"watch": "2h"}, "an hour at most"),
        ({"sample": 0}, "--sample 0"),
        ({"job": "Bad Name"}, "--job Bad Name"),
        ({"output": "/does/not/exist/x.yaml"}, "there is no folder"),
    ],
)
def test_a_wrong_option_is_told_before_any_server_is_asked(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        run(**{"uri": "mongodb://127.0.0.1:1", "folder": tmp_path, "collection": "orders", **options})
    assert told in str(error.value)


def test_a_server_that_cannot_be_reached_and_a_wrong_uri_are_told(tmp_path: Path) -> None:
    with pytest.raises(MongoError, match="cannot be reached"):
        run("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200", tmp_path, "orders")
    with pytest.raises(ConfigError, match="the uri cannot be used"):
        run("mongodb://127.0.0.1:1/?nonsense=1", tmp_path, "orders")
