"""What each error of MongoDB means: try again, or end the source with a word on what to do."""

from __future__ import annotations

import pytest
from pymongo.errors import AutoReconnect, ConfigurationError, NetworkTimeout, OperationFailure

from streamtrain.errors import (
    AuthenticationError,
    ConfigError,
    HistoryLostError,
    InvalidatedError,
    MongoError,
    PermissionMissingError,
    SourceError,
    StreamtrainError,
)
from streamtrain.source.failures import is_known, meaning


def failure(code: int | None, *labels: str) -> OperationFailure:
    return OperationFailure("words of the server", code, {"ok": 0, "errorLabels": list(labels)})


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (18, AuthenticationError),
        (8000, AuthenticationError),
        (13, PermissionMissingError),
        (286, HistoryLostError),
        (280, HistoryLostError),
        (136, HistoryLostError),
        (260, InvalidatedError),
        (40647, SourceError),
        (40573, MongoError),
        (73, MongoError),
        (166, MongoError),
        (40415, MongoError),
        (10334, SourceError),
        (47, SourceError),
    ],
)
def test_what_will_not_pass_ends_the_source_with_a_hint(code: int, kind: type[StreamtrainError]) -> None:
    error = meaning(failure(code), namespace="air.flights")
    assert type(error) is kind
    assert "air.flights" in error.message
    assert error.hint


@pytest.mark.parametrize("error", [AutoReconnect("reset"), NetworkTimeout("slow"), TimeoutError(), failure(None)])
def test_the_network_and_errors_without_a_code_are_tried_again(error: Exception) -> None:
    assert meaning(error, namespace="a.b") is None
    assert is_known(error)


@pytest.mark.parametrize("code", [43, 133, 211, 234, 10107, 11600, 11602, 13435, 13436])
def test_elections_and_lost_cursors_are_tried_again(code: int) -> None:
    assert meaning(failure(code), namespace="a.b") is None
    assert is_known(failure(code))


def test_the_servers_label_is_believed_before_the_code() -> None:
    assert meaning(failure(10334, "ResumableChangeStreamError"), namespace="a.b") is None


def test_an_unknown_error_is_tried_again_but_not_for_ever() -> None:
    assert meaning(failure(99_999), namespace="a.b") is None
    assert not is_known(failure(99_999))


def test_a_wrong_option_of_the_uri_is_a_configuration_error() -> None:
    assert isinstance(meaning(ConfigurationError("no such option"), namespace="a.b"), ConfigError)


def test_only_the_first_line_of_what_the_server_says_is_shown() -> None:
    error = OperationFailure("not allowed, full error: {'secret': 1}", 13)
    assert "secret" not in str(meaning(error, namespace="a.b"))
