"""Sources that are killed while the collection is written: the topic holds what was written, once (I1)."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.integration.source.at_work import Writer, check_topic, streaming

KILLS = 4
ROOT = Path(__file__).resolve().parents[3]


class _Writing:
    """Inserts, replacements and deletes in a thread until it is told to end."""

    def __init__(self, uri: str, seed: int) -> None:
        self.writer = Writer(uri).__enter__()
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        alive: list[int] = []
        number = 0
        while not self._stop.wait(0.0005):
            choice = self._rng.random()
            if choice < 0.6 or not alive:
                number += 1
                alive.append(number)
                self.writer.insert({"_id": number, "v": 0})
            elif choice < 0.9:
                self.writer.replace({"_id": self._rng.choice(alive), "v": self._rng.random()})
            else:
                self.writer.delete(alive.pop(self._rng.randrange(len(alive))))


def _run_and_kill(command: list[str], *, transactions: int) -> None:
    """Kills the child after as many transactions, at no particular place in the next."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        for _ in range(transactions):
            assert child.stdout.readline()
        child.kill()


@pytest.mark.apache
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_whenever_a_source_is_killed_every_change_is_in_the_topic_once(mongo_server, apache_kafka_config, seed):
    rng = random.Random(seed)
    command = [sys.executable, "-m", "tests.integration.source.run_source", mongo_server.uri]
    command += [apache_kafka_config.bootstrap_servers, apache_kafka_config.topic_prefix]
    writing = _Writing(mongo_server.uri, seed)
    async with streaming(mongo_server.uri, kafka=apache_kafka_config):
        pass  # from here on nothing may be missing
    with writing:
        for _ in range(KILLS):
            await asyncio.to_thread(_run_and_kill, command, transactions=rng.randrange(1, 30))
    with writing.writer as writer:
        async with streaming(mongo_server.uri, kafka=apache_kafka_config):
            await check_topic(apache_kafka_config, writer)
