"""Structured logs on stderr: key=value for a terminal, JSON lines for a collector; secrets are masked."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, Literal, TextIO

import structlog

from streamtrain.masking import Mask

# Libraries that report what streamtrain reports itself, in its own words, or that log every request.
_QUIET = {
    "aiokafka": "CRITICAL",
    "pymongo": "WARNING",
    "apscheduler": "WARNING",
    "asyncio": "WARNING",
    "uvicorn": "WARNING",
    "tensorflow": "ERROR",
    "absl": "ERROR",
}


def configure(
    *,
    level: str = "info",
    format: Literal["auto", "console", "json"] = "auto",
    mask: Mask | None = None,
    stream: TextIO | None = None,
) -> None:
    """Sends every log line of this process, libraries' too, through one masking handler. `auto`: console when
    the stream is a terminal. May be called again, as when a reload changes the level."""
    stream = sys.stderr if stream is None else stream
    console = format == "console" or (format == "auto" and stream.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _Masking(mask or Mask()),
                *(_console(stream) if console else _json()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, quiet in _QUIET.items():
        logging.getLogger(name).setLevel(max(logging.getLevelName(quiet), root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _console(stream: TextIO) -> Sequence[Any]:
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain, pad_event_to=0)]


def _json() -> Sequence[Any]:
    return [structlog.processors.EventRenamer("message"), structlog.processors.JSONRenderer(default=str)]


class _Masking:
    """The last processor before rendering: by now exceptions are text, so nothing can pass it by."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask

    def __call__(self, _logger: Any, _method: str, event: Any) -> Any:
        return {key: self._value(value) for key, value in event.items()}

    def _value(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, (str, dict, list, tuple)):
            return self._mask.value(value)
        return self._mask.text(str(value))
