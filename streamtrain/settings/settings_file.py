"""Loads the settings: flags > environment > secrets directories > file > defaults. It reports all problems at
once, each at its `file:line:column`, and never shows a secret."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError

from streamtrain.config import WRITTEN, Settings
from streamtrain.errors import ConfigError, SettingsError
from streamtrain.masking import MASK, Mask, secrets_of
from streamtrain.settings import yaml_file
from streamtrain.settings.yaml_file import Document, Place

ENV_PREFIX = "STREAMTRAIN__"
FILE_SUFFIX = "_file"
DEFAULT_PATHS = ("streamtrain.yaml", "/etc/streamtrain/streamtrain.yaml")
CONTAINER_SECRETS = "/run/secrets"
_SECRET_WORD = re.compile(r"pass|secret|token|credential|uri|key$", re.IGNORECASE)
_SECRET_LINE = re.compile(r"((?:pass\w*|secret\w*|token\w*|uri)[\"']?\s*[:=]\s*)[^\s,}]+", re.IGNORECASE)
_MAX_SECRET_BYTES = 64 * 1024

_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    path: Path
    mask: Mask
    flags: tuple[str, ...] = ()


def find(path: str | None) -> Path:
    """The settings file: the one named, else $STREAMTRAIN_CONFIG, else the first of `DEFAULT_PATHS` there is."""
    named = path or os.environ.get("STREAMTRAIN_CONFIG")
    if named:
        return Path(named)
    for candidate in DEFAULT_PATHS:
        if Path(candidate).exists():
            return Path(candidate)
    raise ConfigError(
        f"no settings file: neither {' nor '.join(DEFAULT_PATHS)} exists",
        hint="name one with --config, or see the docs for an example",
    )


def load(path: Path, *, flags: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Loaded:
    """Raises SettingsError with every problem found. flags: `a.b.c=value`, as given to `--set`."""
    loading = _Loading(path, _read(path), environ)
    loading.apply_secret_files()
    loading.apply_secrets_directories()
    loading.apply_environment()
    loading.apply_flags(flags)
    settings = loading.validate()
    return Loaded(settings, path, Mask(secrets_of(settings)), tuple(flags))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}", hint="save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="name the settings file with --config") from None


class _Loading:
    """One load: the values so far, where each came from, and the problems."""

    def __init__(self, path: Path, text: str, environ: Mapping[str, str]) -> None:
        self._path = path
        self._lines = text.splitlines()
        self._environ = environ
        self._problems: list[tuple[int, int, str, str]] = []  # line, column, place, message
        self._origins: dict[_Path, str] = {}  # of values that do not come from the file
        self._document = yaml_file.parse(text)
        self._values: dict[str, Any] = self._document.value
        for problem in self._document.problems:
            self._at(problem.place, problem.message)
        self._stop_if_unreadable()

    def _stop_if_unreadable(self) -> None:
        if not self._problems and self._document.value is None:
            self._at(Place(1, 1), "the file is empty")
        elif not self._problems and not isinstance(self._document.value, dict):
            self._at(Place(1, 1), "the file must be a mapping with the sections kafka, sources and jobs")
        self._raise()

    # ----------------------------------------------------------------- sources of values

    def apply_secret_files(self) -> None:
        """`password_file: name` becomes `password`: the file's content without its last newline."""
        self._replace_secret_files(self._values, (), Settings)

    def _replace_secret_files(self, values: Any, path: _Path, model: type[BaseModel] | None) -> None:
        if isinstance(values, list):
            for at, item in enumerate(values):
                self._replace_secret_files(item, (*path, at), model)
        elif isinstance(values, dict) and model is not None:
            for key in list(values):
                name = key.removesuffix(FILE_SUFFIX)
                if key != name and key not in model.model_fields and name in _secret_fields(model):
                    self._read_secret(values, path, key, name)
                else:
                    self._replace_secret_files(values[key], (*path, key), _model_of(model, key))

    def _read_secret(self, values: dict[str, Any], path: _Path, key: str, name: str) -> None:
        named = values.pop(key)
        place = self._document.values.get((*path, key), Place(1, 1))
        if name in values:
            self._at(place, f"both {name!r} and {key!r} are given")
        elif not isinstance(named, str) or not named:
            self._at(place, f"{key!r} must be the name of a file")
        else:
            folders = [*self._secret_folders(), self._path.parent]
            found = next((file for folder in folders if (file := folder / named).is_file()), None)
            if found is None:
                looked = ", ".join(str(folder) for folder in folders)
                self._at(place, f"there is no file {named!r} (looked in {looked})")
            elif (content := self._content(found, place)) is not None:
                values[name] = content
                self._origins[(*path, name)] = str(found)

    def _content(self, file: Path, place: Place | None) -> str | None:
        try:
            if file.stat().st_size > _MAX_SECRET_BYTES:
                raise OSError(0, f"larger than {_MAX_SECRET_BYTES} bytes")
            return file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            if place is None:
                self._elsewhere(str(file), reason or "cannot be read")
            else:
                self._at(place, f"{file}: {reason}")
            return None

    def _secret_folders(self) -> list[Path]:
        named = [self._environ.get("CREDENTIALS_DIRECTORY", ""), CONTAINER_SECRETS]
        return [Path(folder) for folder in named if folder and Path(folder).is_dir()]

    def apply_secrets_directories(self) -> None:
        """Files named like the environment's variables, such as `streamtrain__kafka__security__password`."""
        for folder in reversed(self._secret_folders()):
            for file in sorted(folder.iterdir()):
                if file.is_file() and file.name.upper().startswith(ENV_PREFIX):
                    content = self._content(file, None)
                    if content is not None:
                        self._set(file.name[len(ENV_PREFIX) :].split("__"), content, str(file))

    def apply_environment(self) -> None:
        for variable in sorted(self._environ):
            if variable.startswith(ENV_PREFIX):
                self._set(variable[len(ENV_PREFIX) :].split("__"), self._environ[variable], variable)

    def apply_flags(self, flags: Iterable[str]) -> None:
        for flag in flags:
            path, equals, value = flag.partition("=")
            if not equals or not path:
                self._elsewhere("--set", "must be written a.b.c=value")
            else:
                self._set(path.split("."), value, f"--set {path}")

    def _set(self, names: Sequence[str], text: str, origin: str) -> None:
        """Puts a value at a path whose parts may be in any case; a list's item is named by place or by `name`."""
        at: Any = self._values
        model: type[BaseModel] | None = Settings
        path: list[str | int] = []
        for depth, name in enumerate(names):
            last = depth == len(names) - 1
            if isinstance(at, list):
                index = _item(at, name)
                if index is None:
                    self._elsewhere(origin, f"there is no item {name.lower()!r} in {_dotted(path)}")
                    return
                path.append(index)
                if last:
                    at[index] = _structured(text)
                else:
                    at = at[index]
                continue
            key = name if model is None else name.lower()
            if not isinstance(at, dict) or not key:
                self._elsewhere(origin, f"{_dotted(path) or 'it'} holds no {key!r}")
                return
            path.append(key)
            if last:
                secret = model is not None and key in _secret_fields(model)
                at[key] = text if secret else _structured(text)
            else:
                model = None if model is None else _model_of(model, key)
                if at.get(key) is None:
                    at[key] = {}
                at = at[key]
        self._origins[tuple(path)] = origin

    # ----------------------------------------------------------------- validation and problems

    def validate(self) -> Settings:
        settings = None
        try:
            settings = Settings.model_validate(self._values, context={WRITTEN: True})
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                self._explain(detail["loc"], detail["type"], detail["msg"], detail.get("ctx", {}))
        self._raise()
        assert settings is not None
        return settings

    def _explain(self, loc: _Path, kind: str, message: str, context: Mapping[str, Any]) -> None:
        path = self._known_prefix(loc)
        if kind == "too_short" and self._document.values.get((*path, 0)) is not None:
            return  # pydantic counts the valid items only; what is wrong with them is said at their own places
        if kind == "extra_forbidden":
            message = f"unknown key {loc[-1]!r}{self._suggestion(loc)}"
            self._place(loc, message, self._document.keys.get(loc))
            return
        if kind == "missing":
            message = f"the key {loc[-1]!r} is missing"
        elif kind == "value_error" and "error" in context:
            message = str(context["error"])
        elif kind == "string_pattern_mismatch" and loc[-1] in {"name", "source"}:
            message = "a name is lower-case letters, digits and inner hyphens, at most 63"
        elif kind == "too_short":
            message = "must have at least one item"
        elif kind in {"tuple_type", "list_type"}:
            message = "must be a list"
        elif kind in {"model_type", "dict_type"}:
            message = "must be a mapping"
        else:
            message = message.replace("Input should", "should")
        self._place(path, message, self._document.values.get(path))

    def _place(self, path: _Path, message: str, place: Place | None) -> None:
        origin = next((self._origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self._origins), None)
        if origin is not None:
            self._elsewhere(origin, f"{_dotted(path)}: {message}")
        else:
            known = place or self._document.values.get(self._known_prefix(path), Place(1, 1))
            name = next((part for part in reversed(path) if isinstance(part, str)), None)
            about_a_key = "key " in message and "'" in message
            self._at(known, message if name is None or about_a_key else f"{name}: {message}")

    def _known_prefix(self, loc: _Path) -> _Path:
        """pydantic's location without what the file does not have: a missing key, a union's member."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self._document.values or loc[:length] in self._origins:
                return loc[:length]
        return ()

    def _suggestion(self, loc: _Path) -> str:
        model: type[BaseModel] | None = Settings
        for part in loc[:-1]:
            if isinstance(part, str) and model is not None:
                model = _model_of(model, part)
        if model is None:
            return ""
        secret = {f"{name}{FILE_SUFFIX}" for name in _secret_fields(model)}
        choices = sorted({*model.model_fields, *secret})
        close = difflib.get_close_matches(str(loc[-1]).lower(), choices, n=1, cutoff=0.6)
        return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(model.model_fields)}"

    def _at(self, place: Place, message: str) -> None:
        self._problems.append(
            (place.line, place.column, f"{self._path}:{place.line}:{place.column}", message + self._excerpt(place))
        )

    def _elsewhere(self, origin: str, message: str) -> None:
        self._problems.append((0, len(self._problems), origin, message))

    def _excerpt(self, place: Place) -> str:
        """The offending line under the message, a mark under the offence; secrets are masked."""
        if not 0 < place.line <= len(self._lines):
            return ""
        line = self._lines[place.line - 1]
        begin, end = place.column - 1, place.column - 1 + place.width
        hidden = [s for s in self._document.scalars.get(place.line, []) if _looks_secret(s[2])]
        for first, last, _path in sorted(hidden, reverse=True):
            last = len(line) if last is None else last
            line = line[:first] + MASK + line[last:]
            shift = len(MASK) - (last - first)
            if first < begin:
                begin, end = begin + shift, end + shift
            elif first < end:
                end += shift
        if self._document.value is None:
            line = _SECRET_LINE.sub(rf"\1{MASK}", line)
            end = begin + 1
        line = Mask().text(line).replace("\t", " ")
        number = f"{place.line:>5} | "
        return f"\n{number}{line}\n{' ' * (len(number) - 2)}| {' ' * begin}{'^' * max(1, min(end, len(line)) - begin)}"

    def _raise(self) -> None:
        if not self._problems:
            return
        mask = Mask(_written_secrets(self._values, ()))
        found = [(place, mask.text(message)) for _line, _column, place, message in sorted(self._problems)]
        raise SettingsError(
            "\n".join(f"{place}: {message}" for place, message in found),
            problems=[{"place": place, "message": message.split("\n")[0]} for place, message in found],
        )


def _written_secrets(values: Any, path: _Path) -> Iterator[str]:
    """Texts at places that hold secrets, valid or not."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _written_secrets(value, (*path, key))
    elif isinstance(values, list):
        for at, value in enumerate(values):
            yield from _written_secrets(value, (*path, at))
    elif isinstance(values, str) and _looks_secret(path):
        yield values


