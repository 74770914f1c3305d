"""How old a write is when its gradient is applied: 500 documents/s through the whole chain, as an operator would run
it (`streamtrain run`, embedded MongoDB, one Kafka broker, two workers), and what the daemon takes of memory.

    python benchmarks/freshness.py [--rate 500] [--seconds 65] [--broker noida|apache]
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pymongo
import yaml
from harness import report

from streamtrain.sandbox.apache_kafka import DEFAULT_CACHE, ApacheKafka, find_apache
from streamtrain.sandbox.kafka_broker import KafkaBroker, free_ports
from streamtrain.sandbox.mongo_server import MongoProcess

ROOT = Path(__file__).resolve().parents[1]
WARM_UP_S = 5.0  # the first rounds load TensorFlow's kernels
BATCH_S = 0.02
START_TIMEOUT_S = 120.0
MEASURED_S = 65.0  # the status shows the freshness of the last minute
TARGETS = {"p50_ms": 500.0, "p99_ms": 1500.0, "daemon_rss_mib": 200.0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=MEASURED_S)
    parser.add_argument("--broker", choices=["noida", "apache"], default="noida")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshness-")))
        if options.broker == "apache":
            runtime = find_apache(ROOT / DEFAULT_CACHE)
            broker = stack.enter_context(ApacheKafka(directory=folder, runtime=runtime)).bootstrap_servers
        else:
            broker = stack.enter_context(KafkaBroker(directory=folder)).bootstrap_servers
        mongo = MongoProcess(data_file=folder / "mongo.data")
        mongo.start()
        stack.callback(mongo.stop)
        client: pymongo.MongoClient[dict[str, Any]] = stack.enter_context(pymongo.MongoClient(mongo.uri, w="majority"))
        collection = client["bench"].create_collection("documents")
        address = f"127.0.0.1:{free_ports(1)[0]}"
        daemon = start_daemon(folder, broker=broker, mongo=mongo.uri, listen=address)
        stack.callback(end, daemon)
        wait_for_training(address, daemon)
        write(collection, rate=options.rate, seconds=WARM_UP_S, first=0)
        written = write(collection, rate=options.rate, seconds=options.seconds, first=1_000_000)
        job = status(address)["jobs"]["bench"]
        rss = psutil.Process(daemon.pid).memory_info().rss / 1024**2
        fresh = job["report"]["freshness_ms"]
        report(
            {
                "broker": options.broker,
                "documents_per_s": round(written / options.seconds),
                "freshness_ms": {name: round(value, 1) for name, value in fresh.items()},
                "rounds": job["rounds"],
                "last_round_seconds": job["report"]["last_round_seconds"],
                "daemon_rss_mib": round(rss, 1),
                "load_average": [round(load, 1) for load in psutil.getloadavg()],
                "targets": TARGETS,
                "note": "wall time; other load of the machine shows in it, see load_average",
            }
        )


def start_daemon(folder: Path, *, broker: str, mongo: str, listen: str) -> subprocess.Popen[bytes]:
    features = [{"field": f"x{i}", "dtype": "float32"} for i in range(8)] + [{"field": "c", "dtype": "string"}]
    settings = {
        "kafka": {"bootstrap_servers": broker},
        "admin": {"listen": listen},
        "sources": [{"name": "bench", "uri": mongo, "database": "bench", "collection": "documents"}],
        "jobs": [
            {
                "name": "bench",
                "source": "bench",
                "features": features,
                "labels": [{"field": "y", "dtype": "float32", "task": "regression"}],
                "workers": {"min": 2},
            }
        ],
    }
    path = folder / "streamtrain.yaml"
    path.write_text(yaml.safe_dump(settings))
    return subprocess.Popen(
        [sys.executable, "-m", "streamtrain", "run", "--config", str(path)], stdout=sys.stderr, start_new_session=True
    )


def end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(60)


def status(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address}/v1/status", timeout=5) as answer:
        document: dict[str, Any] = json.load(answer)
        return document


def wait_for_training(address: str, daemon: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up and daemon.poll() is None:
        try:
            if status(address)["jobs"]["bench"]["phase"] == "training":
                return
        except urllib.error.URLError:
            pass
        time.sleep(0.2)
    raise SystemExit("the job does not train")


def write(collection: Any, *, rate: int, seconds: float, first: int) -> int:
    """Evenly, a few documents every 20 ms, as many applications at once would; returns how many."""
    began, written = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        count = int(passed * rate) - written
        if count:
            collection.insert_many([document(first + written + i) for i in range(count)])
            written += count
        time.sleep(BATCH_S)
    return written


def document(number: int) -> dict[str, Any]:
    x = [float((number * (7 + i)) % 101) / 101 for i in range(8)]
    return {"_id": number, **{f"x{i}": value for i, value in enumerate(x)}, "c": f"c{number % 12}", "y": sum(x)}


if __name__ == "__main__":
    main()
