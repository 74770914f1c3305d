"""What an operator gets wrong, tried on the command line as they would: each is a clear error that says what to do,
with the right exit code, soon, and without showing a secret."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymongo
import pytest
import yaml
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streamtrain import config
from streamtrain.errors import EXIT_CONFIG, EXIT_DEPENDENCY, EXIT_OK, EXIT_USAGE
from streamtrain.kafka import topics
from streamtrain.sandbox.mongo_server import MongoProcess, ThreadedMongo
from tests.deployment import wait_until

SECRET = "hunter2-planted"
TIMEOUT_S = 120

Settings = dict[str, Any]


class CommandLine:
    """Runs `streamtrain COMMAND --config FILE` with the given settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run_until(self, line: str, settings: Settings) -> None:
        """`streamtrain run` until its log has the line; then it is drained."""
        path = self._folder / "streamtrain.yaml"
        path.write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "streamtrain", "run", "--config", str(path)]
        with (self._folder / "log").open("w") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: line in (self._folder / "log").read_text(), timeout=TIMEOUT_S, what=line)
            daemon.terminate()
            assert daemon.wait(TIMEOUT_S) == EXIT_OK
        finally:
            daemon.kill()
            daemon.wait()

    def __call__(self, command: str, settings: Settings | str, *arguments: str) -> tuple[int, str]:
        """The exit code, and everything that was printed."""
        path = self._folder / "streamtrain.yaml"
        path.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings, sort_keys=False))
        done = subprocess.run(
            [sys.executable, "-m", "streamtrain", command, "--config", str(path), *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(self._folder)},
            check=False,
        )
        printed = done.stdout + done.stderr
        assert SECRET not in printed
        assert "Traceback" not in printed
        return done.returncode, printed


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def settings(mongo_server: ThreadedMongo, kafka_config: config.Kafka) -> Settings:
    """Settings that work, on servers that run."""
    with pymongo.MongoClient(mongo_server.uri) as client:
        client["air"].create_collection("flights")
    return {
        "kafka": {"bootstrap_servers": kafka_config.bootstrap_servers, "topic_prefix": kafka_config.topic_prefix},
        "admin": {"listen": "127.0.0.1:0", "token": SECRET},
        "sources": [
            {
                "name": "flights",
                "uri": mongo_server.uri,
                "database": "air",
                "collection": "flights",
                "partitions": 2,
            }
        ],
        "jobs": [
            {
                "name": "delay",
                "source": "flights",
                "features": [{"field": "dep_delay", "dtype": "float32"}],
                "labels": [{"field": "arr_delay", "dtype": "float32", "task": "regression"}],
            }
        ],
    }


async def create_topic(kafka: config.Kafka, *, partitions: int, **options: str) -> None:
    admin = AIOKafkaAdminClient(**topics.kafka_options(kafka))
    await admin.start()
    try:
        name = topics.source_topic(kafka.topic_prefix, "flights", 0)
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=options)])
    finally:
        await admin.close()


# ------------------------------------------------------------------------------------------- settings


def test_settings_that_work_are_valid(command_line: CommandLine, settings: Settings) -> None:
    code, printed = command_line("validate", settings, "--no-models", "--connect")
    assert (code, printed.splitlines()[-1]) == (0, "ok    MongoDB of the state")


@pytest.mark.parametrize("command", ["run", "validate", "status", "config"])
def test_an_unknown_key(command_line: CommandLine, settings: Settings, command: str) -> None:
    settings["jobs"][0]["window"] = {"duraton": "6h"}
    code, printed = command_line(command, settings)
    assert code == EXIT_CONFIG
    assert "unknown key 'duraton'; did you mean 'duration'?" in printed
    assert "streamtrain.yaml:24:5: " in printed


def test_a_wrong_type(command_line: CommandLine, settings: Settings) -> None:
    settings["sources"][0]["partitions"] = "many"
    code, printed = command_line("run", settings)
    assert code == EXIT_CONFIG
    assert "partitions: should be a valid integer" in printed


def test_a_file_that_is_not_there(command_line: CommandLine, settings: Settings) -> None:
    code, printed = command_line("run", settings, "--config", "absent.yaml")
    assert code == EXIT_CONFIG
    assert "absent.yaml: No such file or directory" in printed


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["--set"], ["extra"]])
def test_wrong_arguments(command_line: CommandLine, settings: Settings, arguments: list[str]) -> None:
    code, _printed = command_line("run", settings, *arguments)
    assert code == EXIT_USAGE


# ------------------------------------------------------------------------------------------- MongoDB


def test_a_mongodb_that_cannot_be_reached(command_line: CommandLine, settings: Settings) -> None:
    settings["sources"][0]["uri"] = f"mongodb://reader:{SECRET}@127.0.0.1:1/?serverSelectionTimeoutMS=300"
    code, printed = command_line("run", settings)
    assert code == EXIT_DEPENDENCY
    assert "MongoDB at 127.0.0.1:1 cannot be reached" in printed
    assert "hint: is it running" in printed


def test_a_wrong_mongodb_password(command_line: CommandLine, settings: Settings, mongo_server: ThreadedMongo) -> None:
    mongo_server.faults.error("saslStart", 18, times=100)
    settings["sources"][0]["uri"] = mongo_server.uri.replace("mongodb://", f"mongodb://reader:{SECRET}@")
    code, printed = command_line("run", settings)
    assert code == EXIT_DEPENDENCY
    assert "refuses the credentials" in printed
    assert "check user, password and authSource" in printed


