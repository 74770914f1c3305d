"""How a vector is summed over all ranks: once, by the step itself, and not again by the optimizer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from streamtrain.errors import ModelError

Tensor = Any


def take_over_reduction(optimizer: Any) -> None:
    """Stops the optimizer from reducing gradients that are reduced already. Raises ModelError where the private
    hook of Keras that this needs is gone."""
    inner = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer
    for each in (optimizer, inner):
        if each is None:
            continue
        if not callable(getattr(each, "_all_reduce_sum_gradients", None)):
            raise ModelError(
                f"{type(each).__name__} has no hook _all_reduce_sum_gradients: gradients would be summed twice",
                hint="install the Keras that streamtrain was tested with (pip install 'streamtrain[cpu]'), and use an "
                "optimizer of keras.optimizers",
            )
        object.__setattr__(each, "_all_reduce_sum_gradients", lambda pairs: pairs)


def all_reduce(vector: Tensor) -> Tensor:
    here = tf.identity(vector)  # on this replica's device: a function's argument has none, and reduces to nowhere
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, here)
