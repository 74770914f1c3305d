"""A number that says what a rank holds: the same on two ranks exactly when their weights and optimizers are the same
bits (but for one chance in 10^12)."""

from __future__ import annotations

import hashlib

import numpy as np

from streamtrain.trainer.model import JobModel

_BITS = 40  # the sum over every rank there can be is an int64


def fingerprint(model: JobModel) -> int:
    """Of all but the random generators, which differ by the rank."""
    digest = hashlib.blake2b(digest_size=8)
    for variable in (*model.keras.weights, *model.optimizer.variables):
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return int.from_bytes(digest.digest(), "little") >> (64 - _BITS)
