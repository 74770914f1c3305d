"""The admin endpoint over real HTTP: who may ask what, and what wrong requests are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from streamtrain import metrics
from streamtrain.errors import DependencyError, PortInUseError, StreamtrainError, UsageError
from streamtrain.masking import Mask
from streamtrain.observe import connection
from streamtrain.observe.admin import MAX_BODY_BYTES, MAX_CONNECTIONS, Admin, bind
from streamtrain.observe.retrain_request import RetrainRequest

TOKEN = "s3cret-token"
SECRET = "hunter2"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


class FakeSubject:
    def __init__(self) -> None:
        self.unready: dict[str, str] = {}
        self.overdue: dict[str, str] = {}
        self.asked: list[tuple[str, ...]] = []
        self.wishes: list[RetrainRequest] = []
        self.refusal: StreamtrainError | None = None
        self.broken = False
        self.phase = "training"

    def status(self) -> Mapping[str, Any]:
        if self.broken:
            raise RuntimeError(TOKEN)
        return {"jobs": {"delay": {"phase": self.phase}}}

    def jobs(self) -> Sequence[str]:
        return ["delay"]

    def not_ready(self) -> Mapping[str, str]:
        return self.unready

    def stuck(self) -> Mapping[str, str]:
        return self.overdue

    async def pause(self, job: str) -> None:
        self.ask("pause", job)

    async def resume(self, job: str) -> None:
        self.ask("resume", job)

    def retrains(self, job: str) -> Sequence[Mapping[str, Any]]:
        return [{"lineage": f"of {job}", "reason": SECRET}]

    async def retrain(self, job: str, *, asked: RetrainRequest) -> Mapping[str, Any]:
        self.ask(job, asked.start)
        self.wishes.append(asked)
        return {"job": job, "from": asked.start}

    async def cancel_retrain(self, job: str, lineage: str) -> None:
        self.ask(f"cancel {job}", lineage)

    async def promote_retrain(self, job: str, lineage: str) -> None:
        self.ask(f"promote {job}", lineage)

    def ask(self, *words: str) -> None:
        if self.refusal:
            raise self.refusal
        self.asked.append(words)


@asynccontextmanager
async def serving(
    subject: FakeSubject, *, token: str | None = None, listen: str = "127.0.0.1:0"
) -> AsyncIterator[httpx.AsyncClient]:
    admin = Admin(subject=subject, listen=listen, token=token, mask=Mask([SECRET]))
    running = asyncio.create_task(admin.run())
    address = admin.address.replace("0.0.0.0", "127.0.0.1")
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            yield client
    finally:
        admin.stop()
        await running


async def test_health_names_what_is_not_well_and_why() -> None:
    subject = FakeSubject()
    async with serving(subject, token=TOKEN) as client:
        assert (await client.get("/livez")).text == "alive\n"
        assert (await client.get("/readyz")).status_code == 200
        subject.unready = {"source flights": "MongoDB cannot be reached"}
        subject.overdue = {"controller": "no tick for 40 s"}
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.text) == (503, "not ready\nsource flights: MongoDB cannot be reached\n")
        assert (await client.get("/livez")).status_code == 503


async def test_metrics_are_open_and_in_prometheus_form() -> None:
    metrics.ROUNDS.labels("in-prometheus-form").inc()
    async with serving(FakeSubject(), token=TOKEN) as client:
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert "# HELP streamtrain_rounds_total Rounds trained." in answer.text
        assert 'streamtrain_rounds_total{job="in-prometheus-form"} 1.0' in answer.text


async def test_status_needs_the_token_exactly_when_one_is_set() -> None:
    async with serving(FakeSubject()) as client:
        assert (await client.get("/v1/status")).json() == {"jobs": {"delay": {"phase": "training"}}}
    async with serving(FakeSubject(), token=TOKEN) as client:
        refused = await client.get("/v1/status")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert "is needed" in refused.text
        assert "is wrong" in (await client.get("/v1/status", headers={"Authorization": f"Bearer {TOKEN}x"})).text
        for header in ("", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ä"):
            answer = await client.get("/v1/status", headers={"Authorization": header.encode()})
            assert answer.status_code == 401
        assert (await client.get("/v1/status", headers=AUTHORISED)).status_code == 200


async def test_a_retrain_is_accepted_and_passed_on() -> None:
    subject = FakeSubject()
    async with serving(subject, token=TOKEN) as client:
        url = "/v1/jobs/delay/retrain"
        assert (await client.post(url, json={"from": "scratch"})).status_code == 401
        answer = await client.post(url, json={"from": "scratch"}, headers=AUTHORISED)
        assert (answer.status_code, answer.json()) == (202, {"job": "delay", "from": "scratch"})
        await client.post(url, json={}, headers=AUTHORISED)
    assert subject.asked == [("delay", "scratch"), ("delay", "weights")]


async def test_all_that_a_retrain_may_be_told_is_passed_on() -> None:
    subject = FakeSubject()
    body = {"from": "delay/l/3", "since": "6h", "until": "2026-12-01T06:00:00Z", "hyper": {"a.b": [1, 2.5, "x"]}}
    async with serving(subject) as client:
        answer = await client.post("/v1/jobs/delay/retrain", json={**body, "workers": 2, "promote": True})
        assert answer.status_code == 202
    (wish,) = subject.wishes
    assert (wish.since_ms(1_000_000.0), wish.until_ms(1_000_000.0)) == (978_400_000, 1_796_104_800_000)
    assert (wish.hyper, wish.workers, wish.promote) == ({"a.b": [1, 2.5, "x"]}, 2, True)


@pytest.mark.parametrize("path", ["pause", "resume", "retrain/l1/cancel", "retrain/l1/promote"])
async def test_what_changes_a_job_needs_the_token_and_nothing_more(path: str) -> None:
    subject = FakeSubject()
    url = f"/v1/jobs/delay/{path}"
    async with serving(subject, token=TOKEN) as client:
        assert (await client.post(url, json={})).status_code == 401
        assert (await client.post(url, json={"a": 1}, headers=AUTHORISED)).status_code == 422
        assert (await client.post(url.replace("delay", "other"), json={}, headers=AUTHORISED)).status_code == 404
        assert subject.asked == []
        assert (await client.post(url, json={}, headers=AUTHORISED)).status_code == 202
        subject.refusal = UsageError("there is no such lineage")
        assert (await client.post(url, json={}, headers=AUTHORISED)).status_code == 422
    assert len(subject.asked) == 1


async def test_retrains_are_listed_without_secrets() -> None:
    async with serving(FakeSubject()) as client:
        answer = await client.get("/v1/jobs/delay/retrain")
        assert answer.json() == {"job": "delay", "retrains": [{"lineage": "of delay", "reason": "********"}]}
        assert (await client.get("/v1/jobs/other/retrain")).status_code == 404


@pytest.mark.parametrize(
    ("job", "content", "content_type", "status"),
    [
        ("delay", b'{"from": 3}', "application/json", 422),
        ("delay", b'{"since": "yesterday"}', "application/json", 422),
        ("delay", b'{"since": 6}', "application/json", 422),
        ("delay", b'{"hyper": {"rate": NaN}}', "application/json", 422),
        ("delay", b'{"hyper": {"rate": 9223372036854775808}}', "application/json", 422),
        ("delay", b'{"hyper": [1]}', "application/json", 422),
        ("delay", b'{"workers": 0}', "application/json", 422),
        ("delay", b'{"promote": "no"}', "application/json", 422),
        ("delay", b'{"form": "scratch"}', "application/json", 422),
        ("delay", b"[]", "application/json", 422),
        ("delay", b"{", "application/json", 400),
        ("delay", b"[" * 5000, "application/json", 400),
        ("delay", b"\xff", "application/json", 400),
        ("delay", b"{}", "text/plain", 415),
        ("delay", b"", "", 415),
        ("delay", b" " * (MAX_BODY_BYTES + 1), "application/json", 413),
        ("other", b"{}", "application/json", 404),
    ],
)
async def test_a_wrong_request_is_answered_with_a_problem_document(
    job: str, content: bytes, content_type: str, status: int
) -> None:
    subject = FakeSubject()
    async with serving(subject) as client:
        answer = await client.post(f"/v1/jobs/{job}/retrain", content=content, headers={"Content-Type": content_type})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
        assert answer.json()["detail"]
    assert subject.asked == []


async def test_a_refusal_says_why() -> None:
    subject = FakeSubject()
    subject.refusal = StreamtrainError("a retrain runs already", hint="wait for it")
    async with serving(subject) as client:
        answer = await client.post("/v1/jobs/delay/retrain", json={})
        assert (answer.status_code, answer.json()["detail"]) == (409, "a retrain runs already\n  hint: wait for it")


async def test_no_answer_shows_a_secret() -> None:
    subject = FakeSubject()
    subject.unready = {"source flights": f"mongodb://reader:{SECRET}@db/ cannot be reached"}
    subject.phase = f"paused: {SECRET}"
    subject.refusal = StreamtrainError(f"not with {SECRET}")
    async with serving(subject) as client:
        for answer in (
            await client.get("/readyz"),
            await client.get("/v1/status"),
            await client.post("/v1/jobs/delay/retrain", json={}),
        ):
            assert SECRET not in answer.text
            assert "********" in answer.text


async def test_without_a_token_state_is_changed_from_this_machine_only() -> None:
    async with serving(FakeSubject(), listen="0.0.0.0:0") as client:
        answer = await client.post("/v1/jobs/delay/retrain", json={})
        assert answer.status_code == 403
        assert "set admin.token" in answer.json()["detail"]
        assert (await client.get("/v1/status")).status_code == 200


async def test_unknown_paths_and_methods_are_problem_documents() -> None:
    async with serving(FakeSubject()) as client:
        for answer in (await client.get("/nothing"), await client.delete("/v1/status")):
            assert answer.headers["content-type"] == "application/problem+json"


async def test_an_internal_error_does_not_show_its_text() -> None:
    subject = FakeSubject()
    subject.broken = True
    async with serving(subject) as client:
        answer = await client.get("/v1/status")
        assert answer.status_code == 500
        assert TOKEN not in answer.text
        assert json.loads(answer.text)["detail"].startswith("RuntimeError")


async def test_clients_that_never_finish_a_request_keep_nobody_out_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.5)
    async with serving(FakeSubject()) as client:
        await client.get("/livez")  # it listens
        host, port = client.base_url.host, client.base_url.port
        slow = [await asyncio.open_connection(host, port) for _ in range(MAX_CONNECTIONS)]
        for _, writer in slow:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: ")
            await writer.drain()
        async with asyncio.timeout(20):
            while (await client.get("/livez")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            for reader, writer in slow:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()


async def test_a_client_that_goes_on_asking_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.3)
    async with serving(FakeSubject()) as client:
        await client.get("/livez")
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        for _ in range(10):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n")
            assert (await reader.readuntil(b"alive\n")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.1)
        writer.close()


def test_a_taken_port_is_an_error_that_says_so() -> None:
    with bind("127.0.0.1:0") as taken:
        taken.listen()
        with pytest.raises(PortInUseError, match="in use by another process"):
            bind(f"127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize("listen", ["203.0.113.1:0", "no.such.host.invalid:0"])
def test_an_address_that_is_not_ours_is_an_error(listen: str) -> None:
    with pytest.raises(DependencyError):
        bind(listen)
