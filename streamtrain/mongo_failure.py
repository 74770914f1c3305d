"""What an error of MongoDB says, and what it means to an operator where streamtrain keeps its own state."""

from __future__ import annotations

from pymongo.errors import OperationFailure, PyMongoError

from streamtrain.errors import AuthenticationError, DependencyError, MongoError, PermissionMissingError

AUTHENTICATION_FAILED = frozenset({11, 18, 8000})  # 11: no such user, 8000: Atlas
UNAUTHORIZED = 13
_MOST_CHARACTERS = 300
_APPENDED = (", full error:", " (configured timeouts:", ", Topology Description:")


def explain(error: PyMongoError, *, doing: str) -> DependencyError:
    """The error to raise in place of `error`, which came up while `doing`."""
    if isinstance(error, OperationFailure) and error.code in AUTHENTICATION_FAILED:
        return AuthenticationError(
            f"MongoDB refuses the credentials while {doing}: {text(error)}",
            hint="check user, password and authSource in state.uri",
        )
    if isinstance(error, OperationFailure) and error.code == UNAUTHORIZED:
        return PermissionMissingError(
            f"MongoDB does not allow this user {doing}: {text(error)}",
            hint="grant the role readWrite on the database state.database",
        )
    return MongoError(
        f"MongoDB failed while {doing}: {text(error)}",
        hint="is the cluster of state.uri up, with a primary that can be reached?",
    )


def text(error: BaseException) -> str:
    """What an error says, on one line, without what the driver appends: the whole reply, its own settings, and what
    it knows of every server."""
    said = str(error)
    for appended in _APPENDED:
        said = said.split(appended, 1)[0]
    return " ".join(said.split())[:_MOST_CHARACTERS]
