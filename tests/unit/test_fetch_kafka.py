"""`make kafka` never fails for what a machine lacks, and never accepts a jar that is not the one it names."""

import hashlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools/kafka/fetch.py"
JAR = b"not really a jar"
PATH = "org/example/kafka/1/kafka-1.jar"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def fetch(tmp_path, monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LOCK", tmp_path / "jars.sha256")
    module.LOCK.write_text(f"# a comment\n{hashlib.sha256(JAR).hexdigest()}  {PATH}\n")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.delenv("MAVEN_REPO_URL", raising=False)
    monkeypatch.setattr(sys, "argv", ["fetch.py", str(tmp_path / "cache/kafka")])
    return module


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Iterator[Path]:
    folder = tmp_path / "repository"
    (folder / PATH).parent.mkdir(parents=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("MAVEN_REPO_URL", f"http://127.0.0.1:{server.server_port}/")
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def test_without_maven_it_says_so_in_one_line_and_ends_well(fetch, tmp_path, capsys):
    assert fetch.main() == 0
    assert "skipped: neither mvn nor MAVEN_REPO_URL is there" in capsys.readouterr().out
    assert not (tmp_path / "cache/kafka").exists()


def test_a_repository_gives_what_is_named_once(fetch, repository, tmp_path, capsys):
    (repository / PATH).write_bytes(JAR)
    assert fetch.main() == 0
    assert (tmp_path / "cache/kafka/kafka-1.jar").read_bytes() == JAR
    (repository / PATH).unlink()
    assert fetch.main() == 0, "it is there already"
    assert capsys.readouterr().out == ""


def test_an_offline_repository_is_no_failure(fetch, repository, capsys):
    assert fetch.main() == 0
    assert "skipped: MAVEN_REPO_URL did not give kafka-1.jar" in capsys.readouterr().out


def test_a_jar_with_other_content_is_refused(fetch, repository, tmp_path, capsys):
    (repository / PATH).write_bytes(b"something else")
    assert fetch.main() == 1
    assert PATH in capsys.readouterr().err
    assert not (tmp_path / "cache/kafka").exists()


def test_a_damaged_cache_is_fetched_again(fetch, repository, tmp_path):
    (repository / PATH).write_bytes(JAR)
    assert fetch.main() == 0
    (tmp_path / "cache/kafka/kafka-1.jar").write_bytes(b"damaged")
    assert fetch.main() == 0
    assert (tmp_path / "cache/kafka/kafka-1.jar").read_bytes() == JAR
