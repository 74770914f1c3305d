"""No secret in anything that is written to be read (I9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from streamtrain.masking import MASK, Mask, secrets_of


@pytest.mark.parametrize(
    "text",
    [
        "mongodb://reader:hunter2@db:27017/?replicaSet=rs",
        "cannot connect to mongodb+srv://reader:hunter2@cluster.example/ now",
        "'kafka://u:hunter2@h'",
        "two mongodb://a:hunter2@x and mongodb://b:hunter2@y",
        "a password with an at sign: mongodb://a:hunt@hunter2@x/",
        "no user: redis://:hunter2@h/0",
    ],
)
def test_credentials_in_any_uri_are_masked_without_being_known(text: str) -> None:
    masked = Mask().text(text)
    assert "hunter2" not in masked
    assert MASK in masked


@pytest.mark.parametrize(
    "text", ["mongodb://db:27017/a@b", "see https://example.org/path?x=a@b", "user@example.org", "a://b c@d"]
)
def test_what_holds_no_credentials_stays_as_it_is(text: str) -> None:
    assert Mask().text(text) == text


def test_a_known_secret_is_found_in_each_of_its_spellings() -> None:
    mask = Mask(["p@ss/w\\rd"])
    for spelling in ("p@ss/w\\rd", "p%40ss%2Fw%5Crd", repr("p@ss/w\\rd")):
        assert "rd" not in mask.text(f"<{spelling}>")


def test_a_longer_secret_is_masked_before_one_that_it_contains() -> None:
    assert Mask(["abc", "abcdef"]).text("abcdef") == MASK


def test_values_are_masked_wherever_they_are_nested() -> None:
    value = {"a": ["x-secret-y", {"b": ("secret", 3)}], "secret": None, "n": 1.5}
    assert Mask(["secret"]).value(value) == {"a": [f"x-{MASK}-y", {"b": [MASK, 3]}], "secret": None, "n": 1.5}


def test_secrets_are_collected_from_all_sections() -> None:
    class Inner(BaseModel):
        uri: SecretStr
        other: str = "shown"

    class Outer(BaseModel):
        token: SecretStr | None
        items: tuple[Inner, ...]

    outer = Outer(token=SecretStr("tok"), items=(Inner(uri=SecretStr("mongodb://u:p%40w@h/?x=u:no@h")),))
    assert secrets_of(outer) == {"tok", "p%40w", "p@w"}


@pytest.mark.parametrize(
    "options",
    [
        "tls=true&tlsCertificateKeyFilePassword=s%2Fcret&replicaSet=rs",
        "authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:s%2Fcret,SERVICE_NAME:x",
        "proxyPassword=s%2Fcret",
    ],
)
def test_secret_options_of_a_uri_are_secrets_too(options: str) -> None:
    class Section(BaseModel):
        uri: SecretStr

    assert secrets_of(Section(uri=SecretStr(f"mongodb://h/?{options}"))) == {"s%2Fcret", "s/cret"}


@given(st.text(min_size=3).filter(lambda secret: "*" not in secret), st.text(), st.text())
def test_no_text_around_it_saves_a_secret(secret: str, before: str, after: str) -> None:
    masked = Mask([secret]).text(before + secret + after)
    assert all(secret not in part for part in masked.split(MASK))
