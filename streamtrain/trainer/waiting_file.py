"""What a rank's checkpoint says of documents that wait for a label, and of those that were learned with absent ones
and are still in memory: places in the topic, never copies. Blocks of offsets that have not changed are not compressed
again."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import bson
import numpy as np

from streamtrain.errors import ArtifactError
from streamtrain.trainer.memory import PartitionMemory
from streamtrain.trainer.waiting import Ints, Waiting
from streamtrain.trainer.waiting_index import BLOCK_BITS, WaitingIndex

FORMAT = 1
ROLE = "waiting"  # and behind it the rank that wrote the file

_BLOCK = 1 << BLOCK_BITS


class WaitingFiles:
    """Writes one after the other."""

    def __init__(self, memories: Mapping[int, PartitionMemory]) -> None:
        self._memories = memories
        self._blocks: dict[int, dict[int, dict[str, Any]]] = {number: {} for number in memories}

    def content(self) -> bytes:
        partitions = [self._partition(number, memory) for number, memory in self._memories.items()]
        return bson.encode({"format": FORMAT, "partitions": partitions})

    def _partition(self, number: int, memory: PartitionMemory) -> dict[str, Any]:
        blocks = self._blocks[number]
        for block in memory.waiting.changed():
            packed = _pack(memory.waiting, block)
            if packed is None:
                blocks.pop(block, None)
            else:
                blocks[block] = packed
        codes, offsets, dues = memory.absent()
        heirs, origins = memory.inherited()
        columns = {"codes": codes, "offsets": offsets, "dues": dues, "heirs": heirs, "origins": origins}
        return {
            "partition": number,
            "blocks": [blocks[block] for block in sorted(blocks)],
            **{name: _squeeze(values) for name, values in columns.items()},
        }


def read(content: bytes) -> dict[int, Waiting]:
    """Per partition. Raises ArtifactError."""
    try:
        document = bson.decode(content)
        if document["format"] > FORMAT:
            raise ArtifactError(
                f"the file of waiting documents has format {document['format']}; this release reads up to {FORMAT}",
                hint="upgrade streamtrain on this host",
            )
        return {part["partition"]: _read_partition(part) for part in document["partitions"]}
    except (bson.errors.BSONError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise ArtifactError(f"not a file of waiting documents: {type(error).__name__}") from error


def _read_partition(part: Mapping[str, Any]) -> Waiting:
    nothing = np.zeros(0, np.int64)
    blocks = [(nothing, nothing, nothing), *map(_unpack, part["blocks"])]
    firsts, latests, missing = (np.concatenate(each) for each in zip(*blocks, strict=True))
    columns = ("codes", "offsets", "dues", "heirs", "origins")
    return Waiting(firsts, latests, missing, *(_stretch(part[name]) for name in columns))


def _pack(index: WaitingIndex, block: int) -> dict[str, Any] | None:
    """The documents whose first versions lie in a block of offsets: a bitmap for each set of missing labels, and where
    the latest version is not the first."""
    begin = block * _BLOCK
    firsts, latests, missing = index.places(index.rows(begin, begin + _BLOCK))
    if not len(firsts):
        return None
    sets = []
    for labels in np.unique(missing).tolist():
        bits = np.zeros(_BLOCK, np.bool_)
        bits[firsts[missing == labels] - begin] = True
        sets.append({"missing": labels, "bits": zlib.compress(np.packbits(bits).tobytes())})
    later = latests != firsts
    return {
        "block": block,
        "sets": sets,
        "later": zlib.compress((firsts[later] - begin).astype("<u2").tobytes()),
        "by": _squeeze(latests[later] - firsts[later]),
    }


def _unpack(packed: Mapping[str, Any]) -> tuple[Ints, Ints, Ints]:
    begin = packed["block"] * _BLOCK
    missing = np.zeros(_BLOCK, np.int64)
    for each in packed["sets"]:
        bits = np.unpackbits(np.frombuffer(zlib.decompress(each["bits"]), np.uint8))
        missing[bits.astype(np.bool_)] = each["missing"]
    places = np.flatnonzero(missing)
    by = np.zeros(_BLOCK, np.int64)
    by[np.frombuffer(zlib.decompress(packed["later"]), "<u2")] = _stretch(packed["by"])
    return begin + places, begin + places + by[places], missing[places]


def _squeeze(values: Ints) -> bytes:
    return zlib.compress(np.diff(values, prepend=0).astype("<i8").tobytes(), 1)


def _stretch(squeezed: bytes) -> Ints:
    return np.cumsum(np.frombuffer(zlib.decompress(squeezed), "<i8"))
