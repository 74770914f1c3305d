"""Settings: the user's contract (DESIGN 8). Sections are frozen; unknown keys are errors."""

from streamtrain.config.deployment import Admin, Kafka, Log, Security, Settings, Source, State
from streamtrain.config.job import (
    CheckpointSpec,
    FeatureSpec,
    Job,
    LabelSpec,
    RoundSpec,
    WeightSpec,
    WindowSpec,
    WorkersSpec,
)
from streamtrain.config.values import NAME_PATTERN, WRITTEN, Section, parse_duration, parse_size, seconds, size_in_bytes

__all__ = [
    "NAME_PATTERN",
    "WRITTEN",
    "Admin",
    "CheckpointSpec",
    "FeatureSpec",
    "Job",
    "Kafka",
    "LabelSpec",
    "Log",
    "RoundSpec",
    "Section",
    "Security",
    "Settings",
    "Source",
    "State",
    "WeightSpec",
    "WindowSpec",
    "WorkersSpec",
    "parse_duration",
    "parse_size",
    "seconds",
    "size_in_bytes",
]
