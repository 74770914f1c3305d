"""What a generation is formed with: records that Kafka still holds, the name of a new lineage, sections in clear."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, SecretStr

from streamtrain.errors import OffsetError
from streamtrain.ports import OffsetsPort
from streamtrain.types import Learned, RetentionState


async def check_retention(job: str, offsets: OffsetsPort, learned: tuple[Learned, ...]) -> None:
    """Raises OffsetError when going on from `learned` would silently leave records out."""
    retention = await offsets.retention(learned, None)
    where = ", ".join(map(str, retention.partitions[:5]))
    if retention.state is RetentionState.LOST:
        raise OffsetError(
            f"Kafka has removed records that job {job} had not learned, in partitions {where}",
            hint=f"go on with what the window still holds: streamtrain retrain {job} --promote",
        )
    if retention.state is RetentionState.AHEAD:
        raise OffsetError(
            f"the topic of job {job} ends before what was learned, in partitions {where}: it was created again, "
            "or lost records",
            hint=f"learn what it holds now: streamtrain retrain {job} --promote",
        )


def new_lineage(now: float) -> str:
    """Sorts by time; unique, because two daemons may name one in the same second."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dt%H%M%S}-{secrets.token_hex(3)}"


def revealed(section: BaseModel) -> dict[str, Any]:
    """A config section as a document for a worker, secrets in clear: to be sent, never to be logged."""
    return {key: _reveal(value) for key, value in section.model_dump().items()}


def _reveal(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: _reveal(item) for key, item in value.items()}
    return value
