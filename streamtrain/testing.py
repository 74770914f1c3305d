"""For the tests of your own models: `check_model` does what `streamtrain check-model` does, without servers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import bson

from streamtrain.checking.checker import check
from streamtrain.checking.verdicts import State, Verdict
from streamtrain.config import Job
from streamtrain.types import Schema

Document = Mapping[str, Any] | bytes


def check_model(
    build: Callable[..., Any] | str,
    *,
    schema: Schema | Mapping[str, Any],
    documents: Sequence[Document],
    hyper: Mapping[str, Any] | None = None,
    strict: bool = False,
    **options: Any,
) -> list[Verdict]:
    """Tries the model that `build(schema, hyper)` makes, in processes of its own: builds it, decodes the documents,
    takes ten steps alone and with two workers, saves, restores, and exports it.

    build: a function of a module, or "module:function", or "builtin". schema: `features` and `labels` as in the
    settings file. documents: mappings, or raw BSON. options: further keys of the job, such as `optimizer`, `dtype` or
    `round`. Returns the verdicts. Raises AssertionError with advice when one has failed (strict: or needs care), and
    ConfigError when the schema or an option is wrong.
    """
    module, file, name = _named(build)
    job = Job.model_validate(
        {
            "name": "checked",
            "source": "documents",
            **(_sections(schema) if isinstance(schema, Schema) else dict(schema)),
            "model": name,
            "hyper": dict(hyper or {}),
            **options,
        }
    )
    raw = [document if isinstance(document, bytes) else bson.encode(document) for document in documents]
    found = check(job, raw, module=module, file=file)
    wrong = [each for each in found if each.state is State.FAILED or (strict and each.state is State.CARE)]
    if wrong:
        told = "\n".join(f"{each.check}: {each.message}\n  advice: {each.advice}" for each in wrong)
        raise AssertionError(f"model {name}:\n{told}")
    return found


def _named(build: Callable[..., Any] | str) -> tuple[str, str, str]:
    """(module, its file, name as a job has it): other processes import the function again."""
    if isinstance(build, str):
        return "", "", build
    module, qualified = getattr(build, "__module__", ""), getattr(build, "__qualname__", "")
    if not module or not qualified.isidentifier():
        raise AssertionError(
            f"{build!r} cannot be imported by the workers\n  advice: pass a function at the top level of a module"
        )
    return module, inspect.getsourcefile(build) or "", f"{module}:{qualified}"


def _sections(schema: Schema) -> dict[str, Any]:
    def known(part: Any) -> dict[str, Any]:
        return {name: value for name, value in asdict(part).items() if value is not None}

    return {"features": [known(each) for each in schema.features], "labels": [known(each) for each in schema.labels]}
