"""Log lines: JSON for collectors, key=value for people, secrets for nobody."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from streamtrain import logs
from streamtrain.masking import MASK, Mask


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The process's logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def configured(**options: Any) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(stream=stream, **options)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_document_with_its_values() -> None:
    stream = configured()
    structlog.get_logger().info("round finished", job="delay", rows=3)
    (line,) = lines(stream)
    assert (line["message"], line["job"], line["rows"], line["level"]) == ("round finished", "delay", 3, "info")
    assert line["timestamp"].endswith("Z")


def test_libraries_log_through_the_same_handler() -> None:
    stream = configured()
    logging.getLogger("some.library").warning("cannot reach %s", "mongodb://u:hunter2@db/")
    (line,) = lines(stream)
    assert (line["message"], line["logger"]) == (f"cannot reach mongodb://{MASK}@db/", "some.library")


@pytest.mark.parametrize("format", ["json", "console"])
def test_secrets_are_masked_in_messages_values_and_exceptions(format: Any) -> None:
    stream = configured(format=format, mask=Mask(["hunter2"]))
    log = structlog.get_logger()
    log.info("token hunter2", value="hunter2", nested={"a": ["hunter2"]}, error=ValueError("hunter2"))
    try:
        raise RuntimeError("hunter2")
    except RuntimeError:
        log.exception("crashed")
        logging.getLogger("library").exception("crashed too")
    assert "hunter2" not in stream.getvalue()
    assert "RuntimeError" in stream.getvalue()


def test_the_console_shows_key_and_value() -> None:
    stream = configured(format="console")
    structlog.get_logger().info("group formed", workers=2)
    assert "group formed" in stream.getvalue()
    assert "workers=2" in stream.getvalue()


def test_the_level_holds_and_can_be_changed() -> None:
    stream = configured(level="warning")
    log = structlog.get_logger()
    log.info("unheard")
    logging.getLogger("library").info("unheard")
    assert stream.getvalue() == ""
    stream = configured(level="debug")
    log.debug("heard")
    assert lines(stream)[0]["message"] == "heard"