def test_a_standalone_mongod(
    command_line: CommandLine, settings: Settings, mongo_process: Callable[..., MongoProcess]
) -> None:
    standalone = mongo_process(replica_set=None)
    with pymongo.MongoClient(standalone.uri) as client:
        client["air"].create_collection("flights")
    settings["sources"][0]["uri"] = standalone.uri
    code, printed = command_line("run", settings)
    assert code == EXIT_DEPENDENCY
    assert "is a standalone server: change streams need a replica set" in printed
    assert "start mongod with --replSet" in printed


def test_a_missing_collection(command_line: CommandLine, settings: Settings) -> None:
    settings["sources"][0]["collection"] = "flihgts"
    code, printed = command_line("run", settings)
    assert code == EXIT_DEPENDENCY
    assert "there is no collection air.flihgts" in printed


def test_a_position_of_another_cluster(
    command_line: CommandLine, settings: Settings, mongo_process: Callable[..., MongoProcess]
) -> None:
    first, second = mongo_process(), mongo_process()
    for server in (first, second):
        with pymongo.MongoClient(server.uri) as client:
            client["air"].create_collection("flights")
    settings["state"] = {"uri": settings["sources"][0]["uri"]}
    settings["sources"][0]["uri"] = first.uri
    command_line.run_until("the source starts afresh", settings)
    settings["sources"][0]["uri"] = second.uri
    code, printed = command_line("run", settings)
    assert code == EXIT_CONFIG
    assert "belongs elsewhere" in printed


# ------------------------------------------------------------------------------------------- Kafka


def test_a_kafka_that_cannot_be_reached(command_line: CommandLine, settings: Settings) -> None:
    settings["kafka"]["bootstrap_servers"] = "127.0.0.1:1"
    code, printed = command_line("run", settings)
    assert code == EXIT_DEPENDENCY
    assert "Kafka at 127.0.0.1:1 cannot be reached" in printed
    assert "is kafka.bootstrap_servers right" in printed
    code, printed = command_line("validate", settings, "--no-models", "--connect")
    assert code == EXIT_DEPENDENCY
    assert "wrong Kafka of source flights\n  Kafka at 127.0.0.1:1 cannot be reached" in printed
    assert "Unable connect" not in printed  # the client's own words


@pytest.mark.parametrize("command", [["run"], ["validate", "--no-models", "--connect"]])
async def test_a_topic_with_another_partition_count(
    command_line: CommandLine, settings: Settings, kafka_config: config.Kafka, command: list[str]
) -> None:
    await create_topic(kafka_config, partitions=3)
    code, printed = command_line(command[0], settings, *command[1:])
    assert code == EXIT_DEPENDENCY
    assert "has 3 partitions, source 'flights' needs 2" in printed
    assert "set partitions: 3 of the source" in printed


@pytest.mark.parametrize("command", [["run"], ["validate", "--no-models", "--connect"]])
async def test_a_topic_whose_retention_is_too_short(
    command_line: CommandLine, settings: Settings, kafka_config: config.Kafka, command: list[str]
) -> None:
    await create_topic(
        kafka_config, partitions=2, **{"retention.ms": "60000", "message.timestamp.type": "LogAppendTime"}
    )
    code, printed = command_line(command[0], settings, *command[1:])
    assert code == EXIT_DEPENDENCY
    assert "keeps records for 60 s, kafka.retention asks for 259200 s" in printed


def test_a_window_that_is_longer_than_kafka_keeps(command_line: CommandLine, settings: Settings) -> None:
    settings["jobs"][0]["window"] = {"duration": "4d"}
    code, printed = command_line("validate", settings, "--no-models")
    assert code == EXIT_CONFIG
    assert "is longer than kafka.retention" in printed


# ------------------------------------------------------------------------------------------- models

MODELS = """\
def raises(schema, hyper):
    raise RuntimeError("no such layer")

def wrong(schema, hyper):
    return 3

def ends(schema, hyper):
    import os
    os._exit(3)

def vanishes(schema, hyper):
    import os
    os._exit(0)
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("broken_models:raises", "raised RuntimeError: no such layer"),
        ("broken_models:wrong", "returned int"),
        ("broken_models:ends", "the process that built it ended with status 3"),
        ("broken_models:vanishes", "the process that built it ended with status 0"),
        ("no_such_module:build", "importing failed: ModuleNotFoundError"),
    ],
)
def test_a_model_that_cannot_be_built(
    command_line: CommandLine, settings: Settings, tmp_path: Path, model: str, said: str
) -> None:
    (tmp_path / "broken_models.py").write_text(MODELS)
    settings["jobs"][0]["model"] = model
    code, printed = command_line("validate", settings)
    assert code == EXIT_CONFIG
    assert said in printed


@pytest.mark.tensorflow
def test_a_daemon_whose_only_model_cannot_be_built_ends(
    command_line: CommandLine, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "broken_models.py").write_text(MODELS)
    settings["jobs"][0]["model"] = "broken_models:wrong"
    code, printed = command_line("run", settings)
    assert code == EXIT_CONFIG
    assert "returned int" in printed
    assert "hint: return a keras.Model" in printed


# ------------------------------------------------------------------------------------------- the admin endpoint


def test_a_port_in_use(command_line: CommandLine, settings: Settings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings["admin"]["listen"] = f"127.0.0.1:{taken.getsockname()[1]}"
        code, printed = command_line("run", settings)
    assert code == EXIT_DEPENDENCY
    assert "is in use by another process" in printed
    assert "hint: stop it, or set another port" in printed


@pytest.mark.parametrize("command", [["status"], ["retrain", "delay"]])
def test_no_daemon_to_ask(command_line: CommandLine, settings: Settings, command: list[str]) -> None:
    settings["admin"]["listen"] = "127.0.0.1:1"
    code, printed = command_line(command[0], settings, *command[1:])
    assert code == EXIT_DEPENDENCY
    assert "no daemon answers at 127.0.0.1:1" in printed
