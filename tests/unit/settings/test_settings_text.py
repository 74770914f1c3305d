"""The effective settings as text: it can be loaded again, and shows no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from streamtrain import config
from streamtrain.settings import settings_file, settings_text

TEXT = """\
kafka:
  bootstrap_servers: "a:1, b:2"
  security: {protocol: SASL_SSL, mechanism: PLAIN, username: st, password: hunter2}
state: {uri: "mongodb://reader:hunter2@state/?replicaSet=rs"}
admin: {token: hunter2}
sources:
  - {name: flights, uri: "mongodb://reader:hunter2@db/", database: air, collection: flights, prefetch: 48MiB}
jobs:
  - name: delay
    source: flights
    features: [{field: dep_delay, dtype: float32, missing: 0}]
    labels: [{field: arr_delay, dtype: float32, task: regression}]
    window: {duration: 90m}
    round: {max_wait: 250ms}
    hyper: {units: [8, 8], rate: 1e-3}
"""


def shown(folder: Path, text: str = TEXT) -> tuple[settings_file.Loaded, str]:
    path = folder / "streamtrain.yaml"
    path.write_text(text)
    loaded = settings_file.load(path, environ={})
    return loaded, settings_text.to_yaml(settings_text.effective(loaded))


def test_secrets_are_masked_and_hosts_are_not(tmp_path: Path) -> None:
    _loaded, text = shown(tmp_path)
    assert "hunter2" not in text
    assert "mongodb://********@state/?replicaSet=rs" in text


def test_units_are_written_as_a_person_writes_them(tmp_path: Path) -> None:
    document = yaml.safe_load(shown(tmp_path)[1])
    assert document["jobs"][0]["window"] == {"duration": "90m", "max_records": 500_000, "half_life": "2h"}
    assert document["jobs"][0]["round"]["max_wait"] == "250ms"
    assert document["sources"][0]["prefetch"] == "48MiB"
    assert document["kafka"]["retention"] == "3d"


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    plain = TEXT.replace("reader:hunter2@", "").replace(
        "{protocol: SASL_SSL, mechanism: PLAIN, username: st, password: hunter2}", "{}"
    )
    loaded, text = shown(tmp_path, plain.replace("admin: {token: hunter2}\n", ""))
    again, _text = shown(tmp_path, text)
    assert again.settings == loaded.settings


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.1, "100ms"), (1.5, "1.5s"), (90.0, "90s"), (5400.0, "90m"), (7200.0, "2h"), (172800.0, "2d")],
)
def test_a_duration_is_written_in_its_largest_whole_unit(seconds: float, text: str) -> None:
    assert settings_text.duration(seconds) == text
    assert config.parse_duration(text) == seconds


@pytest.mark.parametrize(("count", "text"), [(1, "1B"), (512 * 1024, "512KiB"), (48 * 1024**2, "48MiB")])
def test_a_size_is_written_in_its_largest_whole_unit(count: int, text: str) -> None:
    assert settings_text.size(count) == text
    assert config.parse_size(text) == count


def test_the_json_schema_names_every_section_and_the_form_of_durations() -> None:
    schema = settings_text.schema()
    assert schema["properties"].keys() == config.Settings.model_fields.keys()
    every = schema["$defs"]["CheckpointSpec"]["properties"]["every"]
    assert every["type"] == "string"
    assert schema["$defs"]["Source"]["additionalProperties"] is False


def test_every_setting_says_what_it_is_for() -> None:
    def undescribed(section: type[BaseModel], path: str) -> list[str]:
        return [f"{path}{name}" for name, info in section.model_fields.items() if not info.description]

    sections = [each for each in vars(config).values() if isinstance(each, type) and issubclass(each, config.Section)]
    assert len(sections) > 10
    assert [name for section in sections for name in undescribed(section, f"{section.__name__}.")] == []
