"""What a rank writes when it saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from streamtrain.clock import FakeClock
from streamtrain.protocol import Form
from streamtrain.trainer.channel import Channel
from streamtrain.types import Schema
from tests.unit.trainer.loop_case import LoopCase

pytestmark = pytest.mark.tensorflow


class Silent:
    """A channel that nobody listens to."""

    def progress(self, stage: str, done: int) -> None:
        pass


def unserialisable(schema: Schema, hyper: dict[str, Any]) -> Any:
    import keras

    class Odd(keras.layers.Layer):
        def __init__(self, secret: object) -> None:
            super().__init__()

        def call(self, x: Any) -> Any:
            return x

        def get_config(self) -> dict[str, Any]:
            raise NotImplementedError("no config")

    return keras.Sequential([keras.Input((2,)), Odd(object()), keras.layers.Dense(1)])


def test_a_model_without_a_keras_file_is_saved_all_the_same_and_told_once(strategy: Any, tmp_path: Path) -> None:
    from streamtrain.trainer.rank import Rank

    case = LoopCase(strategy, builder=unserialisable)
    form = Form(
        generation=1,
        epoch=1,
        rank=0,
        world=1,
        tf_config="",
        job=case.job.model_dump(mode="json"),
        kafka={},
        artifacts={"kind": "directory", "path": str(tmp_path)},
        topic="t",
        topic_epoch=0,
        partitions=1,
        dead_letter_topic="d",
        learned=(),
        window_begins=(),
        manifest=None,
        restore_weights=False,
        lineage="l",
        work_dir="",
    )
    rank = Rank(channel=cast(Channel, Silent()), form=form, clock=FakeClock(0.0))
    rank._model = case.model
    with capture_logs() as told:
        saved = [set(rank._write(f"job/l/r{number}/")) for number in range(3)]
    assert saved == [{"state"}] * 3
    assert [line["event"] for line in told] == ["checkpoints have no .keras file"]
