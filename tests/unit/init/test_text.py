from __future__ import annotations

from pathlib import Path

import yaml

from streamtrain.init.pace import Pace
from streamtrain.init.suggestion import suggest
from streamtrain.init.text import render
from tests.unit.init.looked import loaded, seen


def test_names_that_yaml_would_take_for_something_else_are_quoted(tmp_path: Path) -> None:
    names = [
        "true",
        "null",
        "123",
        "a b",
        "x: z",
        "- z",
        "# h",
        "{b",
        "q\"'",
        "new\nline",
        "\x85\u2028",
        "é😀",
        "$m",
        "~",
    ]
    documents = [{name: (n * (at + 3)) % 17 for at, name in enumerate(names)} | {"y": n % 2} for n in range(60)]
    (job,) = loaded(suggest(seen(documents)), tmp_path).jobs
    assert [each.field for each in job.features] == names


def test_no_name_of_a_field_can_add_a_line_to_the_file(tmp_path: Path) -> None:
    evil = "x\nadmin: {token: mine}\n#"
    documents = [{evil: "same", "x": n, "y": n % 2} for n in range(60)]
    settings = loaded(suggest(seen(documents)), tmp_path)
    assert settings.admin.token is None


def test_every_line_says_why(tmp_path: Path) -> None:
    old = [{"x": n, "z": {"w": n / 2 if n % 3 else None}, "clicked": True} for n in range(90)]
    new = [{"x": n, "z": {"w": 1.5}} for n in range(40)]
    update = {"operationType": "update", "updateDescription": {"updatedFields": {"clicked": True, "x": 1}}}
    events = [*({"operationType": "insert", "fullDocument": each} for each in new), update, {"operationType": "delete"}]
    suggestion = suggest(seen(old + new, newest=new, events=events, seconds=4.0, pace=Pace(130, 0.01, "seen in 4 s")))
    text = render(suggestion, kafka="broker:9092", uri=None, uri_file="my.uri")
    assert "uri_file: my.uri" in text.replace('"', "")
    assert "40 inserts (10 a second), 1 updates (0.25 a second), 1 deletes (0.25 a second)." in text.replace(
        "\n# ", " "
    )
    assert "What updates set most often: clicked (100%), x (100%)." in text
    assert "on_delete: keep" in text
    assert "features_as_of: first" in text
    assert 'absent_after: "24h", absent_value: false' in text
    assert "null in 23.1%: the median stands in" in text
    assert max(map(len, text.splitlines())) <= 120
    document = yaml.safe_load(text)
    assert document["kafka"]["retention"] == "14d"
    assert document["jobs"][0]["window"] == {"duration": "7d", "max_records": 500000, "half_life": "56h"}
    for line in text.splitlines():
        if "duration" in line or "dtype" in line or "min:" in line:
            at = text.splitlines().index(line)
            assert "#" in line or text.splitlines()[at - 1].strip().startswith("#"), line
