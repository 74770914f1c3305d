"""The errors that the server answers with, in the shape drivers classify them by."""

from __future__ import annotations

from typing import Any

NAMES = {
    2: "BadValue",
    9: "FailedToParse",
    13: "Unauthorized",
    14: "TypeMismatch",
    15: "Overflow",
    18: "AuthenticationFailed",
    20: "IllegalOperation",
    26: "NamespaceNotFound",
    27: "IndexNotFound",
    28: "PathNotViable",
    40: "ConflictingUpdateOperators",
    43: "CursorNotFound",
    47: "NoMatchingDocument",
    48: "NamespaceExists",
    50: "MaxTimeMSExpired",
    56: "EmptyFieldName",
    59: "CommandNotFound",
    66: "ImmutableField",
    72: "InvalidOptions",
    73: "InvalidNamespace",
    76: "NoReplicationEnabled",
    85: "IndexOptionsConflict",
    86: "IndexKeySpecsConflict",
    89: "NetworkTimeout",
    91: "ShutdownInProgress",
    100: "UnsatisfiableWriteConcern",
    112: "WriteConflict",
    121: "DocumentValidationFailure",
    136: "CappedPositionLost",
    166: "CommandNotSupportedOnView",
    168: "InvalidPipelineOperator",
    189: "PrimarySteppedDown",
    225: "TransactionTooOld",
    237: "CursorKilled",
    251: "NoSuchTransaction",
    260: "InvalidResumeToken",
    262: "ExceededTimeLimit",
    280: "ChangeStreamFatalError",
    286: "ChangeStreamHistoryLost",
    9001: "SocketException",
    10107: "NotWritablePrimary",
    10334: "BSONObjectTooLarge",
    11000: "DuplicateKey",
    11600: "InterruptedAtShutdown",
    11602: "InterruptedDueToReplStateChange",
    13435: "NotPrimaryNoSecondaryOk",
    13436: "NotPrimaryOrSecondary",
}
"""The errors that have a name; the others are called LocationN."""


class CommandError(Exception):
    """A command's failure: `code`, message, error labels and the fields that some codes add."""

    def __init__(self, code: int, message: str, *, labels: tuple[str, ...] = (), **fields: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.labels, self.fields = code, message, labels, fields

    def reply(self) -> dict[str, Any]:
        head: dict[str, Any] = {"errorLabels": list(self.labels)} if self.labels else {}
        name = NAMES.get(self.code, f"Location{self.code}")
        return {**head, "ok": 0.0, "errmsg": self.message, "code": self.code, "codeName": name, **self.fields}

    def write_error(self, index: int) -> dict[str, Any]:
        return {"index": index, "code": self.code, **self.fields, "errmsg": self.message}


NON_RESUMABLE = ("NonResumableChangeStreamError",)
