"""The configuration that the demo runs: a file such as a user would write, left behind with `--keep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from streamtrain.demo.options import PARTITIONS

SOURCE = "flights"
JOB = "flight-delay"
LABEL = "arr_delay"
DATABASE = "air"
COLLECTION = "flights"
STATE_DATABASE = "streamtrain"

_TEMPLATE = """\
# Written by `streamtrain demo`: the configuration of the daemon that it runs.
kafka:
  bootstrap_servers: "{kafka}"
state:
  artifacts: "{artifacts}"
admin:
  listen: "{admin}"
sources:
  - name: {source}
    uri: "{mongo}"
    database: {database}
    collection: {collection}
    partitions: {partitions}
jobs:
  - name: {job}
    source: {source}
    # What is known when a flight leaves. `recent.*` is how much later than they left flights have been landing.
    features:
      - {{field: dep_delay, dtype: float32}}
      - {{field: block, dtype: float32}}
      - {{field: distance, dtype: float32}}
      - {{field: sched_dep_time, dtype: float32}}
      - {{field: sched_arr_time, dtype: float32}}
      - {{field: recent.dest, dtype: float32}}
      - {{field: recent.origin, dtype: float32}}
      - {{field: recent.flight, dtype: float32}}
      - {{field: hour, dtype: int32}}
      - {{field: weekday, dtype: int32}}
      - {{field: carrier, dtype: string}}
      - {{field: origin, dtype: string}}
      - {{field: dest, dtype: string}}
    labels:
      - {{field: {label}, dtype: float32, task: regression}}
    # noida-db keeps a topic in memory and in one file, so the demo keeps the window small.
    window: {{duration: 1h, max_records: 20000}}
    round: {{batch_size: 64}}
    checkpoint: {{every: 10s}}
    workers: {{min: {workers}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the demo's servers listen."""

    mongo: str
    kafka: str
    admin: str


def configuration(*, addresses: Addresses, artifacts: Path, workers: int) -> str:
    return _TEMPLATE.format(
        kafka=addresses.kafka,
        mongo=addresses.mongo,
        admin=addresses.admin,
        artifacts=artifacts,
        source=SOURCE,
        job=JOB,
        label=LABEL,
        database=DATABASE,
        collection=COLLECTION,
        partitions=PARTITIONS,
        workers=workers,
    )
