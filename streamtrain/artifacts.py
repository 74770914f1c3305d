"""Where checkpoints' files live: GridFS or a directory. Files are immutable and named; what is read back is
always checked against its sha256."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import gridfs
import pymongo
from gridfs.errors import CorruptGridFile, NoFile
from pymongo.errors import PyMongoError

from streamtrain.errors import ArtifactError, ConfigError, DependencyError
from streamtrain.mongo_failure import explain
from streamtrain.types import ArtifactRef

BUCKET = "checkpoints"
_READ_BYTES = 1024 * 1024
_TIMEOUT_MS = 30_000


class ArtifactStore(Protocol):
    """Blocking; an asyncio caller goes through `asyncio.to_thread`. A store that cannot be reached or written is a
    DependencyError, which may pass; a file that is missing or damaged is an ArtifactError, which will not."""

    def put(self, name: str, content: Path | bytes) -> ArtifactRef:
        """Stores a file under a name of the form `a/b/c`. Putting the same content again changes nothing; other
        content under the same name replaces it."""

    def get(self, ref: ArtifactRef, path: Path) -> None:
        """Writes the file to `path`, whole or not at all."""

    def delete(self, name: str) -> None:
        """Removes a file; one that is not there is fine."""

    def list(self, prefix: str) -> Sequence[str]:
        """Names that begin with `prefix`, in order; also of files whose writing broke off."""

    def close(self) -> None: ...


def open_store(options: Mapping[str, Any]) -> ArtifactStore:
    """options: {kind: gridfs, uri, database} or {kind: directory, path}."""
    if options.get("kind") == "gridfs":
        return GridFSStore(uri=str(options["uri"]), database=str(options["database"]))
    if options.get("kind") == "directory":
        return DirectoryStore(path=Path(str(options["path"])))
    raise ConfigError(f"unknown kind of artifact store: {options.get('kind')!r}", hint="use gridfs or directory")


class GridFSStore:
    """Files in GridFS, bucket `checkpoints`, majority-acknowledged; a file's `_id` is its name."""

    def __init__(self, *, uri: str, database: str) -> None:
        self._client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(
            uri,
            w="majority",
            readConcernLevel="majority",
            serverSelectionTimeoutMS=_TIMEOUT_MS,
            socketTimeoutMS=_TIMEOUT_MS,
            appname="streamtrain",
        )
        self._files = self._client[database][f"{BUCKET}.files"]
        self._chunks = self._client[database][f"{BUCKET}.chunks"]
        self._bucket = gridfs.GridFSBucket(self._client[database], bucket_name=BUCKET)

    def put(self, name: str, content: Path | bytes) -> ArtifactRef:
        ref = _reference(name, content)
        try:
            found = self._files.find_one({"_id": name})
            if found is not None and found.get("metadata", {}).get("sha256") == ref.sha256:
                return ref
            self.delete(name)  # also chunks of an upload that broke off
            metadata = {"sha256": ref.sha256}
            if isinstance(content, bytes):
                self._bucket.upload_from_stream_with_id(name, name, content, metadata=metadata)
            else:
                with content.open("rb") as stream:
                    self._bucket.upload_from_stream_with_id(name, name, stream, metadata=metadata)
        except PyMongoError as error:
            raise explain(error, doing=f"storing the artifact {name}") from error
        return ref

    def get(self, ref: ArtifactRef, path: Path) -> None:
        with _Arriving(ref, path) as arriving:
            try:
                with self._bucket.open_download_stream(ref.name) as stream:
                    while chunk := stream.read(_READ_BYTES):
                        arriving.write(chunk)
            except NoFile as error:
                raise _missing(ref) from error
            except CorruptGridFile as error:
                raise _damaged(ref) from error
            except PyMongoError as error:
                raise explain(error, doing=f"reading the artifact {ref.name}") from error

    def delete(self, name: str) -> None:
        try:
            self._bucket.delete(name)
        except NoFile:
            pass
        except PyMongoError as error:
            raise explain(error, doing=f"deleting the artifact {name}") from error

    def list(self, prefix: str) -> Sequence[str]:
        try:
            within = {"$gte": prefix, "$lt": prefix + "\U0010ffff"}
            names = {str(found["_id"]) for found in self._files.find({"_id": within}, {"_id": 1})}
            # An upload that broke off has left chunks but no file: it is to be found, so that it can be deleted.
            first_chunks = self._chunks.find({"files_id": within, "n": 0}, {"files_id": 1})
            return sorted(names | {str(found["files_id"]) for found in first_chunks})
        except PyMongoError as error:
            raise explain(error, doing="listing artifacts") from error

    def close(self) -> None:
        self._client.close()


