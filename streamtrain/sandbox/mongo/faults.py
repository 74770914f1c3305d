"""Faults that a test can put into a server: errors, delays and broken connections, by the name of a command.

The same faults are set from Python and, for a server in another process, by the admin command `sandboxFault`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamtrain.sandbox.mongo.failure import CommandError

KINDS = ("error", "delay", "drop_before", "drop_after", "drop_within")


@dataclass(slots=True)
class Fault:
    """One fault: applies to the next `times` commands of that name ('*' for any), after `skip` of them went well.

    `drop_before` closes the connection instead of running the command, `drop_after` runs it and closes without a reply,
    `drop_within` closes in the middle of the reply.
    """

    command: str
    kind: str
    times: int = 1
    skip: int = 0
    code: int = 0
    message: str = "injected by the sandbox"
    labels: tuple[str, ...] = ()
    seconds: float = 0.0
    namespace: str | None = None


@dataclass(slots=True)
class Faults:
    """The faults that are set, first set first used."""

    active: list[Fault] = field(default_factory=list)
    applied: int = 0

    def error(
        self,
        command: str,
        code: int,
        *,
        times: int = 1,
        skip: int = 0,
        message: str = "injected by the sandbox",
        labels: tuple[str, ...] = (),
        namespace: str | None = None,
    ) -> None:
        self.active.append(Fault(command, "error", times, skip, code, message, labels, namespace=namespace))

    def delay(self, command: str, seconds: float, *, times: int = 1, skip: int = 0) -> None:
        self.active.append(Fault(command, "delay", times, skip, seconds=seconds))

    def drop(self, command: str, *, when: str = "before", times: int = 1, skip: int = 0) -> None:
        """Close the connection `before` the command runs, `after` it has run, or `within` its reply."""
        if when not in ("before", "after", "within"):
            raise ValueError(f"when must be before, after or within, not {when!r}")
        self.active.append(Fault(command, f"drop_{when}", times, skip))

    def clear(self) -> None:
        self.active.clear()

    def take(self, command: str, namespace: str) -> list[Fault]:
        """The faults of this run of a command; counts it."""
        if not self.active:
            return []
        chosen = []
        for fault in list(self.active):
            if fault.command not in (command, "*") or (fault.namespace is not None and fault.namespace != namespace):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self.active.remove(fault)
            chosen.append(fault)
            self.applied += 1
        return chosen

    def set_from(self, document: Mapping[str, Any]) -> None:
        """The admin command's way in: `{sandboxFault: command, kind, times, skip, code, message, labels, seconds}`."""
        kind = document.get("kind")
        if kind == "clear":
            self.clear()
            return
        if kind not in KINDS:
            raise CommandError(2, f"kind must be one of {', '.join((*KINDS, 'clear'))}")
        self.active.append(
            Fault(
                command=str(document["sandboxFault"]),
                kind=kind,
                times=int(document.get("times", 1)),
                skip=int(document.get("skip", 0)),
                code=int(document.get("code", 0)),
                message=str(document.get("message", "injected by the sandbox")),
                labels=tuple(document.get("labels", ())),
                seconds=float(document.get("seconds", 0)),
                namespace=document.get("namespace"),
            )
        )