def _looks_secret(path: _Path) -> bool:
    """Whether the value at a path must not be shown. Also of a misspelt key: `pasword` holds a password."""
    model: type[BaseModel] | None = Settings
    for part in path:
        if not isinstance(part, str):
            continue
        if part.endswith(FILE_SUFFIX):
            return False
        secret = _secret_fields(model) if model is not None else frozenset()
        unknown = model is None or part not in model.model_fields
        if part in secret or (unknown and (_SECRET_WORD.search(part) or difflib.get_close_matches(part, secret))):
            return True
        model = None if model is None else _model_of(model, part)
    return False


def _secret_fields(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(name for name, info in model.model_fields.items() if SecretStr in _types(info.annotation))


def _model_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The section that a key holds, or that the items of its list are."""
    info = model.model_fields.get(key)
    found = [t for t in _types(info.annotation) if isinstance(t, type) and issubclass(t, BaseModel)] if info else []
    return found[0] if found else None


def _types(annotation: Any) -> set[Any]:
    """An annotation and everything it is made of."""
    inner = {t for argument in get_args(annotation) for t in _types(argument)} if get_args(annotation) else set()
    return {annotation, *inner} if getattr(annotation, "__hash__", None) else inner


def _item(items: list[Any], name: str) -> int | None:
    """A list's item by its place, or by its `name` (in an environment variable `-` is written `_`)."""
    if name.isdecimal():
        return int(name) if int(name) < len(items) else None
    wanted = name.lower().replace("_", "-")
    named = [at for at, item in enumerate(items) if isinstance(item, dict) and item.get("name") == wanted]
    return named[0] if named else None


def _structured(text: str) -> Any:
    """A list or a mapping is written as YAML; everything else stays a text, which pydantic converts."""
    if text.lstrip().startswith(("[", "{")):
        document: Document = yaml_file.parse(text)
        if not document.problems:
            return document.value
    return None if text == "null" else text


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))
