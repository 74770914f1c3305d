"""Asks a running daemon's admin endpoint: what `status`, `pause`, `resume` and `retrain` are made of."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from streamtrain.config import Admin
from streamtrain.errors import AuthenticationError, DependencyError, StreamtrainError, UsageError

TIMEOUT_S = 10.0


class AdminClient:
    """address: host:port. Raises DependencyError when nothing answers there, AuthenticationError when the token
    is refused, UsageError for a job that does not exist, StreamtrainError for what the daemon refuses now."""

    def __init__(self, *, address: str, token: str | None) -> None:
        host, _, port = address.rpartition(":")
        wildcard = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}
        self._address = f"{wildcard.get(host, host)}:{port}"
        self._token = token

    @classmethod
    def of(cls, admin: Admin) -> AdminClient:
        return cls(address=admin.listen, token=admin.token.get_secret_value() if admin.token else None)

    def status(self) -> dict[str, Any]:
        return self._request("GET", "/v1/status")

    def pause(self, job: str) -> dict[str, Any]:
        return self._request("POST", f"{_job(job)}/pause", {})

    def resume(self, job: str) -> dict[str, Any]:
        return self._request("POST", f"{_job(job)}/resume", {})

    def retrain(self, job: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """asked: the body of POST /v1/jobs/{job}/retrain."""
        return self._request("POST", f"{_job(job)}/retrain", dict(asked))

    def retrains(self, job: str) -> dict[str, Any]:
        return self._request("GET", f"{_job(job)}/retrain")

    def cancel_retrain(self, job: str, lineage: str) -> dict[str, Any]:
        return self._request("POST", f"{_job(job)}/retrain/{quote(lineage, safe='')}/cancel", {})

    def promote_retrain(self, job: str, lineage: str) -> dict[str, Any]:
        return self._request("POST", f"{_job(job)}/retrain/{quote(lineage, safe='')}/promote", {})

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        host, _, port = self._address.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read() or b"{}")
            if not isinstance(answer, dict):
                raise ValueError("what answers is no daemon of streamtrain")
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise DependencyError(
                f"no daemon answers at {self._address}: {reason}",
                hint="start it with `streamtrain run`, or name where it listens with --set admin.listen=host:port",
            ) from error
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            raise _error(response.status, str(answer.get("detail", response.reason)))
        return answer


def _job(name: str) -> str:
    return f"/v1/jobs/{quote(name, safe='')}"


def _error(status: int, detail: str) -> StreamtrainError:
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        return AuthenticationError(f"the daemon refused: {detail}", hint="set admin.token, or admin.token_file")
    if status in (http.client.NOT_FOUND, http.client.UNPROCESSABLE_ENTITY):
        return UsageError(detail)
    return StreamtrainError(detail)
