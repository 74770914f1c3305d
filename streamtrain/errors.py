"""Every error that streamtrain raises on purpose, and the exit code that each ends the process with.

StreamtrainError                 70  internal: should not happen, report it
├── UsageError                    2  the command line asks for something that cannot be
├── ConfigError                  78  the configuration is wrong; says file:line:column where it can
│   ├── SettingsError            78  problems of the settings file, all at once, each with its place
│   ├── FilterError              78  a job's filter is no query that can be answered
│   └── ModelError               78  the user's model function raises or does not return a keras.Model
├── DependencyError              69  something outside is missing, unreachable or set up in a way that cannot work
│   ├── MongoError               69  MongoDB: unreachable, not a replica set, a missing collection
│   ├── KafkaError               69  Kafka: unreachable, a topic with another shape, a missing ACL
│   ├── AuthenticationError      69  wrong credentials: never retried
│   ├── PermissionMissingError   69  the credentials are right but a privilege is missing
│   └── PortInUseError           69  an address to listen on is taken
├── SourceError                  70  the change stream cannot go on as it is
│   ├── HistoryLostError         70  the position is older than what the server keeps
│   ├── InvalidatedError         70  the watched collection was dropped or renamed
│   └── ForeignPositionError     78  the stored position belongs to another cluster or pipeline
├── EnvelopeError                70  a record that is not streamtrain's, or was written by a newer version
├── FencedError                  70  a newer daemon has taken over (lease epoch or Kafka producer epoch)
├── SupersededError              70  another lineage has taken this one's place
├── ContinuityError              70  a record is missing or repeated inside a partition (header `n`)
├── OffsetError                  70  a partition's log starts after, or ends before, what a job has learned
├── ArtifactError                70  a checkpoint artifact is missing or does not match its checksum
└── WorkerError                  70  a worker failed, or did not answer within its deadline
    └── WorkerFailedError        70  a worker said itself what it failed with
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_DEPENDENCY = 69
EXIT_INTERNAL = 70
EXIT_CONFIG = 78
EXIT_INTERRUPTED = 130


class StreamtrainError(Exception):
    """Base of all errors; `hint` says what to do about it, and is shown under the message.

    fatal: a job that meets it would meet it again in its next generation: somebody must change something.
    """

    exit_code = EXIT_INTERNAL
    fatal = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(StreamtrainError):
    exit_code = EXIT_USAGE


class ConfigError(StreamtrainError):
    exit_code = EXIT_CONFIG
    fatal = True


class SettingsError(ConfigError):
    """problems: one mapping each of `place` (file:line:column, or where else the value came from) and `message`."""

    def __init__(self, message: str, *, problems: Sequence[Mapping[str, str]], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class FilterError(ConfigError):
    """place: of the mistake inside the filter, as keys and list places."""

    def __init__(self, place: tuple[str | int, ...], message: str) -> None:
        super().__init__(f"filter: {'.'.join(map(str, place))}: {message}" if place else f"filter: {message}")
        self.place = place
        self.problem = message


class ModelError(ConfigError):
    """The model cannot be built, or does not fit its job."""


class StateMismatchError(ModelError):
    """The checkpoint belongs to another model than the one that is configured. A retrain begins anew."""


class TrainingError(ModelError):
    """The model was built and had begun to learn: it diverged, or failed on a row. A retrain may help."""


class DependencyError(StreamtrainError):
    exit_code = EXIT_DEPENDENCY


class MongoError(DependencyError):
    pass


class KafkaError(DependencyError):
    pass


class AuthenticationError(DependencyError):
    fatal = True


class PermissionMissingError(DependencyError):
    pass


class PortInUseError(DependencyError):
    pass


class SourceError(StreamtrainError):
    pass


class HistoryLostError(SourceError):
    pass


class InvalidatedError(SourceError):
    pass


class ForeignPositionError(SourceError):
    exit_code = EXIT_CONFIG


class EnvelopeError(StreamtrainError):
    pass


class FencedError(StreamtrainError):
    pass


class SupersededError(StreamtrainError):
    pass


class ContinuityError(StreamtrainError):
    pass


class OffsetError(StreamtrainError):
    fatal = True


class ArtifactError(StreamtrainError):
    fatal = True


class WorkerError(StreamtrainError):
    pass


class WorkerFailedError(WorkerError):
    """kind: the class name of the worker's error, and whether that was fatal."""

    def __init__(self, message: str, *, hint: str = "", kind: str, fatal: bool) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.fatal = fatal


class RefusedRowError(WorkerError):
    """The model cannot take some row: the next generation looks at each before it learns it."""


class ReplicasDifferError(WorkerError):
    """What the workers hold is not one model any more: only a manifest is to be trusted."""
