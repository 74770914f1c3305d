"""A worker without TensorFlow: speaks the protocol, keeps a ledger of the offsets it learned in place of weights,
and misbehaves as the variable FAKE_WORKER says (see `Behaviour`)."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from streamtrain.artifacts import open_store
from streamtrain.protocol import (
    Failed,
    Form,
    Formed,
    Message,
    Progress,
    Ready,
    RoundReported,
    Save,
    Saved,
    StartRound,
    Stop,
    encode,
    receive_message,
)
from streamtrain.types import FRESHNESS_BUCKETS_MS, ArtifactRef, Learned, RoundCounts, RoundReport, Scores

Ledger = dict[int, list[list[int]]]

REPLAYED = 1000
"""Partitions of the replay topic follow from here on in the ledger."""


class Behaviour:
    """FAKE_WORKER is `what` or `what@where`: where is `start`, `form`, `save` or a round's number.

    what: absent (never connects), exit, kill (SIGKILL), freeze (SIGSTOP), hang (sleeps without progress), spin
    (takes processor time for ever), toil (for 4 s), busy (progress for ever), long (for 3 s), fail (Failed), fatal
    (Failed, for good), wrong (a report that contradicts the round), slow (0.2 s for every round, with progress),
    deaf (ignores SIGTERM), stranger (guesses the token).
    """

    def __init__(self, text: str) -> None:
        self.what, _, self.where = text.partition("@")

    def at(self, place: str, worker: Worker | None = None) -> None:
        if self.where != place:
            return
        if self.what == "absent":
            time.sleep(3600)
        elif self.what in ("spin", "toil"):
            end = time.monotonic() + (3600 if self.what == "spin" else 4.0)
            while time.monotonic() < end:
                pass
        elif self.what == "exit":
            os._exit(3)
        elif self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.what == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.what == "hang":
            time.sleep(3600)
        elif self.what == "long" and worker is not None:
            for _ in range(30):
                time.sleep(0.1)
                worker.send(Progress(worker.form.generation, "step", 1))
        elif self.what == "busy" and worker is not None:
            while True:
                time.sleep(0.05)
                worker.send(Progress(worker.form.generation, "step", 1))
        elif self.what in ("fail", "fatal") and worker is not None:
            kind = "ModelError" if self.what == "fatal" else "UnavailableError"
            worker.send(Failed(worker.form.generation, kind, "told to fail", "stop telling it", kind == "ModelError"))
            os._exit(70)


class Worker:
    def __init__(self, connection: socket.socket, behaviour: Behaviour) -> None:
        self.connection = connection
        self.behaviour = behaviour
        self.inbox: SimpleQueue[Message | None] = SimpleQueue()
        self.form: Form
        self.ledger: Ledger = {}
        self.rounds = 0
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        while True:
            message = receive_message(self.connection)
            if message is None:
                os._exit(70)
            self.inbox.put(message)

    def send(self, message: Message) -> None:
        self.connection.sendall(encode(message))

    def serve(self) -> None:
        while True:
            message = self.inbox.get()
            if isinstance(message, Form):
                self.form = message
                self.behaviour.at("form", self)
                self.restore()
                self.send(Formed(message.generation, "fake model", {"build": 0.0}))
            elif isinstance(message, StartRound):
                self.train(message)
            elif isinstance(message, Save):
                self.behaviour.at("save", self)
                self.save(message)
            elif isinstance(message, Stop):
                os._exit(0)

    def restore(self) -> None:
        manifest = self.form.manifest
        if manifest is not None and self.form.restore_weights:
            path = Path(self.form.work_dir) / f"restored-{os.getpid()}"
            open_store(self.form.artifacts).get(manifest.artifacts["state"], path)
            self.ledger = {int(p): ranges for p, ranges in json.loads(path.read_text()).items()}
            self.rounds = manifest.rounds if manifest.lineage == self.form.lineage else 0

    def train(self, message: StartRound) -> None:
        asked = message.round
        if self.behaviour.what == "slow":
            for _ in range(4):
                time.sleep(0.05)
                self.send(Progress(self.form.generation, "step", 1))
        self.behaviour.at(str(asked.number), self)
        assert asked.number == self.rounds
        learned = {}
        rows = 0
        for part in asked.fresh:
            if part.span:
                self.ledger.setdefault(part.partition, []).append([part.begin, part.end])
            if part.partition % self.form.world == self.form.rank:
                rows += part.span
                learned[part.partition] = Learned(part.end, part.end)
        redriven = {}
        for part in asked.redriven:
            assert part.topic == self.form.replay_topic
            if part.span:
                self.ledger.setdefault(REPLAYED + part.partition, []).append([part.begin, part.end])
                if part.partition % self.form.world == self.form.rank:
                    redriven[part.partition] = part.end
        if self.behaviour.what == "wrong" and self.behaviour.where == str(asked.number):
            learned = {p: Learned(0, 0) for p in learned}
        self.rounds += 1
        self.send(
            RoundReported(
                self.form.generation,
                RoundReport(
                    round=asked.number,
                    learned=learned,
                    counts=RoundCounts(learned=rows, replayed=sum(asked.replay)),
                    steps=1,
                    scores={"y": Scores(rows=1, weight=1.0, loss=0.5)} if asked.scored else {},
                    dead_letter_reasons={},
                    freshness_ms=(0,) * (len(FRESHNESS_BUCKETS_MS) + 1),
                    timings={"total": 0.001},
                    redriven=redriven,
                ),
            )
        )

    def save(self, message: Save) -> None:
        artifacts: dict[str, ArtifactRef] = {}
        if self.form.rank == 0:
            content = json.dumps(self.ledger).encode()
            artifacts["state"] = open_store(self.form.artifacts).put(message.prefix + "state", content)
        self.send(Saved(self.form.generation, self.rounds, artifacts, 0.001))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True)
    control = parser.parse_args().control.removeprefix("unix:")
    behaviour = Behaviour(os.environ.get("FAKE_WORKER", ""))
    if behaviour.what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    behaviour.at("start")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(control)
    worker = Worker(connection, behaviour)
    token = os.environ["STREAMTRAIN_JOIN_TOKEN"]
    worker.send(
        Ready(token="guessed" if behaviour.what == "stranger" else token, pid=os.getpid(), host="127.0.0.1", port=1)
    )
    worker.serve()


if __name__ == "__main__":
    sys.exit(main())
