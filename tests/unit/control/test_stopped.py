from __future__ import annotations

from streamtrain.control.stopped import Stopped


class FakeProcess:
    pid = 7
    log = "nowhere"

    def __init__(self) -> None:
        self.is_stopped = False

    def stopped(self) -> bool:
        return self.is_stopped

    def cpu_s(self) -> float | None:
        return None

    async def wait(self) -> int:
        return 0

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


def test_a_process_that_stands_stopped_for_long_enough_is_given_up() -> None:
    process = FakeProcess()
    stopped = Stopped(process, index=1)
    assert stopped.overdue(10.0, 4.0) is None
    process.is_stopped = True
    assert stopped.overdue(100.0, 4.0) is None
    assert stopped.overdue(103.9, 4.0) is None
    assert stopped.overdue(104.0, 4.0) == "worker 1 (pid 7) has stood stopped by a signal for 4 s"


def test_a_process_that_goes_on_in_between_is_not_given_up() -> None:
    process = FakeProcess()
    stopped = Stopped(process, index=0)
    for now in range(0, 100, 2):
        process.is_stopped = now % 4 == 0
        assert stopped.overdue(float(now), 4.0) is None


def test_a_process_whose_state_cannot_be_told_is_not_given_up() -> None:
    stopped = Stopped(FakeProcess(), index=0)
    assert all(stopped.overdue(now, 4.0) is None for now in (0.0, 1e6))