class DirectoryStore:
    """Files under a directory that every host of the deployment sees; renamed into place when complete."""

    def __init__(self, *, path: Path) -> None:
        self._root = path

    def put(self, name: str, content: Path | bytes) -> ArtifactRef:
        ref = _reference(name, content)
        target = self._path(name)
        try:
            if target.is_file() and _reference(name, target) == ref:
                return ref
            with _Arriving(ref, target) as arriving:
                if isinstance(content, bytes):
                    arriving.write(content)
                else:
                    with content.open("rb") as stream:
                        while chunk := stream.read(_READ_BYTES):
                            arriving.write(chunk)
        except OSError as error:
            raise DependencyError(
                f"artifact {name} could not be stored in {self._root}: {error.strerror}",
                hint="the directory of state.artifacts must be there for every worker, writable, with room",
            ) from error
        return ref

    def get(self, ref: ArtifactRef, path: Path) -> None:
        try:
            with self._path(ref.name).open("rb") as stream, _Arriving(ref, path) as arriving:
                while chunk := stream.read(_READ_BYTES):
                    arriving.write(chunk)
        except FileNotFoundError as error:
            if not self._holds_anything():
                raise DependencyError(
                    f"artifact {ref.name} could not be read: there is nothing in {self._root}",
                    hint="is the file system of state.artifacts mounted?",
                ) from error
            raise _missing(ref) from error
        except OSError as error:
            raise DependencyError(f"artifact {ref.name} could not be read: {error.strerror}") from error

    def _holds_anything(self) -> bool:
        return self._root.is_dir() and any(self._root.iterdir())

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
            for parent in path.parents:
                if parent == self._root or any(parent.iterdir()):
                    break
                parent.rmdir()
        except FileNotFoundError:
            pass  # its directory never was, or another process has removed it just now
        except OSError as error:
            raise DependencyError(f"artifact {name} could not be deleted: {error.strerror}") from error

    def list(self, prefix: str) -> Sequence[str]:
        # os.walk passes over a folder that goes away meanwhile: other jobs prune the same root.
        within = self._root.joinpath(*prefix.split("/")[:-1])
        paths = (Path(folder, file) for folder, _, files in os.walk(within) for file in files)
        names = (path.relative_to(self._root).as_posix() for path in paths if not path.name.startswith(_TEMPORARY))
        return sorted(name for name in names if name.startswith(prefix))

    def close(self) -> None:
        pass

    def _path(self, name: str) -> Path:
        parts = name.split("/")
        if any(part in {"", ".", ".."} or part.startswith(_TEMPORARY) for part in parts):
            raise ArtifactError(f"{name!r} is not a name of an artifact")
        return self._root.joinpath(*parts)


_TEMPORARY = ".arriving-"


class _Arriving:
    """A file that appears under its name only once it is complete, on disk and what its reference says."""

    def __init__(self, ref: ArtifactRef, path: Path) -> None:
        self._ref = ref
        self._path = path
        self._hash = hashlib.sha256()

    def __enter__(self) -> _Arriving:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._path.parent)
        self._temporary = Path(name)
        self._stream = os.fdopen(handle, "wb")
        return self

    def write(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._stream.write(chunk)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._stream.flush()
                os.fsync(self._stream.fileno())
                if self._hash.hexdigest() != self._ref.sha256:
                    raise _damaged(self._ref)
                self._temporary.replace(self._path)
        finally:
            self._stream.close()
            self._temporary.unlink(missing_ok=True)


def _reference(name: str, content: Path | bytes) -> ArtifactRef:
    digest, size = hashlib.sha256(), 0
    if isinstance(content, bytes):
        digest.update(content)
        size = len(content)
    else:
        with content.open("rb") as stream:
            while chunk := stream.read(_READ_BYTES):
                digest.update(chunk)
                size += len(chunk)
    return ArtifactRef(name=name, sha256=digest.hexdigest(), bytes=size)


def _damaged(ref: ArtifactRef) -> ArtifactError:
    return ArtifactError(
        f"artifact {ref.name} does not match its checksum",
        hint="its store has lost or changed data: restore the file, or retrain the job",
    )


def _missing(ref: ArtifactRef) -> ArtifactError:
    return ArtifactError(
        f"artifact {ref.name} is missing", hint="it was removed from the artifact store: retrain the job"
    )
