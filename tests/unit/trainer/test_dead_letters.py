"""What counts as acknowledged, with a producer whose answers the test decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import errors as kafka_errors

from streamtrain import config
from streamtrain.errors import KafkaError
from streamtrain.trainer.dead_letters import DeadLetters, Letter


class HeldLetters(DeadLetters):
    """Acknowledgements come when the test gives them."""

    def __init__(self) -> None:
        super().__init__(kafka=config.Kafka(bootstrap_servers="127.0.0.1:1"), topic="letters")
        self.sent: list[asyncio.Future[object]] = []

    async def _started(self) -> Any:
        return self

    async def send(self, topic: str, **record: Any) -> asyncio.Future[object]:
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]


LETTER = Letter(origin="topic/0/7", reason="type:x", value=b"document", headers=())


async def test_a_flush_waits_for_letters_that_another_flush_waits_for() -> None:
    letters = HeldLetters()
    await letters.write([LETTER])
    flushes = [asyncio.create_task(letters.flush()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(flush.done() for flush in flushes)
    letters.sent[0].set_result(None)
    await asyncio.gather(*flushes)


async def test_once_a_letter_is_lost_no_later_flush_succeeds() -> None:
    letters = HeldLetters()
    await letters.write([LETTER])
    letters.sent[0].set_exception(kafka_errors.TopicAuthorizationFailedError())
    for _ in range(2):
        with pytest.raises(KafkaError, match="cannot be written to letters"):
            await letters.flush()
