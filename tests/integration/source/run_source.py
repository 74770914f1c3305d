"""The child process of test_source_crash: a source that streams until it is killed.

python -m tests.integration.source.run_source MONGO_URI BOOTSTRAP_SERVERS TOPIC_PREFIX
"""

from __future__ import annotations

import asyncio
import sys

from streamtrain import config
from streamtrain.clock import SystemClock
from streamtrain.source.publisher import Publisher
from streamtrain.source.source import Source
from tests.integration.source.at_work import PARTITIONS, SOURCE, spec_of


async def main(uri: str, servers: str, prefix: str) -> None:
    clock = SystemClock()
    kafka = config.Kafka(bootstrap_servers=servers, topic_prefix=prefix)
    publisher = Publisher(
        kafka=kafka,
        source=SOURCE,
        partitions=PARTITIONS,
        clock=clock,
        on_published=lambda published: print(published.records, flush=True),
    )
    await Source(spec=spec_of(uri), publisher=publisher, clock=clock).run()


asyncio.run(main(*sys.argv[1:]))
