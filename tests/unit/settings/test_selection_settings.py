"""What a job says about which documents it learns and how much each counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamtrain.config import Job, WeightSpec
from streamtrain.errors import SettingsError
from streamtrain.settings.settings_file import load

BEFORE = """\
kafka: {bootstrap_servers: "127.0.0.1:9092"}
sources:
  - {name: clicks, uri: "mongodb://db/", database: shop, collection: clicks}
jobs:
  - name: ctr
    source: clicks
    features: [{field: price, dtype: float32}]
    labels: [{field: clicked, dtype: bool, task: classification}]
"""


def job_of(folder: Path, *lines: str) -> Job:
    path = folder / "streamtrain.yaml"
    path.write_text(BEFORE + "".join(f"    {line}\n" for line in lines))
    return load(path, environ={}).settings.jobs[0]


def problem(folder: Path, *lines: str) -> tuple[str, str]:
    """line:column and message of the only problem."""
    with pytest.raises(SettingsError) as caught:
        job_of(folder, *lines)
    (found,) = caught.value.problems
    return found["place"].partition(".yaml:")[2], found["message"]


def test_by_default_everything_is_learned_and_counts_the_same(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    assert (job.filter, job.weight, job.on_delete, job.holdout) == (None, None, "forget", 0.0)


def test_all_of_it_reaches_a_worker_as_it_was_written(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        "filter: {bot: {$ne: true}, at: {$gte: {$date: '2024-01-01T00:00:00Z'}}}",
        "weight: {field: value, missing: 0.5, classes: {'0': 1, '1': 20}}",
        "on_delete: keep",
        "holdout: 2.5%",
    )
    assert job.weight == WeightSpec(field="value", missing=0.5, classes={0: 1.0, 1: 20.0})
    assert job.holdout == 0.025
    assert Job.model_validate(json.loads(job.model_dump_json())) == job


def test_a_weight_may_be_named_by_its_field_alone(tmp_path: Path) -> None:
    assert job_of(tmp_path, "weight: order.value").weight == WeightSpec(field="order.value")


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("filter: {bot: {$neq: true}}", "9:26", "$neq: unknown operator '$neq'; did you mean '$ne'?"),
        ("filter: {$or: [{a: 1}, {b: {$exist: true}}]}", "9:41", "did you mean '$exists'?"),
        ("filter: [1]", "9:13", "must be a mapping"),
        ("filter: {a: {$in: 5}}", "9:23", "$in: needs a list"),
        ("holdout: 60%", "9:14", "should be less than or equal to 0.5"),
        ("holdout: some", "9:14", "write it like 1%"),
        ("on_delete: archive", "9:16", "'forget' or 'keep'"),
        ("weight: {missing: 1}", "9:13", "needs a field, or classes"),
        ("weight: {field: w, missing: -1}", "9:33", "greater than or equal to 0"),
        ("weight: {feild: w}", "9:14", "did you mean 'field'?"),
        ("weight: {classes: {'2': 1}}", "9:29", "the classes of 'clicked' are 0 to 1"),
        ("weight: {classes: {'0': 0, '1': 0}}", "9:23", "nothing would be learned"),
        ("weight: {classes: {'1': 2}, label: price}", "9:40", "the classifications are 'clicked'"),
        ("weight: {field: w, label: clicked}", "9:31", "is for classes"),
        ("weight: {classes: {'1': -2}}", "9:29", "greater than or equal to 0"),
    ],
)
def test_a_mistake_is_shown_where_it_is(tmp_path: Path, line: str, place: str, message: str) -> None:
    found = problem(tmp_path, line)
    assert message in found[1]
    assert found[0] == place


def test_class_weights_need_a_classification(tmp_path: Path) -> None:
    path = tmp_path / "streamtrain.yaml"
    text = BEFORE.replace("dtype: bool, task: classification", "dtype: float32, task: regression")
    path.write_text(text + "    weight: {classes: {'1': 2}}\n")
    with pytest.raises(SettingsError, match="no label is a classification"):
        load(path, environ={})
