"""One TensorFlow per test process: the strategy that models are made in, as a worker that is alone has it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from streamtrain.trainer.worker import quieten

quieten(os.environ)


@pytest.fixture(scope="session")
def strategy() -> Any:
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()
