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
from streamtrain.errors import DependencyError, PortInUseError, StreamtrainError
from streamtrain.masking import Mask
from streamtrain.observe import connection
from streamtrain.observe.admin import MAX_BODY_BYTES, MAX_CONNECTIONS, Admin, RetrainFrom, bind

TOKEN = "s3cret-token"
SECRET = "hunter2"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


class FakeSubject:
    def __init__(self) -> None:
        self.unready: dict[str, str] = {}
        self.overdue: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
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

    async def retrain(self, job: str, *, start: RetrainFrom) -> Mapping[str, Any]:
        if self.refusal:
            raise self.refusal
        self.asked.append((job, start))
        return {"job": job, "from": start}


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


@pytest.mark.parametrize(
    ("job", "content", "content_type", "status"),
    [
        ("delay", b'{"from": "nothing"}', "application/json", 422),
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
