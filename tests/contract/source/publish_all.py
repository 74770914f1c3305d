"""The child process of test_publisher_crash: publishes events 1..total from where its source stands, in batches of
changing size, and prints the number of each last committed one.

    python -m tests.contract.source.publish_all BOOTSTRAP_SERVERS TOPIC_PREFIX TOTAL
"""

from __future__ import annotations

import asyncio
import sys

from streamtrain import config
from streamtrain.types import Position
from tests.contract.source import numbered_events as numbered


def number_of(position: Position) -> int:
    return (position.cluster_time >> 32) - 1000


async def main(servers: str, prefix: str, total: int) -> None:
    kafka = config.Kafka(bootstrap_servers=servers, topic_prefix=prefix)
    async with numbered.publishing(kafka) as publisher:
        done = number_of(await numbered.start(publisher))
        size = 1
        while done < total:
            size = size * 7 % 61 or 1
            events = [numbered.event(i) for i in range(done + 1, min(done + size, total) + 1)]
            done = number_of(await publisher.publish(events, numbered.position(done + len(events))))
            print(done, flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
