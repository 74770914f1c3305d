"""`make kafka`: puts the jars of Apache Kafka that jars.sha256 names into a folder, each checked against its hash.

Maven fetches them where it is installed; else a Maven repository in the standard layout that MAVEN_REPO_URL names.
Without either, and offline, it says so in one line and ends well: the tests that need Apache Kafka are skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
LOCK = HERE / "jars.sha256"
MAVEN_TIMEOUT_S = 600.0
DOWNLOAD_TIMEOUT_S = 60.0


class NotFetchedError(Exception):
    """Why there will be no Apache Kafka; no fault of the project."""


def read_lock() -> dict[str, str]:
    """sha256 by path in the repository's layout."""
    pairs = (line.split() for line in LOCK.read_text().splitlines() if line and not line.startswith("#"))
    return {path: digest for digest, path in pairs}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_complete(cache: Path, lock: dict[str, str]) -> bool:
    jars = {cache / Path(path).name: digest for path, digest in lock.items()}
    return set(cache.glob("*.jar")) == set(jars) and all(sha256(jar) == digest for jar, digest in jars.items())


def fetch_with_maven(maven: str, target: Path) -> None:
    command = [
        maven, "--batch-mode", "--quiet", "--strict-checksums", "--file", str(POM), "dependency:copy-dependencies",
        "-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true", f"-DoutputDirectory={target}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotFetchedError(f"mvn did not run: {type(error).__name__}") from error
    if done.returncode != 0:
        raise NotFetchedError("mvn could not fetch it (offline, or no Java?)")


def fetch_from(repository: str, lock: dict[str, str], target: Path) -> None:
    for path in lock:
        jar = target / path
        jar.parent.mkdir(parents=True, exist_ok=True)
        try:
            url = f"{repository.rstrip('/')}/{path}"
            with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as answer, jar.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except (OSError, ValueError) as error:
            raise NotFetchedError(f"MAVEN_REPO_URL did not give {jar.name}: {error}") from error


def fetch(target: Path, lock: dict[str, str]) -> None:
    if (maven := shutil.which("mvn")) is not None:
        fetch_with_maven(maven, target)
    elif repository := os.environ.get("MAVEN_REPO_URL"):
        fetch_from(repository, lock, target)
    else:
        raise NotFetchedError("neither mvn nor MAVEN_REPO_URL is there")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path, help="the folder for the jars")
    parser.add_argument("--lock", action="store_true", help="write jars.sha256 anew from what pom.xml resolves to")
    options = parser.parse_args()
    cache: Path = options.cache.resolve()
    lock = {} if options.lock else read_lock()
    if not options.lock and is_complete(cache, lock):
        return 0
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        target = Path(scratch) / "repository"
        try:
            fetch(target, lock)
        except NotFetchedError as reason:
            print(f"Apache Kafka is not fetched, tests that need it will be skipped: {reason}")
            return 0
        found = {jar.relative_to(target).as_posix(): jar for jar in sorted(target.rglob("*.jar"))}
        if options.lock and found:
            lines = [f"{sha256(jar)}  {path}\n" for path, jar in found.items()]
            LOCK.write_text(
                "# What pom.xml resolves to: `python tools/kafka/fetch.py --lock FOLDER`\n" + "".join(lines)
            )
            lock = read_lock()
        wrong = [path for path, digest in lock.items() if path not in found or sha256(found[path]) != digest]
        if wrong or len(found) != len(lock):
            print(f"what was fetched is not what {LOCK} names: {', '.join(wrong) or 'too many jars'}", file=sys.stderr)
            return 1
        shutil.rmtree(cache, ignore_errors=True)
        flat = Path(scratch) / "flat"
        flat.mkdir()
        for path, jar in found.items():
            jar.rename(flat / Path(path).name)
        flat.rename(cache)
    return 0


if __name__ == "__main__":
    sys.exit(main())
