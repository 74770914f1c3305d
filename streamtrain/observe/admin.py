"""The admin endpoint: liveness, readiness, metrics, status, and the few requests that change state. It only
shows and passes on: what there is to say or do comes through the `Subject` port."""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Protocol

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from streamtrain.errors import ConfigError, DependencyError, PortInUseError, StreamtrainError, UsageError
from streamtrain.masking import Mask
from streamtrain.observe.connection import Connection
from streamtrain.observe.retrain_request import RetrainRequest, read_request

MAX_BODY_BYTES = 64 * 1024
BODY_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 64


class Subject(Protocol):
    """What the endpoint shows and passes requests to (`daemon.py`)."""

    def status(self) -> Mapping[str, Any]: ...

    def jobs(self) -> Sequence[str]: ...

    def not_ready(self) -> Mapping[str, str]:
        """Per part that does not do its work now, why."""

    def stuck(self) -> Mapping[str, str]:
        """Per part that has made no progress within its deadline, what it was doing."""

    async def pause(self, job: str) -> None:
        """This and what follows raise StreamtrainError when the job cannot now, UsageError for what cannot be."""

    async def resume(self, job: str) -> None: ...

    def retrains(self, job: str) -> Sequence[Mapping[str, Any]]: ...

    async def retrain(self, job: str, *, asked: RetrainRequest) -> Mapping[str, Any]:
        """Begins to learn a range of the topic again, beside the job."""

    async def cancel_retrain(self, job: str, lineage: str) -> None: ...

    async def promote_retrain(self, job: str, lineage: str) -> None: ...


class Admin:
    """Serves `Subject` on one address until `stop` (or cancellation)."""

    def __init__(self, *, subject: Subject, listen: str, token: str | None, mask: Mask) -> None:
        """mask: what to leave out of every answer."""
        self._subject = subject
        self._mask = mask
        self._listen = listen
        self._token = token
        self._socket = bind(listen)
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._open = token is not None or ipaddress.ip_address(host).is_loopback
        self._server = _Server(
            uvicorn.Config(
                self.application(),
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(STOP_TIMEOUT_S),
                limit_concurrency=MAX_CONNECTIONS,
                http=Connection,
            )
        )

    async def run(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        self._server.should_exit = True

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/livez", self._livez),
                Route("/readyz", self._readyz),
                Route("/metrics", self._metrics),
                Route("/v1/status", self._status),
                Route("/v1/jobs/{job}/pause", self._pause, methods=["POST"]),
                Route("/v1/jobs/{job}/resume", self._resume, methods=["POST"]),
                Route("/v1/jobs/{job}/retrain", self._retrains, methods=["GET"]),
                Route("/v1/jobs/{job}/retrain", self._retrain, methods=["POST"]),
                Route("/v1/jobs/{job}/retrain/{lineage}/cancel", self._cancel, methods=["POST"]),
                Route("/v1/jobs/{job}/retrain/{lineage}/promote", self._promote, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _refused, Exception: _broken},
        )

    def _health(self, reasons: Mapping[str, str], word: str) -> Response:
        """200 and the word, or 503 and a line for each part that is not."""
        if not reasons:
            return PlainTextResponse(f"{word}\n")
        lines = [f"{part}: {self._mask.text(reason)}" for part, reason in sorted(reasons.items())]
        return PlainTextResponse("\n".join([f"not {word}", *lines, ""]), status_code=HTTPStatus.SERVICE_UNAVAILABLE)

    async def _livez(self, _request: Request) -> Response:
        return self._health(self._subject.stuck(), "alive")

    async def _readyz(self, _request: Request) -> Response:
        return self._health(self._subject.not_ready(), "ready")

    async def _metrics(self, _request: Request) -> Response:
        return PlainTextResponse(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    async def _status(self, request: Request) -> Response:
        self._authorise(request)
        return JSONResponse(self._mask.value(self._subject.status()))

    async def _pause(self, request: Request) -> Response:
        job = self._job(request, changes_state=True)
        await _json_body(request, known=())
        return await self._done(self._subject.pause(job), {"job": job})

    async def _resume(self, request: Request) -> Response:
        job = self._job(request, changes_state=True)
        await _json_body(request, known=())
        return await self._done(self._subject.resume(job), {"job": job})

    async def _retrains(self, request: Request) -> Response:
        job = self._job(request)
        return JSONResponse(self._mask.value({"job": job, "retrains": list(self._subject.retrains(job))}))

    async def _retrain(self, request: Request) -> Response:
        self._authorise(request, changes_state=True)
        body = await _json_body(request)
        try:
            asked = read_request(body)
        except UsageError as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, error.message) from error
        return await self._done(self._subject.retrain(self._job(request, changes_state=True), asked=asked))

    async def _cancel(self, request: Request) -> Response:
        job, lineage = self._job(request, changes_state=True), request.path_params["lineage"]
        await _json_body(request, known=())
        return await self._done(self._subject.cancel_retrain(job, lineage), {"job": job, "lineage": lineage})

    async def _promote(self, request: Request) -> Response:
        job, lineage = self._job(request, changes_state=True), request.path_params["lineage"]
        await _json_body(request, known=())
        return await self._done(self._subject.promote_retrain(job, lineage), {"job": job, "lineage": lineage})

    def _job(self, request: Request, *, changes_state: bool = False) -> str:
        """The job that the path names, for one who may."""
        self._authorise(request, changes_state=changes_state)
        job: str = request.path_params["job"]
        if job not in self._subject.jobs():
            known = ", ".join(self._subject.jobs())
            raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no job {job!r}; there are: {known}")
        return job

    async def _done(
        self, work: Awaitable[Mapping[str, Any] | None], answer: Mapping[str, Any] | None = None
    ) -> Response:
        """202 with what the subject answers, or with `answer`."""
        try:
            found = await work
        except (UsageError, ConfigError) as error:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, self._mask.text(str(error))) from error
        except StreamtrainError as error:
            raise HTTPException(HTTPStatus.CONFLICT, self._mask.text(str(error))) from error
        return JSONResponse(answer if found is None else found, status_code=HTTPStatus.ACCEPTED)

    def _authorise(self, request: Request, *, changes_state: bool = False) -> None:
        if self._token is None:
            if changes_state and not self._open:
                raise HTTPException(
                    HTTPStatus.FORBIDDEN,
                    f"{self._listen} can be reached from other machines: set admin.token to allow what changes state",
                )
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(given.strip().encode(), self._token.encode())
        if scheme.lower() != "bearer" or not matches:
            raise HTTPException(
                HTTPStatus.UNAUTHORIZED,
                "the bearer token is wrong: it must be the value of admin.token"
                if given
                else "a bearer token is needed: the value of admin.token",
                headers={"WWW-Authenticate": "Bearer"},
            )


