"""Loading settings: precedence, places, all problems at once, and no secret in any message."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamtrain.config import Settings
from streamtrain.errors import EXIT_CONFIG, ConfigError, SettingsError
from streamtrain.settings.settings_file import Loaded, load

GOOD = """\
kafka: {bootstrap_servers: "127.0.0.1:9092"}
sources:
  - {name: flights, uri: "mongodb://reader:hunter2@db/", database: air, collection: flights}
jobs:
  - name: delay
    source: flights
    features: [{field: dep_delay, dtype: float32}]
    labels: [{field: arr_delay, dtype: float32, task: regression}]
"""
DESIGN_EXAMPLE = """\
kafka: {bootstrap_servers: "broker:9092", security: {protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username: st, password_file: kafka_password}}
state: {uri: "mongodb://state/", database: streamtrain}
admin: {listen: "127.0.0.1:8470"}
sources:
  - {name: flights, uri: "mongodb+srv://cluster.example", database: air, collection: flights, full_document: auto, partitions: 24}
jobs:
  - name: flight-delay
    source: flights
    features:
      - {field: dep_delay, dtype: float32}
      - {field: carrier, dtype: string}
      - {field: weather.wind, dtype: float32, missing: 0}
    labels: [{field: arr_delay, dtype: float32, task: regression}]
    window: {duration: 6h, max_records: 500000, half_life: 2h}
    round: {max_wait: 100ms, max_records: 16384, batch_size: 256, replay_ratio: 1.0}
    checkpoint: {every: 30s, keep: 5}
    model: builtin
    workers: {min: 1}
