"""Which step a row belongs to, and how rows are stacked: the same whatever the number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtrain.trainer.batches import (
    STEPS_PER_CALL,
    Stack,
    bucketed,
    layout_of,
    stacks,
    step_of_rows,
    steps_of,
)
from streamtrain.trainer.round_index import RoundIndex
from streamtrain.trainer.rows import Rows
from streamtrain.types import DType, Feature, Label, Schema, Task

SCHEMA = Schema(
    features=(
        Feature("x", DType.FLOAT32),
        Feature("v", DType.FLOAT32, length=3),
        Feature("s", DType.STRING),
        Feature("t", DType.DATETIME),
        Feature("n", DType.INT32),
        Feature("b", DType.BOOL),
    ),
    labels=(Label("y", DType.FLOAT32, Task.REGRESSION),),
)
counts_of_partitions = st.lists(st.integers(0, 40), min_size=1, max_size=6)


def rows_of(partition: int, n: int) -> Rows:
    """Rows that can be told apart by their label: partition + place / 1000."""
    y = partition + np.arange(n) / 1000
    return Rows(
        partition=partition,
        columns={
            "x": y.astype(np.float32),
            "v": np.stack([y, y + 1, y + 2], axis=1).astype(np.float32).reshape(n, 3),
            "s": np.array([b"%d" % i for i in range(n)] + [b""], object)[:n],
            "t": np.arange(n) + 1_700_000_000_000,
            "n": np.arange(n, dtype=np.int32),
            "b": np.arange(n) % 2 == 0,
        },
        labels={"y": y},
        weights=np.full(n, 1.0 + partition),
        scored=np.arange(n) % 3 == 0,
        wall_time_ms=np.where(np.arange(n) % 2 == 0, 0, 1_000_000 + partition),
    )


def stacked(counts: list[int], batch_size: int, rank: int, world: int) -> list[Stack]:
    steps = step_of_rows(counts, batch_size)
    owned = range(rank, len(counts), world)
    return list(
        stacks(
            layout=layout_of(SCHEMA, np.float64),
            rows=[rows_of(p, counts[p]) for p in owned],
            steps=[steps[p] for p in owned],
            total_steps=steps_of(sum(counts), batch_size),
            batch_size=batch_size,
        )
    )


@given(counts_of_partitions, st.integers(1, 40))
def test_every_step_has_rows_and_none_more_than_the_batch_size(counts: list[int], batch_size: int) -> None:
    found = np.concatenate(step_of_rows(counts, batch_size))
    assert len(found) == sum(counts)
    if sum(counts):
        sizes = np.bincount(found)
        assert len(sizes) == steps_of(sum(counts), batch_size) == -(-sum(counts) // batch_size)
        assert sizes.min() >= 1
        assert sizes.max() <= batch_size
        assert sizes.max() - sizes.min() <= 1


@given(counts_of_partitions, st.integers(1, 40))
def test_rows_of_a_partition_keep_their_order_and_spread_over_all_steps(counts: list[int], batch_size: int) -> None:
    total_steps = steps_of(sum(counts), batch_size)
    for n, steps in zip(counts, step_of_rows(counts, batch_size), strict=True):
        assert len(steps) == n
        assert (np.diff(steps) >= 0).all()
        for i, step in enumerate(steps):
            assert abs(step - (i + 0.5) / n * total_steps) <= 1 + len(counts) * total_steps / sum(counts)


def test_the_order_is_that_of_the_formula() -> None:
    counts, batch_size = [3, 0, 5], 2
    rows = sorted(((i + 0.5) / n, p, i) for p, n in enumerate(counts) for i in range(n))
    expected = {(p, i): g * 4 // 8 for g, (_, p, i) in enumerate(rows)}
    found = step_of_rows(counts, batch_size)
    assert {(p, i): int(step) for p, steps in enumerate(found) for i, step in enumerate(steps)} == expected


@given(counts_of_partitions, st.integers(1, 40), st.integers(1, 4))
def test_ranks_together_hold_each_row_once_in_the_same_step_as_one_rank(
    counts: list[int], batch_size: int, world: int
) -> None:
    def contents(found: list[Stack]) -> dict[int, list[float]]:
        rows: dict[int, list[float]] = {}
        for stack in found:
            for k in range(stack.steps):
                rows.setdefault(stack.first_step + k, []).extend(stack.labels[k, stack.weights[k] > 0, 0].tolist())
        return rows

    alone = contents(stacked(counts, batch_size, 0, 1))
    together: dict[int, list[float]] = {}
    for rank in range(world):
        part = contents(stacked(counts, batch_size, rank, world))
        assert part.keys() == alone.keys()  # a rank without rows takes part in every step
        for step, rows in part.items():
            together.setdefault(step, []).extend(rows)
    assert {step: sorted(rows) for step, rows in together.items()} == {s: sorted(r) for s, r in alone.items()}


@given(counts_of_partitions, st.integers(1, 40))
def test_the_columns_of_a_row_stay_together(counts: list[int], batch_size: int) -> None:
    floats, strings, times, ints, bools = range(5)
    for stack in stacked(counts, batch_size, 0, 1):
        real = stack.weights > 0
        y = stack.labels[..., 0]
        place = np.round((y % 1) * 1000).astype(int)
        np.testing.assert_allclose(stack.packs[floats][..., 0][real], y[real], rtol=1e-6)
        np.testing.assert_allclose(stack.packs[floats][..., 3][real], y[real] + 2, rtol=1e-6)
        assert [int(s) for s in stack.packs[strings][..., 0][real]] == place[real].tolist()
        assert (stack.packs[times][..., 0][real] == place[real] + 1_700_000_000_000).all()
        assert (stack.packs[ints][..., 0][real] == place[real]).all()
        assert (stack.packs[bools][..., 0][real] == (place[real] % 2 == 0)).all()
        assert (stack.weights[real] == 1 + np.floor(y[real])).all()
        assert (stack.scored[real] == (place[real] % 3 == 0)).all()
        assert not stack.scored[~real].any()


def test_stacks_are_cut_at_the_steps_of_one_call_and_widths_come_from_a_coarse_grid() -> None:
    found = stacked([700, 300], 16, 0, 1)
    assert [stack.first_step for stack in found] == list(range(0, 63, STEPS_PER_CALL))
    assert sum(stack.steps for stack in found) == 63
    widths = {stacked([n, n // 2, 7], 256, rank, 3)[0].weights.shape[1] for n in range(1, 2000, 37) for rank in (0, 1)}
    assert len(widths) <= 16
    assert {bucketed(width, 256) % 16 for width in range(257)} == {0}


def test_padding_repeats_the_rows_of_its_step_in_turn() -> None:
    (stack,) = stacked([3], 8, 0, 1)
    assert stack.weights.tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]]
    assert not stack.scored[0, 3:].any()
    for column in (stack.labels[0, :, 0], stack.packs[0][0, :, 0], stack.packs[1][0, :, 0]):
        assert column[3:].tolist() == [*column[:3], *column[:2]]


def test_a_rank_without_a_row_in_a_step_pads_it_with_a_row_of_its_own() -> None:
    (stack,) = stacked([9, 1], 2, 1, 2)  # one row among five steps
    assert (stack.weights > 0).sum() == 1
    assert set(stack.packs[0][..., 0].ravel()) == set(stack.packs[0][stack.weights > 0][:, 0])


def test_freshness_samples_are_this_ranks_fresh_rows() -> None:
    index = RoundIndex.of([rows_of(1, 30)])
    samples = np.concatenate([index.wall_times_ms(stack) for stack in stacked([20, 30], 4, 1, 2)])
    assert samples.tolist() == [1_000_001] * 15


@pytest.mark.parametrize("world", [1, 2])
def test_a_round_without_rows_has_no_stacks(world: int) -> None:
    assert stacked([0, 0], 8, 0, world) == []
