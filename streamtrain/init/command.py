"""`streamtrain init`: looks, suggests, writes the settings file. A URI that holds a password goes to a file of its
own that only its owner can read; the settings name that file."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from streamtrain import config
from streamtrain.clock import Clock
from streamtrain.errors import ConfigError, SettingsError, StreamtrainError, UsageError
from streamtrain.init.collection import look
from streamtrain.init.document import document
from streamtrain.init.suggestion import Suggestion, suggest
from streamtrain.init.text import render
from streamtrain.masking import Mask
from streamtrain.settings import settings_file

_URI_SUFFIX = ".uri"
_READABLE = 0o644
_MAX_SAMPLE = 100_000
_LONGEST_WATCH_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """uri or uri_file: one of them. job: its name; None for one of the collection and the label."""

    uri: str | None
    uri_file: str | None
    database: str
    collection: str
    job: str | None
    label: str | None
    sample: int
    watch: str
    kafka: str
    output: str
    force: bool


@dataclass(frozen=True, slots=True)
class Written:
    """uri_file: the file that was written for the URI, if one was."""

    suggestion: Suggestion
    file: Path
    uri_file: Path | None

    def document(self) -> Mapping[str, Any]:
        uri_file = None if self.uri_file is None else str(self.uri_file)
        return document(self.suggestion, file=str(self.file), uri_file=uri_file)


def init(options: Options, *, clock: Clock, say: Callable[[str], None]) -> Written:
    """say: told what is being done. Raises UsageError, ConfigError or DependencyError; then nothing was written."""
    uri = _uri(options)
    output = Path(options.output)
    secret = options.uri_file is None and Mask.of([uri]).text(uri) != uri
    uri_file = output.with_suffix(_URI_SUFFIX) if secret else None
    for file in (output, uri_file):
        if file is not None and file.exists() and not options.force:
            raise UsageError(f"{file} exists already", hint="--force replaces it, --output FILE writes another one")
    if not output.parent.is_dir():
        raise UsageError(f"--output {output}: there is no folder {output.parent}")
    _check(options, uri)
    seen = look(
        uri=uri,
        database=options.database,
        collection=options.collection,
        sample=options.sample,
        watch_s=_watch_s(options.watch),
        clock=clock,
        say=say,
    )
    suggestion = suggest(seen, label=options.label, job=options.job)
    named = _named(options.uri_file, output) if options.uri_file else uri_file.name if uri_file else None
    text = render(suggestion, kafka=options.kafka, uri=None if named else uri, uri_file=named)
    if uri_file is not None:
        _write(uri_file, f"{uri}\n")
    try:
        _write(output, text, settings=True)
    except StreamtrainError:
        if uri_file is not None:
            uri_file.unlink(missing_ok=True)
        raise
    return Written(suggestion, output, uri_file)


def _uri(options: Options) -> str:
    if (options.uri is None) == (options.uri_file is None):
        raise UsageError("give --uri or --uri-file", hint="--uri-file keeps a password off the command line")
    if options.uri_file is None:
        return str(options.uri)
    try:
        return Path(options.uri_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"--uri-file {options.uri_file}: {reason}") from None


def _check(options: Options, uri: str) -> None:
    """What the settings will hold, before anybody waits for a server. Raises UsageError."""
    checks: tuple[tuple[str, Callable[[], object]], ...] = (
        (
            "--uri, --database or --collection",
            lambda: config.Source(
                name="source", uri=SecretStr(uri), database=options.database, collection=options.collection
            ),
        ),
        ("--kafka", lambda: config.Kafka(bootstrap_servers=options.kafka)),
    )
    for what, check in checks:
        try:
            check()
        except ValidationError as error:
            told = error.errors(include_url=False, include_input=False)[0]
            raise UsageError(f"{what}: {told['msg'].removeprefix('Value error, ')}") from None
    if options.job is not None and not re.fullmatch(config.NAME_PATTERN, options.job):
        raise UsageError(f"--job {options.job}: a name is lower-case letters, digits and inner hyphens, at most 63")
    if not 1 <= options.sample <= _MAX_SAMPLE:
        raise UsageError(f"--sample {options.sample}: between 1 and {_MAX_SAMPLE:,} documents")


def _watch_s(watch: str) -> float:
    try:
        seconds = float(config.parse_duration(watch))
    except ValueError as error:
        raise UsageError(f"--watch: {error}") from None
    if seconds > _LONGEST_WATCH_S:
        raise UsageError(f"--watch {watch}: an hour at most")
    return seconds


def _named(uri_file: str, output: Path) -> str:
    """As the settings can name it: they look beside themselves first."""
    path = Path(uri_file).resolve()
    return path.name if path.parent == output.parent.resolve() else str(path)


def _write(file: Path, text: str, *, settings: bool = False) -> None:
    """Whole or not at all. settings: it must load, and others may read it; else it is a secret of its owner's."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as written:
                written.write(text)
            if settings:
                _load(temporary)
                temporary.chmod(_READABLE)
            temporary.replace(file)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}", hint="--output writes to another place") from None


def _load(file: Path) -> None:
    try:
        settings_file.load(file, environ={})
    except SettingsError as error:
        raise StreamtrainError(f"internal: the suggestion is not valid: {error.message}") from None