"""  # noqa: E501


def written(folder: Path, text: str) -> Path:
    path = folder / "streamtrain.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def loaded(folder: Path, text: str = GOOD, *, flags: tuple[str, ...] = (), **environ: str) -> Loaded:
    return load(written(folder, text), flags=flags, environ=environ)


def problems(folder: Path, text: str, *, flags: tuple[str, ...] = (), **environ: str) -> list[tuple[str, str]]:
    """(place without the folder, message) of each."""
    with pytest.raises(SettingsError) as caught:
        loaded(folder, text, flags=flags, **environ)
    assert caught.value.exit_code == EXIT_CONFIG
    return [(p["place"].removeprefix(f"{folder}/"), p["message"]) for p in caught.value.problems]


def test_the_design_example_loads_with_its_units_and_its_secret_file(tmp_path: Path) -> None:
    (tmp_path / "kafka_password").write_text("hunter2\n")
    settings = loaded(tmp_path, DESIGN_EXAMPLE).settings
    password = settings.kafka.security.password
    assert password is not None
    assert password.get_secret_value() == "hunter2"
    assert settings.jobs[0].window.duration == 6 * 3600
    assert settings.jobs[0].round.max_wait == 0.1
    assert settings.jobs[0].features[2].missing == 0


def test_an_unknown_key_is_an_error_at_its_place_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, GOOD.replace("database: air", "databse: air"))
    text = str(caught.value)
    assert f"{tmp_path}/streamtrain.yaml:3:58: unknown key 'databse'; did you mean 'database'?" in text
    assert "the key 'database' is missing" in text
    assert "    3 |   - {name: flights, uri: ********, databse: air, collection: flights}" in text
    line, mark = text.splitlines()[-2:]
    assert line[mark.index("^") : mark.rindex("^") + 1] == "databse"


def test_all_problems_are_reported_at_once_in_order_of_the_file(tmp_path: Path) -> None:
    text = (
        GOOD.replace("127.0.0.1:9092", "nohost")
        .replace("name: delay", "name: De lay")
        .replace("float32, task", "f, task")
    )
    places = [place for place, _message in problems(tmp_path, text)]
    assert places == sorted(places)
    assert [int(place.split(":")[1]) for place in places] == [1, 5, 8]


def test_a_key_of_a_feature_that_does_not_exist_is_an_unknown_key(tmp_path: Path) -> None:
    ((place, message),) = problems(tmp_path, GOOD + "    publish: {every: 10m}\n")
    assert place == "streamtrain.yaml:9:5"
    assert message.startswith("unknown key 'publish'")


@pytest.mark.parametrize("value", ["6", "6.0", "6 hours", '"6"', "-1s"])
def test_a_duration_without_its_unit_is_refused(tmp_path: Path, value: str) -> None:
    ((place, message),) = problems(tmp_path, GOOD + f"    window: {{duration: {value}}}\n")
    assert place == "streamtrain.yaml:9:24"
    assert "is not a duration: write it like 100ms, 30s, 5m, 6h or 1d" in message


def test_a_size_without_its_unit_is_refused(tmp_path: Path) -> None:
    ((_place, message),) = problems(tmp_path, GOOD.replace("collection: flights", "collection: flights, prefetch: 64"))
    assert "is not a size: write it like 512KiB, 64MiB or 2GiB" in message


# Each alias stands for ten of the one before.
LAUGHS = "    hyper:\n      a0: &a0 [1]\n" + "".join(
    f"      a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "the file is empty"),
        ("# nothing\n", "1:1", "the file is empty"),
        ("- a\n", "1:1", "the file must be a mapping with the sections kafka, sources and jobs"),
        (GOOD + "jobs: []\n", "9:1", "the key 'jobs' is given twice; first in line 4"),
        (GOOD.replace("    source", "\tsource"), "6:1", "a tab: YAML is indented with spaces"),
        (GOOD + "---\nkafka: {}\n", "9:1", "a second document begins here; the file may hold only one"),
        (GOOD + "1.5: 2\n", "9:1", "a key that is not a text; put it in quotes"),
        (GOOD.replace("source: flights", "source: !!python/name:os.system x"), "6:13", "is not allowed: only plain"),
        (GOOD + "    hyper: &a {b: *a}\n", "9:12", "an alias that contains itself"),
        (GOOD + "    hyper: " + "[" * 5000 + "]" * 5000, "1:1", "nested too deeply"),
        (GOOD + "    hyper: " + "[" * 60 + "]" * 60, "9:60", "nested too deeply"),
        (GOOD + LAUGHS, "10:16", "more than 100000 values"),
        (GOOD.replace("air", "air.old"), "3:68", "the name of a MongoDB database cannot hold '.'"),
        (GOOD + "    hyper: {a: \x07}\n", "9:16", "the character U+0007 is not allowed"),
        (GOOD.replace("source: flights", "source: flight"), "6:13", "there is no source 'flight'"),
        (GOOD.replace("air", '" air"'), "3:68", "has white space around it"),
        (GOOD.replace("air", "5"), "3:68", "database: should be a valid string"),
        (GOOD.replace("mongodb:", "http:"), "3:26", "not a MongoDB URI"),
        (GOOD.replace("127.0.0.1:9092", "127.0.0.1:70000"), "1:28", "70000 is no port: the largest is 65535"),
        (GOOD + "admin: {listen: '127.0.0.1:70000'}\n", "9:17", "70000 is no port: the largest is 65535"),
        (GOOD.replace("name: flights", "name: fl ights"), "3:12", "a name is lower-case letters"),
    ],
)
def test_what_cannot_be_read_is_said_at_its_place(tmp_path: Path, text: str, place: str, message: str) -> None:
    found = problems(tmp_path, text)
    assert found[0][0] == f"streamtrain.yaml:{place}"
    assert message in found[0][1]


def test_names_that_are_used_twice_are_refused(tmp_path: Path) -> None:
    job = GOOD[GOOD.index("  - name: delay") :]
    ((place, message),) = problems(tmp_path, GOOD + job)
    assert (place, message) == ("streamtrain.yaml:9:11", "name: two jobs are called 'delay'")


def test_a_country_code_no_stays_a_text_and_1e_minus_3_is_a_number(tmp_path: Path) -> None:
    hyper = (
        loaded(tmp_path, GOOD + "    hyper: {country: no, rate: 1e-3, on: true, day: 2024-01-01}\n")
        .settings.jobs[0]
        .hyper
    )
    assert hyper == {"country": "no", "rate": 0.001, "on": True, "day": "2024-01-01"}


def test_a_merge_key_is_overridden_by_the_keys_beside_it(tmp_path: Path) -> None:
    text = GOOD.replace("- {name: flights,", "- &f {name: flights,").replace(
        "jobs:", "  - {<<: *f, name: other}\njobs:"
    )
    sources = loaded(tmp_path, text).settings.sources
    assert [(s.name, s.collection) for s in sources] == [("flights", "flights"), ("other", "flights")]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("float32}]", "float32}, {field: dep_delay, dtype: int32}]", "'dep_delay' is given twice"),
        ("field: dep_delay", "field: arr_delay", "'arr_delay' is given twice"),
        ("float32}]", "float32, missing: none}]", "missing: 'none' is no float32"),
        ("float32}]", "float32, missing: .nan}]", "missing: nan is no float32"),
        ("float32}]", "float32, missing: 1.0e+39}]", "missing: 1e+39 is no float32"),
        ("float32}]", "int32, missing: 0.5}]", "missing: 0.5 is no int32"),
        ("float32}]", "int32, missing: 3000000000}]", "missing: 3000000000 is no int32"),
        ("float32}]", "int64, missing: true}]", "missing: True is no int64"),
        ("float32}]", "bool, missing: 1}]", "missing: 1 is no bool"),
        ("float32}]", "string, missing: 0}]", "missing: 0 is no string"),
        ("float32}]", "float32, encoding: binary}]", "a binary vector needs dtype: float32 and a length"),
        ("float32}]", "int32, encoding: binary, length: 4}]", "a binary vector needs dtype: float32 and a length"),
        ("float32}]", "float32, buckets: 8}]", "only strings are hashed, not float32"),
        ("float32}]", "bytes, buckets: 8}]", "only strings are hashed, not bytes"),
        ("float32}]", "bytes, missing: 0}]", "missing: 0 is no bytes"),
        ("float32}]", "float32, pad: 0}]", "pad: only a list with max_length is padded"),
        ("float32}]", "int32, max_length: 3, pad: 0.5}]", "pad: 0.5 is no int32"),
        ("float32}]", "int32, max_length: 0}]", "max_length"),
        ("float32}]", "int32, max_length: 3, length: 3}]", "a list of any length a max_length: give one of them"),
        (
            "float32}]",
            "float32, encoding: binary, max_length: 4}]",
            "a binary vector needs dtype: float32 and a length",
        ),
        ("float32, task", "string, task", "string cannot be the label of a regression"),
        ("float32, task", "bool, task", "bool cannot be the label of a regression"),
        ("source: flights", "source: flights\n    workers: {min: 25}", "there are only 24 partitions"),
        ("source: flights", "source: flights\n    window: {half_life: 0s}", "half_life: should be greater than 0"),
        ("source: flights", "source: flights\n    window: {duration: 4d}", "is longer than kafka.retention"),
        ("source: flights", "source: flights\n    model: build", "model: "),
        ("regression}]", "regression, absent_after: 1h}]", "but not what is learned then"),
        ("regression}]", "regression, absent_value: 0}]", "needs absent_after"),
        (
            "regression}]",
            "regression, absent_after: 1h, absent_value: true}]",
            "True cannot be the value of this label",
        ),
        ("regression}]", "classification, absent_after: 1h, absent_value: 2}]", "2 cannot be the value of this label"),
        ("regression}]", "regression, absent_after: 0s, absent_value: 0}]", "should be greater than 0"),
        ("regression}]", "regression, absent_after: 67h, absent_value: 0}]", "together longer than kafka.retention"),
        ("source: flights", "source: flights\n    features_as_of: last", "features_as_of"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, before: str, after: str, message: str) -> None:
    ((place, found),) = problems(tmp_path, GOOD.replace(before, after, 1))
    assert message in found
    assert place.startswith("streamtrain.yaml:")


def test_a_label_may_be_absent_after_as_long_as_kafka_keeps_its_document(tmp_path: Path) -> None:
    text = GOOD.replace("regression}]", "regression, absent_after: 66h, absent_value: 0}]")
    (label,) = loaded(tmp_path, text).settings.jobs[0].schema_().labels
    assert (label.absent_after, label.absent_value) == (66 * 3600, 0)
    longer = loaded(tmp_path, text.replace("66h", "24h")).settings.jobs[0].schema_()
    plain = loaded(tmp_path, GOOD).settings.jobs[0].schema_()
    assert longer.fingerprint() == plain.fingerprint(), "patience may change without learning anew"


# ------------------------------------------------------------------------------------------- precedence


def test_flags_go_over_environment_over_secrets_over_the_file(tmp_path: Path) -> None:
    secrets = tmp_path / "credentials"
    secrets.mkdir()
    (secrets / "streamtrain__kafka__topic_prefix").write_text("from-secrets\n")
    (secrets / "streamtrain__admin__token").write_text("a-token")
    text = GOOD.replace("9092", "9092, x:1").replace("kafka: {", "kafka: {topic_prefix: from-file, ")
    directory = {"CREDENTIALS_DIRECTORY": str(secrets)}
    environ = {"STREAMTRAIN__KAFKA__TOPIC_PREFIX": "from-env"}
    assert loaded(tmp_path, text).settings.kafka.topic_prefix == "from-file"
    found = loaded(tmp_path, text, **directory).settings
    assert found.kafka.topic_prefix == "from-secrets"
    assert found.admin.token is not None
    assert loaded(tmp_path, text, **directory, **environ).settings.kafka.topic_prefix == "from-env"
    flags = ("kafka.topic_prefix=from-flag",)
    assert loaded(tmp_path, text, flags=flags, **directory, **environ).settings.kafka.topic_prefix == "from-flag"


def test_an_item_of_a_list_is_named_by_its_name_or_its_place(tmp_path: Path) -> None:
    by_name = loaded(tmp_path, STREAMTRAIN__SOURCES__FLIGHTS__PARTITIONS="3", STREAMTRAIN__JOBS__0__SEED="7").settings
    assert (by_name.sources[0].partitions, by_name.jobs[0].seed) == (3, 7)


def test_an_environment_variable_may_hold_a_list(tmp_path: Path) -> None:
    text = '[{field: a, dtype: float32}, {field: b, dtype: "string"}]'
    features = loaded(tmp_path, STREAMTRAIN__JOBS__DELAY__FEATURES=text).settings.jobs[0].features
    assert [feature.field for feature in features] == ["a", "b"]


def test_a_secret_is_taken_from_the_environment_as_it_is(tmp_path: Path) -> None:
    token = loaded(tmp_path, STREAMTRAIN__ADMIN__TOKEN="{not: yaml}").settings.admin.token
    assert token is not None
    assert token.get_secret_value() == "{not: yaml}"


def test_a_problem_that_comes_from_elsewhere_names_where(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        GOOD,
        flags=("kafka.replication_factor=none", "nonsense", "jobs.other.seed=1"),
        STREAMTRAIN__JOBS__DELAY__SEDE="1",
    )
    assert (
        "--set kafka.replication_factor",
        "kafka.replication_factor: should be a valid integer, unable to parse string as an integer",
    ) in found
    assert ("--set", "must be written a.b.c=value") in found
    assert ("--set jobs.other.seed", "there is no item 'other' in jobs") in found
    assert any(p == "STREAMTRAIN__JOBS__DELAY__SEDE" and "did you mean 'seed'?" in m for p, m in found)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("admin: {token_file: absent}", "there is no file 'absent' (looked in "),
        ("admin: {token_file: token, token: x}", "both 'token' and 'token_file' are given"),
        ("admin: {token_file: [a]}", "'token_file' must be the name of a file"),
    ],
)
def test_a_secret_file_that_cannot_be_used_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "token").write_text("x")
    ((_place, found),) = problems(tmp_path, f"{GOOD}{line}\n")
    assert message in found


def test_a_missing_or_unreadable_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "absent.yaml", environ={})
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin.yaml", environ={})


@pytest.mark.parametrize(
    "security",
    [
        "{protocol: SASL_SSL, mechanism: PLAIN, username: u}",
        "{username: u, password: hunter2}",
    ],
)
def test_half_configured_credentials_are_refused(tmp_path: Path, security: str) -> None:
    ((_place, message),) = problems(tmp_path, GOOD.replace('9092"', f'9092", security: {security}'))
    assert "needs password too" in message or "would send no credentials" in message


# ------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("mongodb:", "htp:"),
        GOOD.replace("uri: ", "uir: "),
        GOOD.replace("flights}", "flights, passwort: hunter2}"),
        GOOD.replace("flights}", "flights"),
        GOOD + "admin: {token: hunter2, tokn: hunter2}\n",
        GOOD + "admin:\n  token: hunter2\n\tlisten: x\n",
        GOOD + "admin: {token: [hunter2]}\n",
        GOOD + "admin: {token: {a: hunter2}}\n",
        GOOD + "admin: {token: hunter2, token: hunter2}\n",
        GOOD + "admin: {token: !secret hunter2}\n",
        GOOD.replace("kafka: {", "kafka: {security: {protocol: SASL, password: hunter2}, "),
    ],
)
def test_no_problem_shows_a_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, text, flags=("admin.listen=1",), STREAMTRAIN__ADMIN__TOKEN__X="hunter2")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.problems)


def test_the_mask_knows_every_secret_of_the_settings(tmp_path: Path) -> None:
    text = GOOD.replace("hunter2", "p%40ss%2Fword") + "admin: {token: tok-en}\n"
    mask = loaded(tmp_path, text).mask
    for secret in ("p%40ss%2Fword", "p@ss/word", "tok-en"):
        assert secret not in mask.text(f"before {secret} after")
    assert "reader" not in mask.text("cannot reach mongodb://reader:other@db/ today")


def test_sections_handed_on_by_a_program_may_carry_seconds(tmp_path: Path) -> None:
    settings = loaded(tmp_path).settings
    assert Settings.model_validate(settings.model_dump()) == settings


def test_classes_may_be_written_as_numbers(tmp_path: Path) -> None:
    labels = "    labels: [{field: won, dtype: bool, task: classification}]\n    weight: {classes: {0: 1, 1: 20}}\n"
    text = GOOD[: GOOD.index("    labels:")] + labels
    weight = loaded(tmp_path, text).settings.jobs[0].weight
    assert weight is not None
    assert weight.classes == {0: 1.0, 1: 20.0}
