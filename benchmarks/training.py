"""CPU per row of the whole trainer (consume, decode, memory, agree on rows, score, learn) in one worker, beside the
sum of what the bare parts take: an aiokafka consumer, a decoder that checks nothing, a compiled training step on
arrays that are there already. MLP 32-64-64-1, batch 256, Adam, replay off, from a filled topic.

    python benchmarks/training.py [--rows 24000] [--round 6000] [--partitions 24] [--repeats 5]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from streamtrain.trainer.worker import quieten

quieten(os.environ)

import harness  # noqa: E402
import keras  # noqa: E402
import limits  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from decode import feed_rounds  # noqa: E402

from streamtrain import config  # noqa: E402
from streamtrain.clock import SystemClock  # noqa: E402
from streamtrain.sandbox.kafka_broker import KafkaBroker  # noqa: E402
from streamtrain.trainer.batches import STEPS_PER_CALL  # noqa: E402
from streamtrain.trainer.loop import Loop  # noqa: E402
from streamtrain.trainer.model import JobModel, set_precision  # noqa: E402
from streamtrain.trainer.rows import RoundRows  # noqa: E402
from streamtrain.types import Learned, Schema  # noqa: E402

TARGET = 0.8
BATCH = 256


def build(schema: Schema, hyper: dict[str, Any]) -> keras.Model:
    """MLP 32-64-64-1 over all features, scalars joined first."""
    inputs = [
        keras.Input((feature.length,) if feature.length else (1,), name=feature.field) for feature in schema.features
    ]
    joined = keras.layers.Concatenate()(inputs) if len(inputs) > 1 else inputs[0]
    hidden = keras.layers.Dense(64, "relu")(keras.layers.Dense(64, "relu")(joined))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def bare_step() -> Callable[[Any], int]:
    """Learns [rows, 33] arrays: K steps per call on stacked arrays, no strategy, no weights, no scores."""
    model = keras.Sequential(
        [
            keras.Input((limits.WIDTH,)),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False, reduce_retracing=True)
    def steps(stack: Any) -> Any:
        def step(k: Any, total: Any) -> Any:
            with tf.GradientTape() as tape:
                error = model(stack[k, :, : limits.WIDTH], training=True)[:, 0] - stack[k, :, limits.WIDTH]
                loss = tf.reduce_mean(tf.square(error))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return k + 1, total + loss

        count = tf.shape(stack)[0]
        return tf.while_loop(lambda k, _: k < count, step, (tf.constant(0), tf.constant(0.0)), parallel_iterations=1)[1]

    def learn(rows: Any) -> int:
        used = len(rows) // BATCH * BATCH
        stacked = rows[:used].reshape(-1, BATCH, limits.WIDTH + 1)
        for first in range(0, len(stacked), STEPS_PER_CALL):
            steps(tf.constant(stacked[first : first + STEPS_PER_CALL])).numpy()
        return used

    return learn


def join_cluster() -> Any:
    """A cluster of one, as a worker that is alone forms it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}})
    tf.config.threading.set_intra_op_parallelism_threads(len(os.sched_getaffinity(0)))
    tf.config.threading.set_inter_op_parallelism_threads(2)
    return tf.distribute.MultiWorkerMirroredStrategy()


def trainer(strategy: Any, kind: limits.Kind, partitions: int) -> Callable[[RoundRows], int]:
    job = kind.job(round={"batch_size": BATCH})
    set_precision(job.dtype)
    with strategy.scope():
        model = JobModel(job=job, builder=build)
    loop = Loop(
        strategy=strategy, model=model, partitions=partitions, clock=SystemClock(), on_progress=lambda stage, done: None
    )
    loop.prepare()

    def learn(read: RoundRows) -> int:
        loop.run(read)
        return sum(map(len, read.rows))

    return learn


async def _compare(
    options: argparse.Namespace,
    strategy: Any,
    kafka: config.Kafka,
    kind: limits.Kind,
    documents: Sequence[bytes],
    ends: Sequence[Learned],
) -> dict[str, Any]:
    learn, step = trainer(strategy, kind, len(ends)), bare_step()
    gc.collect()
    gc.freeze()  # as a worker does once it is formed
    rounds = [documents[begin : begin + options.round] for begin in range(0, len(documents), options.round)]
    table = limits.bare_decode(kind, documents)

    async def consume() -> int:
        return await limits.bare_consume(kafka, ends)

    async def decode() -> int:
        return sum(len(limits.bare_decode(kind, part)) for part in rounds)

    async def steps() -> int:
        return step(np.ascontiguousarray(table))

    async def whole() -> int:
        return await asyncio.to_thread(feed_rounds, kafka, kind, ends, options.round, learn)

    samples = await harness.compare(
        {"consume": consume, "decode": decode, "step": steps, "whole": whole}, repeats=options.repeats
    )
    bare = sum(harness.best(samples[name]).cpu_us for name in ("consume", "decode", "step"))
    whole_us = harness.best(samples["whole"]).cpu_us
    return {
        **{name: harness.summary(found) for name, found in samples.items()},
        "sum_of_bare_us": round(bare, 3),
        "whole_us": round(whole_us, 3),
        "share_of_limit": round(bare / whole_us, 3),
        "target": TARGET,
        "met": bare / whole_us >= TARGET,
    }


async def run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    results: dict[str, Any] = {}
    strategy = join_cluster()
    with KafkaBroker(directory=directory) as broker:
        for kind in limits.KINDS:
            kafka = config.Kafka(bootstrap_servers=broker.bootstrap_servers, topic_prefix=f"bench-{kind.name}")
            documents = kind.documents(options.rows)
            ends = await limits.prefill(kafka, documents, partitions=options.partitions)
            results[kind.name] = await _compare(options, strategy, kafka, kind, documents, ends)
            print(json.dumps({kind.name: results[kind.name]}), file=sys.stderr)
    return {"unit": "row", "rows": options.rows, "batch_size": BATCH, "partitions": options.partitions, **results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=24_000)
    parser.add_argument("--round", type=int, default=6_000)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=harness.REPEATS)
    options = parser.parse_args()
    harness.run(run, options)
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's server of the cluster has no end


if __name__ == "__main__":
    main()
