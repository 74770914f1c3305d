from __future__ import annotations

from streamtrain.init.habits import Habits


def test_what_inserts_bring_and_updates_set_is_counted_by_path() -> None:
    habits = Habits(seconds=2.0)
    habits.add({"operationType": "insert", "fullDocument": {"_id": 1, "a": {"b": 1}, "c": None}})
    habits.add({"operationType": "update", "updateDescription": {"updatedFields": {"a.b": 2, "list.3.x": 1}}})
    habits.add({"operationType": "update", "updateDescription": {"updatedFields": {"a": {"b": 3}, "label": 1}}})
    habits.add({"operationType": "update", "updateDescription": {"removedFields": ["c"], "updatedFields": {}}})
    habits.add({"operationType": "update", "updateDescription": {"truncatedArrays": [{"field": "tail"}]}})
    habits.add({"operationType": "replace", "fullDocument": {"_id": 1}})
    habits.add({"operationType": "delete"})
    habits.add({"operationType": "drop"})
    assert (habits.inserts, habits.updates, habits.replaces, habits.deletes) == (1, 4, 1, 1)
    assert (habits.inserted("a.b"), habits.inserted("c"), habits.inserted("label")) == (1, 0, 0)
    assert (habits.updated("a.b"), habits.updated("label"), habits.updated("c")) == (2, 1, 1)
    assert (habits.updated("list"), habits.updated("tail"), habits.updated("a.other")) == (1, 1, 1)
    assert habits.most_updated(2) == [("a", 0.25), ("a.b", 0.25)]
    assert habits.per_second(habits.writes) == 3.0
    assert Habits().per_second(9) == 0.0


def test_memory_is_bounded_whatever_is_written() -> None:
    habits = Habits(seconds=1.0)
    for number in range(5000):
        habits.add({"operationType": "update", "updateDescription": {"updatedFields": {f"f{number}": 1}}})
        habits.add({"operationType": "insert", "fullDocument": {f"g{number}": 1}})
    assert len(habits._updates) <= 2000
    assert len(habits._inserted) <= 3000
