"""The worker's end of the control connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from streamtrain.clock import FakeClock
from streamtrain.errors import WorkerError
from streamtrain.protocol import Form, Progress, Save, StartRound, Stop, encode, receive_message
from streamtrain.trainer.channel import Channel, connect
from streamtrain.types import Round

ROUND = Round(0, (), (), (), 0, 1)
LIMIT_S = 10.0


class Ends:
    def __init__(self) -> None:
        self.daemon, worker = socket.socketpair()
        self.daemon.settimeout(LIMIT_S)
        self.worker = worker
        self.clock = FakeClock()
        self.closed = threading.Event()
        self.channel = Channel(connection=worker, clock=self.clock, on_closed=self.closed.set)
        self.channel.start()

    def send(self, message: Any) -> None:
        self.daemon.sendall(encode(message))


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = Ends()
    yield found
    found.daemon.close()
    assert found.closed.wait(LIMIT_S)
    found.worker.close()


def form(generation: int) -> Form:
    return Form(
        generation, 1, 0, 1, "", {}, {}, {}, "t", 0, 1, "d", (), (), manifest=None, restore_weights=False, lineage="l",
        work_dir="",
    )  # fmt: skip


def test_messages_arrive_in_order_and_those_of_other_generations_are_dropped(ends: Ends) -> None:
    for message in (form(7), StartRound(6, ROUND), StartRound(7, ROUND), form(8), Save(8, "a"), Save(7, "b")):
        ends.send(message)
    assert [ends.channel.next() for _ in range(3)] == [form(7), StartRound(7, ROUND), Save(7, "b")]
    assert ends.channel.generation == 7


def test_a_message_is_seen_before_the_main_thread_takes_it(ends: Ends) -> None:
    seen: list[Any] = []
    ends.send(form(7))
    ends.channel.next()
    ends.channel.on_message(seen.append)
    ends.send(StartRound(7, ROUND))
    assert ends.channel.next() in seen


def test_progress_is_sent_at_most_once_a_second_and_adds_up(ends: Ends) -> None:
    ends.send(form(7))
    ends.channel.next()
    ends.channel.progress("step", 1)
    ends.channel.progress("step", 2)
    ends.channel.progress("step", 0)
    ends.clock.advance(1.0)
    ends.channel.progress("step", 4)
    assert [receive_message(ends.daemon) for _ in range(2)] == [Progress(7, "step", 1), Progress(7, "step", 6)]


def test_nothing_done_is_no_progress(ends: Ends) -> None:
    ends.channel.progress("step", 0)
    ends.channel.send(Save(0, "next"))
    assert receive_message(ends.daemon) == Save(0, "next")


def test_a_lost_connection_ends_the_process_even_while_messages_wait(ends: Ends) -> None:
    ends.send(form(7))
    ends.daemon.close()
    assert ends.closed.wait(LIMIT_S)


def test_a_broken_message_ends_the_process_too(ends: Ends) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda args: None)
        ends.daemon.sendall(b"\x05\x00\x00\x00\x00")
        assert ends.closed.wait(LIMIT_S)


def test_after_stop_a_closed_connection_is_no_failure() -> None:
    found = Ends()
    found.send(form(7))
    found.send(Stop(7))
    assert [type(found.channel.next()) for _ in range(2)] == [Form, Stop]
    found.daemon.close()
    for thread in threading.enumerate():
        if thread.name == "control":
            thread.join(LIMIT_S)
    assert not found.closed.is_set()
    found.worker.close()


@pytest.mark.parametrize("address", ["unix:/nowhere/at/all.sock", "127.0.0.1:1", "nonsense"])
def test_an_address_that_cannot_be_reached_is_named(address: str) -> None:
    with pytest.raises(WorkerError, match="cannot be reached"):
        connect(address)