def bind(listen: str) -> socket.socket:
    """A listening socket, bound before anything else starts so that a taken port is an error at once."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise DependencyError(
            f"admin.listen: {host!r} is no address of this machine", hint="use an IP address"
        ) from error
    server = socket.socket(family, kind, protocol)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"admin.listen: {listen} is in use by another process",
                hint="stop it, or set another port, such as --set admin.listen=127.0.0.1:0 for any free one",
            ) from error
        raise DependencyError(f"admin.listen: cannot listen on {listen}: {error.strerror}") from error
    server.setblocking(False)
    return server


class _Server(uvicorn.Server):
    """uvicorn inside a loop that handles its own signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _json_body(request: Request, *, known: Sequence[str] | None = None) -> dict[str, Any]:
    """The body as a JSON object. known: its keys, where they are few. Its content type is insisted on: a foreign web
    page cannot send that one without a preflight, which is never answered."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the content type must be application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the connection was closed") from None
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None
    if not isinstance(document, dict):
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "the body must be a JSON object")
    if known is not None and (unknown := sorted(document.keys() - set(known))):
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, f"unknown key {unknown[0]!r}")
    return document


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(HTTPStatus(error.status_code), error.detail, error.headers)


async def _broken(_request: Request, error: Exception) -> Response:
    # The error itself goes to the log; its text could hold what a client should not see.
    return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}; the log says more", None)


def _problem(status: HTTPStatus, detail: str, headers: Mapping[str, str] | None) -> Response:
    """A problem document (RFC 9457)."""
    return JSONResponse(
        {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail},
        status_code=status,
        headers=headers,
        media_type="application/problem+json",
    )
