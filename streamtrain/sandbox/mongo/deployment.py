"""The commands about the server itself: the handshake, its health and what drivers ask before they begin."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from bson import DatetimeMS, Int64, ObjectId, Timestamp

from streamtrain.sandbox.mongo import raw
from streamtrain.sandbox.mongo.commands import Reply, Request
from streamtrain.sandbox.mongo.cursors import Cursors
from streamtrain.sandbox.mongo.engine import Engine
from streamtrain.sandbox.mongo.failure import CommandError

VERSION = "7.0.14"
WIRE_VERSION = 21
TERM = Int64(1)
_ACCEPTED = ("ping", "refreshSessions", "killSessions", "killAllSessions", "killOp", "fsync", "logout")


class DeploymentCommands:
    """`address` is how the server calls itself to drivers, `replica_set` None a standalone mongod."""

    def __init__(
        self, engine: Engine, cursors: Cursors, *, address: str, replica_set: str | None, mechanisms: list[str]
    ) -> None:
        self._engine, self._cursors, self._address, self._replica_set = engine, cursors, address, replica_set
        self._mechanisms = mechanisms
        self._started = engine.time()
        self.primary = True
        self.ttl_interval = 60
        """Seconds between the runs of the TTL monitor."""
        self.connections = 0
        self.election = ObjectId("7fffffff0000000000000001")

    def handlers(self) -> dict[str, Callable[[Request], Reply]]:
        def ok(_: Request) -> Reply:
            return {"ok": 1.0}

        return {
            **dict.fromkeys(("hello", "ismaster", "isMaster"), self.hello),
            **dict.fromkeys(("buildInfo", "buildinfo"), self.build_info),
            **dict.fromkeys(_ACCEPTED, ok),
            "getParameter": self.get_parameter,
            "setParameter": self.set_parameter,
            "replSetGetStatus": self.status,
            "replSetGetConfig": self.configuration,
            "replSetInitiate": self.initiate,
            "serverStatus": self.server_status,
            "hostInfo": self.host_info,
            "getCmdLineOpts": self.command_line,
            "startSession": self.start_session,
            "appendOplogNote": self.note,
            "getLog": self.log,
        }

    def _optime(self) -> dict[str, Any]:
        last = self._engine.oplog.last
        return {"ts": Timestamp(last >> 32, last & 0xFFFFFFFF), "t": TERM}

    def _date(self) -> DatetimeMS:
        return DatetimeMS((self._engine.oplog.last >> 32) * 1000)

    def hello(self, request: Request) -> Reply:
        """Without a topologyVersion, so that monitors poll and never wait."""
        primary = "isWritablePrimary" if request.name == "hello" else "ismaster"
        reply: dict[str, Any] = {"helloOk": True} if request.body.get("helloOk") else {}
        if self._mechanisms and "saslSupportedMechs" in request.body:
            reply["saslSupportedMechs"] = self._mechanisms
        if self._replica_set is not None:
            role = {primary: self.primary, "secondary": not self.primary}
            reply |= {"hosts": [self._address], "setName": self._replica_set, "setVersion": 1, **role}
            if self.primary:
                reply |= {"primary": self._address}
            reply |= {"me": self._address}
            if self.primary:
                reply |= {"electionId": self.election}
            last = {"opTime": self._optime(), "lastWriteDate": self._date()}
            reply["lastWrite"] = last | {"majorityOpTime": self._optime(), "majorityWriteDate": self._date()}
        else:
            reply[primary] = True
        return {
            **reply, "maxBsonObjectSize": 16777216, "maxMessageSizeBytes": 48000000, "maxWriteBatchSize": 100000,
            "localTime": DatetimeMS(self._engine.wall()), "logicalSessionTimeoutMinutes": 30,
            "connectionId": self.connections, "minWireVersion": 0, "maxWireVersion": WIRE_VERSION, "readOnly": False,
            "ok": 1.0,
        }  # fmt: skip

    def build_info(self, _: Request) -> Reply:
        return {
            "version": VERSION, "gitVersion": "sandbox", "modules": [], "allocator": "system",
            "javascriptEngine": "none", "sysInfo": "deprecated", "versionArray": [*map(int, VERSION.split(".")), 0],
            "openssl": {"running": "disabled", "compiled": "disabled"}, "buildEnvironment": {}, "bits": 64,
            "debug": False, "maxBsonObjectSize": 16777216, "storageEngines": ["sandbox"], "ok": 1.0,
        }  # fmt: skip

    def get_parameter(self, request: Request) -> Reply:
        known: dict[str, Any] = {"featureCompatibilityVersion": {"version": "7.0"}, "periodicNoopIntervalSecs": 10}
        found = {
            name: value for name, value in known.items() if name in request.body or request.body["getParameter"] == "*"
        }
        if not found:
            raise CommandError(72, "no option found to get")
        return {**found, "ok": 1.0}

    def set_parameter(self, request: Request) -> Reply:
        name = list(request.body)[1]
        if name != "ttlMonitorSleepSecs":
            options = "use help:true to see options "
            raise CommandError(72, f"attempted to set unrecognized parameter [{name}], {options}")
        was, self.ttl_interval = self.ttl_interval, int(request.body[name])
        return {"was": was, "ok": 1.0}

    def status(self, _: Request) -> Reply:
        if self._replica_set is None:
            raise CommandError(76, "not running with --replSet")
        state = 1 if self.primary else 2
        optime, date = self._optime(), self._date()
        member = {
            "_id": 0, "name": self._address, "health": 1.0, "state": state,
            "stateStr": "PRIMARY" if self.primary else "SECONDARY", "uptime": int(self._engine.time() - self._started),
            "optime": optime, "optimeDate": date, "configVersion": 1, "configTerm": 1, "self": True,
        }  # fmt: skip
        times = {
            "lastCommittedOpTime": optime, "lastCommittedWallTime": date, "readConcernMajorityOpTime": optime,
            "appliedOpTime": optime, "durableOpTime": optime, "lastAppliedWallTime": date, "lastDurableWallTime": date,
        }  # fmt: skip
        return {
            "set": self._replica_set, "date": DatetimeMS(self._engine.wall()), "myState": state, "term": TERM,
            "syncSourceHost": "", "syncSourceId": -1, "heartbeatIntervalMillis": Int64(2000), "majorityVoteCount": 1,
            "writeMajorityCount": 1, "votingMembersCount": 1, "writableVotingMembersCount": 1, "optimes": times,
            "members": [member], "ok": 1.0,
        }  # fmt: skip

    def configuration(self, _: Request) -> Reply:
        if self._replica_set is None:
            raise CommandError(76, "not running with --replSet")
        member = {"_id": 0, "host": self._address, "priority": 1.0, "votes": 1}
        settings = {"replicaSetId": ObjectId(self._engine.identity)}
        return {
            "config": {"_id": self._replica_set, "version": 1, "term": 1, "members": [member], "settings": settings},
            "ok": 1.0,
        }

    def initiate(self, _: Request) -> Reply:
        """A replica set comes up initiated, so scripts that begin with rs.initiate() learn that they may go on."""
        if self._replica_set is None:
            raise CommandError(76, "This node was not started with replication enabled.")
        raise CommandError(23, "already initialized")

    def server_status(self, _: Request) -> Reply:
        uptime = self._engine.time() - self._started
        return {
            "host": self._address, "version": VERSION, "process": "mongod", "pid": Int64(os.getpid()), "uptime": uptime,
            "uptimeMillis": Int64(int(uptime * 1000)), "localTime": DatetimeMS(self._engine.wall()),
            "connections": {"current": self.connections, "available": 10000, "totalCreated": self.connections},
            "metrics": {"cursor": {"open": {"total": Int64(len(self._cursors))}}}, "ok": 1.0,
        }  # fmt: skip

    def host_info(self, _: Request) -> Reply:
        return {
            "system": {"hostname": self._address, "numCores": os.cpu_count() or 1},
            "os": {"type": os.name},
            "ok": 1.0,
        }

    def command_line(self, _: Request) -> Reply:
        return {"argv": ["mongod"], "parsed": {}, "ok": 1.0}

    def log(self, _: Request) -> Reply:
        return {"totalLinesWritten": 0, "log": [], "ok": 1.0}

    def start_session(self, _: Request) -> Reply:
        identity = b"\x05id\x00\x10\x00\x00\x00\x04" + os.urandom(16)
        return raw.document(
            raw.embedded(b"id", raw.document(identity)),
            b"\x10timeoutMinutes\x00" + raw.INT32.pack(30),
            b"\x01ok\x00" + raw.DOUBLE.pack(1.0),
        )

    def note(self, _: Request) -> Reply:
        self._engine.note()
        return {"ok": 1.0}
