"""What an error of MongoDB means for a source: one of the project's errors that end it, or a reason to try
again. A pure function; it must never take an unknown error for a lost history."""

from __future__ import annotations

from pymongo.errors import ConfigurationError, OperationFailure

from streamtrain.errors import (
    AuthenticationError,
    ConfigError,
    HistoryLostError,
    InvalidatedError,
    MongoError,
    PermissionMissingError,
    SourceError,
    StreamtrainError,
)
from streamtrain.mongo_failure import AUTHENTICATION_FAILED, UNAUTHORIZED, text

MAKE_REPLICA_SET = (
    "start mongod with --replSet rs0 and run rs.initiate() once; one member is enough (streamtrain sandbox up "
    "starts a server to try things on)"
)
HISTORY_LOST = frozenset({286, 280, 136})
INVALID_RESUME_TOKEN = 260
BROKEN_TOKEN = frozenset({9, 15, 40647, 40649})
NOT_A_REPLICA_SET = 40573
IMPOSSIBLE_NAMESPACE = frozenset({73, 166})
UNKNOWN_OPTION = frozenset({40415, 40575})
EVENT_TOO_LARGE = 10334
NO_POST_IMAGE = 47

# The change streams specification's list, and what else passes by itself (election, shutdown, overload).
RESUMABLE = frozenset({
    6, 7, 43, 50, 63, 64, 89, 91, 112, 133, 150, 189, 202, 211, 234, 237, 262, 317, 358, 384, 462, 9001, 10058,
    10107, 11600, 11602, 13388, 13435, 13436,
})  # fmt: skip
RESUMABLE_LABEL = "ResumableChangeStreamError"


def meaning(error: Exception, *, namespace: str) -> StreamtrainError | None:
    """The error that ends the source on `namespace`, None when it should try again from its position."""
    if isinstance(error, StreamtrainError):
        return error
    if isinstance(error, ConfigurationError):
        return ConfigError(f"MongoDB cannot be used for {namespace}: {error}", hint="correct the source's uri")
    if not isinstance(error, OperationFailure):
        return None  # the network, an election, a server that does not answer
    code = error.code
    if code in AUTHENTICATION_FAILED:
        return AuthenticationError(
            f"MongoDB refuses the credentials for {namespace}: {text(error)}",
            hint="check user, password and authSource in the source's uri",
        )
    if code == UNAUTHORIZED:
        return PermissionMissingError(
            f"MongoDB does not allow this user to follow {namespace}: {text(error)}",
            hint=f"grant the actions find and changeStream on {namespace} (the role read has both)",
        )
    if error.has_error_label(RESUMABLE_LABEL) or code in RESUMABLE or code is None:
        return None
    return _final(code, namespace, text(error))


def is_known(error: Exception) -> bool:
    """Whether trying again is what the error calls for: an unknown one is tried a few times only."""
    return not isinstance(error, OperationFailure) or error.code in RESUMABLE or error.code is None


def _final(code: int, namespace: str, said: str) -> StreamtrainError | None:
    if code in HISTORY_LOST:
        return HistoryLostError(
            f"MongoDB no longer has the changes of {namespace} from the saved position on (error {code}): {said}",
            hint="changes were lost; make the oplog larger (replSetResizeOplog), and give the source a new name "
            "to start afresh from now",
        )
    if code == INVALID_RESUME_TOKEN:
        return InvalidatedError(
            f"the saved position of {namespace} is from before it was dropped or renamed (error {code}): {said}",
            hint="give the source a new name to start afresh from now",
        )
    if code in BROKEN_TOKEN:
        return SourceError(
            f"MongoDB does not understand the saved position of {namespace} (error {code}): {said}",
            hint="was the server downgraded? give the source a new name to start afresh from now",
        )
    if code == NOT_A_REPLICA_SET:
        return MongoError(
            f"the MongoDB of {namespace} is a standalone server: change streams need a replica set",
            hint=MAKE_REPLICA_SET,
        )
    if code in IMPOSSIBLE_NAMESPACE:
        return MongoError(
            f"{namespace} has no change stream (error {code}): {said}",
            hint="follow a collection: not a view, and none in admin, local or config",
        )
    if code in UNKNOWN_OPTION:
        return MongoError(
            f"this MongoDB is too old for how {namespace} is followed (error {code}): {said}",
            hint="full_document: auto works with every server",
        )
    if code == EVENT_TOO_LARGE:
        return SourceError(
            f"a change of {namespace} does not fit into an event of 16 MB: {said}",
            hint="full_document: whenAvailable and smaller documents make smaller events",
        )
    if code == NO_POST_IMAGE:
        return SourceError(
            f"a post-image of {namespace} has expired or was never recorded: {said}",
            hint="full_document: whenAvailable or auto goes on without it",
        )
    return None
