"""Records of one partition as the trainer reads them: parallel lists in order of offset, one entry per record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Records:
    """sequence (header `n`), offsets, cluster_times (`seconds << 32 | increment`), wall_times_ms (0 when unknown):
    [n] int64. operations: n letters of Operation. namespaces: UTF-8 `db.collection`. keys: BSON `{_id}`.
    document_keys: BSON documentKey, equal to the key where the collection is not sharded. values: raw documents,
    empty where there is none. others: further headers, where records have any."""

    partition: int
    sequence: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    operations: bytes
    namespaces: Sequence[bytes]
    keys: Sequence[bytes]
    document_keys: Sequence[bytes]
    cluster_times: npt.NDArray[np.int64]
    wall_times_ms: npt.NDArray[np.int64]
    values: Sequence[bytes]
    others: Sequence[Mapping[str, bytes]] | None = None

    @classmethod
    def none(cls, partition: int) -> Records:
        nothing = np.zeros(0, np.int64)
        return cls(partition, nothing, nothing, b"", (), (), (), nothing, nothing, ())

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, partition: int, which: slice) -> Records:
        """Some of them, as records of `partition`."""
        return Records(
            partition=partition,
            sequence=self.sequence[which],
            offsets=self.offsets[which],
            operations=self.operations[which],
            namespaces=self.namespaces[which],
            keys=self.keys[which],
            document_keys=self.document_keys[which],
            cluster_times=self.cluster_times[which],
            wall_times_ms=self.wall_times_ms[which],
            values=self.values[which],
            others=None if self.others is None else self.others[which],
        )
