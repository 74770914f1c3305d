"""Settings of a job: what it reads of a document, what it predicts, and how it learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from streamtrain import types
from streamtrain.config.values import Duration, Holdout, Name, PositiveDuration, Section, located
from streamtrain.errors import FilterError

_FLOATS = frozenset({types.DType.FLOAT32, types.DType.FLOAT64})
_LARGEST_FLOAT32 = 3.4028234663852886e38


class FeatureSpec(Section):
    """An input of the model."""

    field: str = Field(min_length=1, description="dotted path into the document")
    dtype: types.DType = Field(description="what it becomes; a datetime is milliseconds since 1970")
    length: int | None = Field(None, ge=1, description="elements of a vector; default: a single value")
    max_length: int | None = Field(
        None, ge=1, description="of a list of any length: its last so many elements, followed by pad where it has fewer"
    )
    pad: float | int | bool | str | None = Field(
        None, description="what fills a list up to max_length; default: 0, or the empty string"
    )
    encoding: Literal["list", "binary"] = Field(
        "list", description="of a vector: a list of numbers, or little-endian float32 in binary data"
    )
    missing: float | int | bool | str | None = Field(
        None,
        description="stands in for a value that is absent, null or not finite, while an absent list with max_length is "
        "an empty one; default: such a document is refused",
    )
    buckets: int | None = Field(None, ge=2, description="hash a string into so many integers before the model sees it")

    @model_validator(mode="after")
    def _fits(self) -> FeatureSpec:
        problems = []
        if self.encoding == "binary" and (self.length is None or self.dtype not in _FLOATS):
            problems.append(located(("encoding",), "a binary vector needs dtype: float32 and a length", self.encoding))
        if self.buckets is not None and self.dtype is not types.DType.STRING:
            problems.append(located(("buckets",), f"only strings are hashed, not {self.dtype.value}", self.buckets))
        if self.max_length is not None and self.length is not None:
            told = "a vector has a length, a list of any length a max_length: give one of them"
            problems.append(located(("max_length",), told, self.max_length))
        if self.pad is not None and self.max_length is None:
            problems.append(located(("pad",), "only a list with max_length is padded", self.pad))
        for name, value in (("missing", self.missing), ("pad", self.pad)):
            if value is not None and not _replaces(value, self.dtype):
                problems.append(located((name,), f"{value!r} is no {self.dtype.value}", value))
        if problems:
            raise ValidationError.from_exception_data("FeatureSpec", problems)
        return self


class LabelSpec(Section):
    """What the model predicts. A document without it waits until an update brings it, or `absent_after` is over."""

    field: str = Field(min_length=1, description="dotted path into the document")
    dtype: types.DType = Field(description="a number; for a classification also bool")
    task: types.Task = Field(description="regression, or classification: labels are 0 to classes - 1")
    classes: int = Field(2, ge=2, description="of a classification")
    absent_after: PositiveDuration | None = Field(
        None,
        description="how long the label is waited for from the document's first version on, by MongoDB's clock; then "
        "the document is learned with absent_value. Default: for good, but not beyond the window",
    )
    absent_value: float | int | bool | None = Field(None, description="of a label that has not come; with absent_after")

    @model_validator(mode="after")
    def _fits(self) -> LabelSpec:
        refused = {types.DType.STRING, types.DType.DATETIME, types.DType.BYTES}
        if self.task is types.Task.REGRESSION:
            refused.add(types.DType.BOOL)
        problems = []
        if self.dtype in refused:
            told = f"{self.dtype.value} cannot be the label of a {self.task.value}"
            problems.append(located(("dtype",), told, self.dtype))
        elif self.absent_after is not None and self.absent_value is None:
            told = "says when, but not what is learned then: give an absent_value"
            problems.append(located(("absent_after",), told, self.absent_after))
        elif self.absent_value is not None and not self._takes(self.absent_value):
            told = f"{self.absent_value!r} cannot be the value of this label"
            problems.append(located(("absent_value",), told, self.absent_value))
        elif self.absent_value is not None and self.absent_after is None:
            problems.append(located(("absent_value",), "needs absent_after: when it is learned", self.absent_value))
        if problems:
            raise ValidationError.from_exception_data("LabelSpec", problems)
        return self

    def _takes(self, value: float | int | bool) -> bool:
        if self.dtype is types.DType.BOOL:
            return isinstance(value, bool)
        if not _replaces(value, self.dtype):
            return False
        if self.task is types.Task.CLASSIFICATION:
            return 0 <= value < self.classes and value == int(value)
        return abs(value) <= types.LARGEST_TARGET


class WeightSpec(Section):
    """How much a document counts in the loss, in the running statistics and in the scores. `weight: field` is short
    for `weight: {field: field}`; with both keys the weights are multiplied."""

    field: str | None = Field(None, min_length=1, description="dotted path to a number of at least 0")
    missing: float = Field(1.0, ge=0, le=1e9, description="the weight of a document where that is absent or null")
    classes: dict[int, Annotated[float, Field(ge=0, le=1e9)]] | None = Field(
        None, min_length=1, description="weights by class of the label; a class that is not named has weight 1"
    )
    label: str | None = Field(None, description="whose classes; default: the only classification of the job")

    @model_validator(mode="after")
    def _says_something(self) -> WeightSpec:
        if self.field is None and self.classes is None:
            raise ValueError("needs a field, or classes")
        if self.label is not None and self.classes is None:
            problem = located(("label",), "is for classes, and there are none", self.label)
            raise ValidationError.from_exception_data("WeightSpec", [problem])
        return self


def _weight(value: Any) -> Any:
    return {"field": value} if isinstance(value, str) else value


class WindowSpec(Section):
    """The rolling window that a job keeps in memory and learns again from."""

    duration: PositiveDuration = Field(6 * 3600.0, description="how far back, by the time of arrival in Kafka")
    max_records: int = Field(500_000, ge=1, description="and at most so many records")
    half_life: PositiveDuration = Field(2 * 3600.0, description="after it a document is replayed half as often")


class RoundSpec(Section):
    """What is learned in one go."""

    max_wait: Duration = Field(0.1, description="how long a record may wait for others")
    max_records: int = Field(16_384, ge=1, le=10_000_000, description="at most so many new ones")
    batch_size: int = Field(256, ge=1, le=1_000_000, description="rows of a gradient step, over all workers")
    replay_ratio: float = Field(1.0, ge=0, le=100, description="rows learned again for each new one")


class CheckpointSpec(Section):
    """How often what was learned is saved."""

    every: PositiveDuration = Field(30.0, description="between saves while something was learned")
    keep: int = Field(5, ge=1, description="manifests to keep")


class WorkersSpec(Section):
    """The processes that train a job."""

    min: int = Field(1, ge=1, le=1024, description="how many")


class Job(Section):
    """A model that learns from a source."""

    name: Name = Field(description="of the job; a new name starts anew")
    source: Name = Field(description="the name of the source that it learns from")
    features: tuple[FeatureSpec, ...] = Field(min_length=1, description="the model's inputs")
    labels: tuple[LabelSpec, ...] = Field(min_length=1, description="what it predicts")
    features_as_of: Literal["label", "first"] = Field(
        "label",
        description="which version of a document gives the features: the one that brought the label, or the first one "
        "that was seen, as it stood when nothing was known yet",
    )
    filter: dict[str, Any] | None = Field(
        None,
        description="a MongoDB query; a version that does not match it counts as the delete of its document. "
        "Default: every document is learned",
    )
    weight: Annotated[WeightSpec | None, BeforeValidator(_weight)] = Field(
        None, description="a field, or weights by class; default: all documents count the same"
    )
    on_delete: Literal["forget", "keep"] = Field(
        "forget",
        description="forget: a deleted document is never learned again; keep: deletes change nothing, for collections "
        "whose documents expire or are archived",
    )
    holdout: Holdout = Field(
        0.0, description="share of the documents, by a fixed hash of their key, that is scored and never learned from"
    )
    window: WindowSpec = Field(WindowSpec(), description="how much is kept to learn again from")
    round: RoundSpec = Field(RoundSpec(), description="how much is learned in one go")
    checkpoint: CheckpointSpec = Field(CheckpointSpec(), description="how often what was learned is saved")
    model: str = Field(
        "builtin",
        pattern=r"^builtin$|^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="builtin, or module:function, called as function(schema, hyper), which returns a keras.Model",
    )
    hyper: dict[str, Any] = Field(default_factory=dict, description="handed to the model's function")
    optimizer: dict[str, Any] | None = Field(None, description="a keras optimizer config; default: what the model sets")
    loss_reduction: Literal["mean", "sum"] = Field("mean", description="of a batch's weighted losses")
    dtype: Literal["float32", "float64"] = Field("float32", description="of weights and computation")
    workers: WorkersSpec = Field(WorkersSpec(), description="the processes that train it")
    seed: int = Field(0, ge=0, lt=2**32, description="of first weights and replay")

    @model_validator(mode="after")
    def _distinct(self) -> Job:
        """A field is one input; a label that is one too would be known before it is predicted."""
        seen: set[str] = set()
        problems = []
        given = (("features", [f.field for f in self.features]), ("labels", [label.field for label in self.labels]))
        for section, fields in given:
            for at, field in enumerate(fields):
                if field in seen:
                    problems.append(located((section, at, "field"), f"{field!r} is given twice", field))
                seen.add(field)
        if problems:
            raise ValidationError.from_exception_data("Job", problems)
        return self

    @model_validator(mode="after")
    def _answers(self) -> Job:
        """The filter is a query that can be answered, and the weights are those of classes that there are."""
        problems = []
        if self.filter is not None:
            from streamtrain.filters import Filter  # bson takes a while to import, and few jobs have one

            try:
                Filter(self.filter)
            except FilterError as error:
                problems.append(located(("filter", *error.place), error.problem, None))
        if self.weight is not None and self.weight.classes is not None:
            problems += self._class_weights(self.weight, self.weight.classes)
        if problems:
            raise ValidationError.from_exception_data("Job", problems)
        return self

    def _class_weights(self, weight: WeightSpec, classes: dict[int, float]) -> list[InitErrorDetails]:
        label = self.weighted_label()
        if label is None:
            among = [each.field for each in self.labels if each.task is types.Task.CLASSIFICATION]
            told = f"the classifications are {', '.join(map(repr, among))}" if among else "no label is a classification"
            at = "classes" if weight.label is None else "label"
            return [located(("weight", at), told, weight.label)]
        unknown = [number for number in classes if not 0 <= number < label.classes]
        told = f"the classes of {label.field!r} are 0 to {label.classes - 1}"
        problems = [located(("weight", "classes", str(number)), told, number) for number in unknown]
        if not problems and not any(classes.get(number, 1.0) for number in range(label.classes)):
            problems = [located(("weight", "classes"), "all classes have weight 0: nothing would be learned", classes)]
        return problems

    def weighted_label(self) -> LabelSpec | None:
        """The classification whose classes have weights: the one named, or the only one."""
        named = None if self.weight is None else self.weight.label
        found = [
            label for label in self.labels if label.task is types.Task.CLASSIFICATION and named in (None, label.field)
        ]
        return found[0] if len(found) == 1 else None

    def with_hyper(self, instead: Mapping[str, Any]) -> Job:
        """With other hyper-parameters under the keys that `instead` names (`types.Manifest.hyper`)."""
        return self.model_copy(update={"hyper": {**self.hyper, **instead}}) if instead else self

    def schema_(self) -> types.Schema:
        return types.Schema(
            features=tuple(types.Feature(**feature.model_dump()) for feature in self.features),
            labels=tuple(types.Label(**label.model_dump()) for label in self.labels),
        )


def _replaces(value: float | int | bool | str, dtype: types.DType) -> bool:
    """Whether the value can stand for a missing one of that type."""
    if dtype in (types.DType.STRING, types.DType.BYTES):
        return isinstance(value, str)
    if dtype is types.DType.BOOL:
        return isinstance(value, bool)
    if isinstance(value, (bool, str)) or not math.isfinite(value):
        return False
    if dtype in _FLOATS:
        return dtype is types.DType.FLOAT64 or abs(value) <= _LARGEST_FLOAT32
    bits = 31 if dtype is types.DType.INT32 else 63
    return value == int(value) and -(2**bits) <= value < 2**bits
