"""What an error of MongoDB means to an operator where streamtrain keeps its own state, and what to do about it."""

from __future__ import annotations

from pymongo.errors import OperationFailure, PyMongoError

from streamtrain.errors import AuthenticationError, DependencyError, MongoError, PermissionMissingError

_AUTHENTICATION_FAILED = frozenset({11, 18, 8000})  # 11: no such user, 8000: Atlas
_UNAUTHORIZED = 13
_MAX_TEXT = 300


def explain(error: PyMongoError, *, doing: str) -> DependencyError:
    """The error to raise in place of `error`, which came up while `doing`."""
    # The driver appends the whole reply, and of every server what it knows, to the first words.
    text = str(error).split(", full error:", 1)[0].split(", Topology Description:", 1)[0].replace("\n", " ")[:_MAX_TEXT]
    if isinstance(error, OperationFailure) and error.code in _AUTHENTICATION_FAILED:
        return AuthenticationError(
            f"MongoDB refuses the credentials while {doing}: {text}",
            hint="check user, password and authSource in state.uri",
        )
    if isinstance(error, OperationFailure) and error.code == _UNAUTHORIZED:
        return PermissionMissingError(
            f"MongoDB does not allow this user {doing}: {text}",
            hint="grant the role readWrite on the database state.database",
        )
    return MongoError(
        f"MongoDB failed while {doing}: {text}",
        hint="is the cluster of state.uri up, with a primary that can be reached?",
    )
