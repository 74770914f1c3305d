"""The command line itself: what it imports, prints, and how it ends."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamtrain import __version__
from streamtrain.errors import EXIT_CONFIG, EXIT_DEPENDENCY, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE

GOOD = """\
kafka: {bootstrap_servers: "127.0.0.1:9092"}
admin: {token: hunter2}
sources: [{name: flights, uri: "mongodb://reader:hunter2@db/", database: air, collection: flights}]
jobs:
  - name: delay
    source: flights
    features: [{field: dep_delay, dtype: float32}]
    labels: [{field: arr_delay, dtype: float32, task: regression}]
"""
# What `--help` can do without.
HEAVY = {"pydantic", "pymongo", "aiokafka", "structlog", "starlette", "yaml", "numpy", "prometheus_client", "rich"}


def streamtrain(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMTRAIN")}
    command = [sys.executable, "-m", "streamtrain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=environment, check=False)


def test_help_names_the_commands_and_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['streamtrain', '--help']\n"
        "from streamtrain.cli.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_OK
    for command in (
        "demo",
        "run",
        "validate",
        "check-model",
        "status",
        "retrain",
        "models",
        "dead-letters",
        "config",
        "sandbox",
    ):
        assert f"\n  {command} " in done.stdout
    assert HEAVY.isdisjoint(ast.literal_eval(done.stderr))


@pytest.mark.parametrize(
    ("command", "module", "said"),
    [
        (["validate", "--no-models", "--connect"], "tensorflow", "hint: pip install 'streamtrain[cpu]'"),
        (["demo"], "rich", "needs the package 'rich', which is not installed"),
    ],
)
def test_a_missing_package_is_named(tmp_path: Path, command: list[str], module: str, said: str) -> None:
    (tmp_path / "streamtrain.yaml").write_text(GOOD.replace("@db/", "@127.0.0.1:1/?serverSelectionTimeoutMS=1"))
    script = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from importlib import util\n"
        "found = util.find_spec\n"
        f"util.find_spec = lambda name: None if name == {module!r} else found(name)\n"
        f"sys.argv = ['streamtrain', *{command!r}]\n"
        "from streamtrain.cli.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert done.returncode == EXIT_DEPENDENCY
    assert said in done.stderr


def test_a_command_without_arguments_shows_its_help() -> None:
    assert "Usage:" in streamtrain("sandbox").stdout + streamtrain("sandbox").stderr


def test_the_version_is_printed() -> None:
    assert streamtrain("version").stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["run", "--nonsense"], ["retrain"], ["retrain", "a", "--workers", "0"]]
)
def test_bad_arguments_end_with_2(arguments: list[str]) -> None:
    done = streamtrain(*arguments)
    assert done.returncode == EXIT_USAGE
    assert done.stdout == ""
    assert "Error" in done.stderr


def test_without_a_settings_file_it_says_where_it_looked(tmp_path: Path) -> None:
    done = streamtrain("config", folder=tmp_path)
    assert done.returncode == EXIT_CONFIG
    assert "no settings file: neither streamtrain.yaml nor /etc/streamtrain/streamtrain.yaml exists" in done.stderr


def test_data_goes_to_stdout_and_is_json_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "streamtrain.yaml").write_text(GOOD)
    done = streamtrain("config", "--json", "--set", "state.database=other", folder=tmp_path)
    assert done.returncode == EXIT_OK
    assert json.loads(done.stdout)["state"]["database"] == "other"
    assert "hunter2" not in done.stdout + done.stderr


def test_an_error_is_json_on_stdout_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "streamtrain.yaml").write_text(GOOD.replace("source: flights", "sorce: flights"))
    done = streamtrain("validate", "--json", folder=tmp_path)
    assert done.returncode == EXIT_CONFIG
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "SettingsError"
    assert [problem["place"] for problem in error["problems"]] == ["streamtrain.yaml:5:5", "streamtrain.yaml:6:5"]
    assert "did you mean 'source'?" in error["problems"][1]["message"]


def test_the_schema_is_printed_without_a_settings_file(tmp_path: Path) -> None:
    done = streamtrain("config", "--schema", folder=tmp_path)
    assert json.loads(done.stdout)["title"] == "Settings"


def test_the_sandbox_says_where_it_cannot_keep_its_data(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = streamtrain("sandbox", "up", "--mongo-port", "0", "--kafka-port", "0", "--data", str(tmp_path / "file"))
    assert ended.returncode == EXIT_DEPENDENCY
    assert f"cannot keep data in {tmp_path / 'file'}" in ended.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, EXIT_INTERRUPTED), (signal.SIGTERM, EXIT_OK)])
def test_the_sandbox_prints_its_addresses_and_ends_with_a_signal(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = ["sandbox", "up", "--mongo-port", "0", "--kafka-port", "0", "--data", str(tmp_path / "data"), "--json"]
    process = subprocess.Popen([sys.executable, "-m", "streamtrain", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        assert addresses["mongodb"].startswith("mongodb://127.0.0.1:")
        assert addresses["kafka"].startswith("127.0.0.1:")
        process.send_signal(number)
        assert process.wait(30) == code
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
