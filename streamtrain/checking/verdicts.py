"""From what trials of a model have shown to verdicts with advice. Pure: nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from streamtrain.checking.states import Difference
from streamtrain.checking.trial_run import Answer

_FLOAT32_FLOOR = 1e-6  # of the largest weight: what is smaller is rounding
_FLOAT64_TOLERANCE = 1e-10
_ORDERS = 3  # times the difference that another order of rows makes
_WAY = 0.002  # of the largest change of a weight in ten steps
_SHOWN = 5

_STAGES = ("build", "decode", "train", "workers", "restore", "keras", "export")
_GROUND = {"workers": "order"}  # the stage of a single worker that two are compared by
_TITLES = {
    "build": "builds, and fits the schema",
    "decode": "documents decode",
    "train": "ten steps",
    "workers": "two workers learn what one learns",
    "restore": "saved and restored",
    "keras": "written as .keras",
    "export": "exported, and answers raw documents",
}


class State(StrEnum):
    OK = "ok"
    CARE = "care"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Verdict:
    """check: what was looked at. advice: what to do about it, empty where nothing is to be done."""

    check: str
    state: State
    message: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """alone: what one worker said; together: what each of two did. The differences are None where a state is
    missing. replicas: between the two workers. counts: between one worker and two. orders: between orders of a
    batch's rows. moved: between the first weights and those after ten steps.
    went_on: between a model and its restored copy after further steps."""

    dtype: str
    alone: Answer
    together: Sequence[Answer] = ()
    replicas: Difference | None = None
    counts: Difference | None = None
    orders: Difference | None = None
    moved: Difference | None = None
    went_on: Difference | None = None


def verdicts(evidence: Evidence) -> list[Verdict]:
    """In the order of the stages; those that could not be reached are skipped."""
    found = []
    failed = False
    for stage in _STAGES:
        error = evidence.alone.errors.get(_GROUND.get(stage, stage))
        if error is not None:
            state = State.CARE if stage == "keras" else State.FAILED  # neither training nor export needs the file
            found.append(Verdict(_TITLES[stage], state, error["message"], error["hint"] or _GENERAL[stage]))
            failed = failed or stage not in ("keras", "export")
        elif stage == "workers" and not failed:
            found += list(_workers(evidence))
        elif stage in evidence.alone.found:
            made = list(_OF_STAGE[stage](evidence, evidence.alone.found[stage]))
            found += made
            failed = failed or any(verdict.state is State.FAILED for verdict in made)
        elif not failed and evidence.alone.ended:
            advice = "run it by hand: does it end the process, or wait for something?"
            found.append(Verdict(_TITLES[stage], State.FAILED, f"the process {evidence.alone.ended}", advice))
            failed = True
        else:
            found.append(Verdict(_TITLES[stage], State.SKIPPED, "what comes before it has failed"))
    return found


def _build(evidence: Evidence, found: Mapping[str, Any]) -> Iterator[Verdict]:
    yield Verdict(_TITLES["build"], State.OK, f"{found['layers']} layers, {found['weights']:,} trainable weights")
    if unused := found["unused_features"]:
        yield Verdict(
            "features are used",
            State.CARE,
            f"the model has no input {', '.join(map(repr, unused[:_SHOWN]))}",
            "drop the feature from the job (it is decoded and kept for nothing), or name an input after it",
        )
    if lambdas := found["lambdas"]:
        yield Verdict(
            "layers can be written to files",
            State.CARE,
            f"{lambdas[0]} is a Lambda layer: its Python code goes into the .keras file, and loading that needs "
            "safe_mode=False and the same version of Python",
            "use keras.ops in the model's function, or a layer class with get_config()",
        )


def _decode(evidence: Evidence, found: Mapping[str, Any]) -> Iterator[Verdict]:
    documents, labelled, waiting = found["documents"], found["labelled"], found["waiting"]
    refused = sum(found["reasons"].values())
    told = f"of {documents:,} documents {labelled:,} can be learned, {waiting:,} wait for a label"
    if found["filtered"]:
        told += f", {found['filtered']:,} are turned away by the filter"
    if refused:
        reasons = sorted(found["reasons"].items(), key=lambda item: -item[1])[:_SHOWN]
        told += f", {refused:,} would be dead letters: " + ", ".join(f"{reason} {count:,}" for reason, count in reasons)
    if not labelled:
        advice = (
            "does the filter say what was meant?"
            if found["filtered"] == documents
            else "no document of the sample has all its labels: are the labels' fields right, and do labels come later?"
            if waiting and not refused
            else "compare the fields and types of the schema with a document"
        )
        yield Verdict(_TITLES["decode"], State.FAILED, told, advice)
    elif refused:
        advice = "missing: a value to stand in for one that is absent, null or not finite; type, range: another dtype"
        yield Verdict(_TITLES["decode"], State.CARE, told, advice)
    else:
        yield Verdict(_TITLES["decode"], State.OK, told)


def _train(evidence: Evidence, found: Mapping[str, Any]) -> Iterator[Verdict]:
    losses = found["losses"]
    told = ", ".join(f"loss of {field} {values[0]:.4g} to {values[-1]:.4g}" for field, values in losses.items())
    if any(not math.isfinite(value) for values in losses.values() for value in values):
        advice = "lower the learning rate, clip gradients, or scale the inputs: a loss is not a finite number"
        yield Verdict(_TITLES["train"], State.FAILED, told, advice)
    elif found["refused"]:
        yield Verdict(
            _TITLES["train"],
            State.CARE,
            f"{found['refused']} rows were refused by the model; {told}",
            "they would become dead letters: let the model take every value that the features can have",
        )
    else:
        yield Verdict(_TITLES["train"], State.OK, told)
    if unmoved := found["unmoved"]:
        yield Verdict(
            "all weights are learned",
            State.CARE,
            f"{', '.join(unmoved[:_SHOWN])} did not move",
            "does the loss reach them? Weights that are not to be learned belong to a layer with trainable=False",
        )


def _workers(evidence: Evidence) -> Iterator[Verdict]:
    title = _TITLES["workers"]
    for rank, answer in enumerate(evidence.together):
        for error in answer.errors.values():
            yield Verdict(
                title, State.FAILED, f"worker {rank}: {error['message']}", error["hint"] or _GENERAL["workers"]
            )
            return
    for rank, answer in enumerate(evidence.together):
        if answer.ended:
            yield Verdict(title, State.FAILED, f"the process of worker {rank} {answer.ended}", _GENERAL["workers"])
            return
    build, random = evidence.alone.found["build"], evidence.alone.found["train"]["random"]
    replicas, counts = evidence.replicas, evidence.counts
    if replicas is None or counts is None:
        yield Verdict(title, State.SKIPPED, "two workers were not tried")
        return
    if replicas.names:
        paths = [build["other_state"].get(name, name) for name in replicas.names]
        yield Verdict(
            title,
            State.FAILED,
            f"the two workers hold different values of {', '.join(paths[:_SHOWN])}",
            "a layer changes weights of its own in call(): every worker sees other rows. Let gradients move them, or "
            "use keras.layers.BatchNormalization, whose statistics are averaged",
        )
        return
    if random or build["batch_norms"]:
        if random:
            yield Verdict(
                title,
                State.CARE,
                f"every worker draws random masks of its own ({random[0]}), so weights depend on their number; both "
                "workers hold the same",
                "nothing to do, if results need not be the same bits for every number of workers",
            )
        if build["batch_norms"]:
            yield Verdict(
                title,
                State.CARE,
                f"{build['batch_norms'][0]} normalises by each worker's part of the batch, so weights depend on the "
                "number of workers; its moving statistics are averaged, and both workers hold the same",
                "LayerNormalization does not depend on the batch; keep round.batch_size large against the workers",
            )
        return
    limit = tolerance(evidence)
    if counts.largest <= limit:
        yield Verdict(
            title,
            State.OK,
            f"weights differ by {counts.largest:.1g} (tolerated: {limit:.1g}), and both workers hold the same",
        )
        return
    own = "add_loss() or an activity regularizer that depends on the rows, or " if build["own_losses"] else ""
    yield Verdict(
        title,
        State.FAILED,
        f"weights differ by {counts.largest:.2g} after ten steps, where rounding explains {limit:.1g}",
        f"a row's output or loss depends on the other rows of its batch: {own}a mean, a sort or a normalisation over "
        "the batch axis. Every worker sees only its own rows: let each row speak for itself",
    )


def tolerance(evidence: Evidence) -> float:
    """How far one worker and two may lie apart: what another order of rows does in float arithmetic, three times.
    With float32 also 1/500 of the way that the weights went: adaptive optimizers make much of rounding."""
    orders, moved = evidence.orders, evidence.moved
    if orders is None:
        return math.inf
    if evidence.dtype == "float64":
        return max(_ORDERS * orders.largest, _FLOAT64_TOLERANCE)
    way = 0.0 if moved is None else _WAY * moved.largest
    return max(_ORDERS * orders.largest, _FLOAT32_FLOOR * max(orders.scale, 1.0), way)


def _restore(evidence: Evidence, found: Mapping[str, Any]) -> Iterator[Verdict]:
    title = _TITLES["restore"]
    went_on = evidence.went_on
    if not found["bit_for_bit"]:
        yield Verdict(
            title, State.FAILED, "what was restored is not what was saved", "let variables be made in build()"
        )
    elif went_on is not None and went_on.largest > _FLOAT32_FLOOR * max(went_on.scale, 1.0):
        yield Verdict(
            title,
            State.FAILED,
            f"restored bit for bit, but it goes on differently: weights differ by {went_on.largest:.2g} soon after",
            "something that matters is in no variable: a Python attribute that call() changes, or tf.random without a "
            "keras.random.SeedGenerator",
        )
    else:
        yield Verdict(title, State.OK, "bit for bit, and it goes on as before")
    if not found["same_start"]:
        yield Verdict(
            "the first weights are repeatable",
            State.CARE,
            "two builds with the same seed gave different first weights",
            "draw from keras initializers, or from generators that the job's seed seeds (numpy.random and random are, "
            "numpy.random.default_rng() is not)",
        )


def _written(stage: str) -> Any:
    def made(evidence: Evidence, found: Mapping[str, Any]) -> Iterator[Verdict]:
        yield Verdict(_TITLES[stage], State.OK, "answers as the model in memory")

    return made


_OF_STAGE: Mapping[str, Any] = {
    "build": _build,
    "decode": _decode,
    "train": _train,
    "restore": _restore,
    "keras": _written("keras"),
    "export": _written("export"),
}
_GENERAL = {
    "build": "docs/models.md says what a model gets and gives",
    "decode": "compare the fields and types of the schema with a document",
    "train": "its call and its loss must work inside a tf.function, on batches of any size",
    "workers": "docs/models.md says what a model may not do with several workers",
    "order": "",
    "restore": "let variables be made in build()",
    "keras": "layers and functions of your own need get_config() and @keras.saving.register_keras_serializable(); "
    "training and export do not need the file",
    "export": "what the model calls must be operations of TensorFlow or Keras",
}
