"""GridFS as the artifact store uses it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from gridfs import GridFSBucket, NoFile
from pymongo import MongoClient

from streamtrain.sandbox.mongo_server import ThreadedMongo
from tests.real_mongo import RealMongo


def test_files_are_stored_found_read_and_deleted(each_mongo: ThreadedMongo | RealMongo) -> None:
    data = os.urandom(1_000_003)
    with MongoClient[dict[str, Any]](each_mongo.uri) as client:
        bucket = GridFSBucket(client.state, "checkpoints")
        identity = bucket.upload_from_stream("job/g1/state.npz", data, metadata={"sha256": "x"})
        bucket.upload_from_stream("job/g2/state.npz", b"")
        with bucket.open_download_stream_by_name("job/g1/state.npz") as stream:
            assert stream.metadata == {"sha256": "x"}
            assert stream.read() == data
        found = bucket.find({"filename": {"$regex": "^job/"}}).sort("filename", 1)
        assert [file.filename for file in found] == ["job/g1/state.npz", "job/g2/state.npz"]
        bucket.delete(identity)
        with pytest.raises(NoFile):
            bucket.open_download_stream(identity)
        assert client.state["checkpoints.chunks"].count_documents({"files_id": identity}) == 0
