"""Looks, as the daemon does at its start, at what the settings need: TensorFlow and the servers. It changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib.util import find_spec

from streamtrain import config
from streamtrain.daemon import state_store
from streamtrain.errors import DependencyError
from streamtrain.kafka.topic_admin import ensure_topics
from streamtrain.source import preflight
from streamtrain.source.position_log import read_position
from streamtrain.source.source_topic import check_positions, check_records, source_topics


def checks(settings: config.Settings) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """What is checked, and the check, which raises StreamtrainError. The state comes last: by default it is in the
    first source's cluster, of which the source's own check says more."""
    yield "TensorFlow", _tensorflow
    for source in settings.sources:
        yield f"MongoDB of source {source.name}", partial(_mongo, source)
    for source in settings.sources:
        yield f"Kafka of source {source.name}", partial(_kafka, settings.kafka, source)
    yield "MongoDB of the state", partial(state_store.check, settings)


async def check(settings: config.Settings) -> None:
    """Raises the first error of all checks."""
    for _name, each in checks(settings):
        await each()


async def _tensorflow() -> None:
    """Whether the workers will find it; only they import it."""
    if missing := [name for name in ("tensorflow", "keras") if find_spec(name) is None]:
        raise DependencyError(
            f"{' and '.join(missing)} cannot be imported by {sys.executable}",
            hint="pip install 'streamtrain[cpu]', or 'streamtrain[gpu]' on a machine with GPUs",
        )


async def _mongo(source: config.Source) -> None:
    client = preflight.connect(source)
    try:
        await preflight.check(source, client)
    finally:
        await client.close()


async def _kafka(kafka: config.Kafka, source: config.Source) -> None:
    """What a topic that is there must be; one that is missing is created by the daemon."""
    specs = source_topics(kafka, source.name, partitions=source.partitions, epoch=0)
    found = await ensure_topics(kafka, specs.all, create=False)
    position = None
    if specs.positions.name in found:
        check_positions(found[specs.positions.name], specs.positions)
        position = await read_position(kafka, source.name)
    if position is not None and position.topic_epoch:
        specs = source_topics(kafka, source.name, partitions=source.partitions, epoch=position.topic_epoch)
        found = await ensure_topics(kafka, specs.all, create=False)
    if specs.records.name in found:
        check_records(
            found[specs.records.name],
            specs.records,
            source=source.name,
            stored=None if position is None else len(position.counts),
            retention_s=kafka.retention,
        )
