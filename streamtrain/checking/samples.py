"""Documents to try a model on: from a collection, or from a file. Raw BSON, as the stream would bring them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bson
from bson.json_util import loads
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from streamtrain import config, mongo_failure
from streamtrain.errors import DependencyError, UsageError

CONNECT_TIMEOUT_MS = 10_000
_RAW: bson.CodecOptions[Any] = bson.CodecOptions(document_class=RawBSONDocument)
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")


def from_collection(source: config.Source, count: int) -> list[bytes]:
    """Up to `count` documents at random; the newest where the server cannot draw. Raises DependencyError."""
    client: MongoClient[Any] = MongoClient(
        source.uri.get_secret_value(), serverSelectionTimeoutMS=CONNECT_TIMEOUT_MS, appname="streamtrain"
    )
    try:
        collection = client[source.database].get_collection(source.collection, codec_options=_RAW)
        try:
            found = list(collection.aggregate([{"$sample": {"size": count}}]))
        except OperationFailure as error:
            if error.code in mongo_failure.AUTHENTICATION_FAILED or error.code == mongo_failure.UNAUTHORIZED:
                raise
            found = list(collection.find().sort("$natural", -1).limit(count))
    except PyMongoError as error:
        raise mongo_failure.explain(error, doing=f"reading {source.database}.{source.collection}") from error
    finally:
        client.close()
    if not found:
        raise DependencyError(
            f"{source.database}.{source.collection} holds no document to try the model on",
            hint="write some, or give a file of them: --documents FILE",
        )
    return [bytes(document.raw) for document in found]


def from_file(path: Path, count: int) -> list[bytes]:
    """The first `count` documents of a file: JSON, one document a line (MongoDB's extended JSON), or BSON, as
    mongodump writes it. Raises UsageError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    found = _json_lines(path, content, count) if path.suffix in _JSON_SUFFIXES else _bson(path, content, count)
    if not found:
        raise UsageError(f"{path} holds no document")
    return found


def _json_lines(path: Path, content: bytes, count: int) -> list[bytes]:
    found: list[bytes] = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(bson.encode(loads(line.decode())))
        except Exception as error:
            raise UsageError(
                f"{path}:{number}: no document: {error}", hint='one JSON object a line, such as {"x": 1.5, "y": 2}'
            ) from error
        if len(found) == count:
            break
    return found


def _bson(path: Path, content: bytes, count: int) -> list[bytes]:
    try:
        found = bson.decode_all(content, _RAW)
    except bson.errors.InvalidBSON as error:
        hint = "BSON as mongodump writes it; JSON lines are read from files that end in .json, .jsonl or .ndjson"
        raise UsageError(f"{path} is no BSON file: {error}", hint=hint) from error
    return [bytes(document.raw) for document in found[:count]]
