"""What is stored of a manifest, and what damage to it looks like."""

from __future__ import annotations

from typing import Any

import pytest

from streamtrain.errors import StreamtrainError
from streamtrain.registry.manifests import from_stored, to_stored
from streamtrain.types import ArtifactRef, Learned, Manifest, RoundCounts, Scores

MANIFEST = Manifest(
    id="job/l/3",
    job="job",
    lineage="l",
    sequence=3,
    parent="job/l/2",
    epoch=2,
    generation=5,
    created_ms=1_700_000_000_000,
    topic="t.s.0",
    topic_epoch=0,
    learned=(Learned(2**40, 7),),
    window_begins=(0,),
    rounds=4,
    steps=3,
    rows_learned=12,
    counts=RoundCounts(learned=12),
    scores={"nested.label": Scores(rows=3, weight=3.0, loss=0.5, sums={"absolute_error": 1.5})},
    holdout={"nested.label": Scores(rows=1, weight=1.0, loss=0.5, sums={"absolute_error": 0.5})},
    artifacts={"state": ArtifactRef("job/l/e2-g5-r4/state", "00", 2)},
    schema_fingerprint="s",
    model_fingerprint="m",
)


def test_a_manifest_comes_back_as_it_was() -> None:
    assert from_stored(to_stored(MANIFEST)) == MANIFEST


@pytest.mark.parametrize("change", [{"scores": None}, {"scores": [{}]}, {"learned": "x"}, {"job": None}])
def test_a_damaged_manifest_is_an_error_that_names_it(change: dict[str, Any]) -> None:
    with pytest.raises(StreamtrainError, match="job/l/3 cannot be read"):
        from_stored({**to_stored(MANIFEST), **change})


@pytest.mark.parametrize("missing", ["scores", "learned"])
def test_a_manifest_with_a_part_missing_is_one_too(missing: str) -> None:
    document = to_stored(MANIFEST)
    del document[missing]
    with pytest.raises(StreamtrainError, match="job/l/3 cannot be read"):
        from_stored(document)
