"""The worker process (DESIGN 5): imports TensorFlow, says Ready, and serves exactly one generation. It ends with
its control connection, and says why it failed before it does."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import MutableMapping

import structlog

from streamtrain import logs
from streamtrain.clock import Clock, SystemClock
from streamtrain.errors import EXIT_INTERNAL, EXIT_OK, StreamtrainError, WorkerError
from streamtrain.masking import Mask
from streamtrain.protocol import LOST_PEER, Failed, Form, Ready
from streamtrain.trainer.channel import Channel, connect
from streamtrain.trainer.lean import lean

_log = structlog.get_logger()
_JOIN_TOKEN = "STREAMTRAIN_JOIN_TOKEN"
_MESSAGE_CHARACTERS = 2000


def quieten(environ: MutableMapping[str, str]) -> None:
    """Before TensorFlow is imported: its banners are not the user's business. Values that are set stay."""
    for name, value in (
        ("TF_CPP_MIN_LOG_LEVEL", "3"),
        ("TF_ENABLE_ONEDNN_OPTS", "0"),  # announces itself at every start; small models are no faster with it
        ("GRPC_VERBOSITY", "NONE"),
        ("KERAS_BACKEND", "tensorflow"),
    ):
        environ.setdefault(name, value)


def _reserve_port() -> socket.socket:
    """A port that no other process is given while this socket is bound; TensorFlow's server can still listen."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def _failure(error: Exception, generation: int) -> Failed:
    kind = type(error).__name__
    if isinstance(error, StreamtrainError):
        return Failed(generation, kind, error.message, error.hint, fatal=error.fatal)
    return Failed(generation, kind, f"{kind}: {error}"[:_MESSAGE_CHARACTERS])


def _is_lost_peer(error: Exception) -> bool:
    return type(error).__name__ in LOST_PEER


def _serve(control: str, token: str, host: str, clock: Clock) -> int:
    with lean():
        from streamtrain.trainer.rank import Rank  # seconds: a standby has TensorFlow before it says Ready

    connection = connect(control)
    channel = Channel(connection=connection, clock=clock)
    reserved = _reserve_port()
    channel.start()
    channel.send(Ready(token=token, pid=os.getpid(), host=host, port=int(reserved.getsockname()[1])))
    try:
        message = channel.next()
        if not isinstance(message, Form):
            raise WorkerError(f"a standby was sent {type(message).__name__}")
        logs.configure(mask=_mask(message))
        rank = Rank(channel=channel, form=message, clock=clock)
        channel.send(rank.form(reserved))
        rank.serve()
    except Exception as error:  # noqa: BLE001  the last chance to say why
        if not isinstance(error, StreamtrainError) and not _is_lost_peer(error):
            _log.exception("the worker failed")
        channel.send(_failure(error, channel.generation))
        return EXIT_INTERNAL
    return EXIT_OK


def _mask(form: Form) -> Mask:
    """Of the secrets that the form holds: a client's error may quote them."""
    values = (form.kafka.get("security", {}).get("password"), form.artifacts.get("uri"))
    return Mask.of(value for value in values if value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m streamtrain.trainer.worker", description=__doc__)
    parser.add_argument("--control", required=True, help="unix:/path/to.sock or host:port of the daemon")
    parser.add_argument("--host", default="127.0.0.1", help="address at which the other workers reach this one")
    options = parser.parse_args()
    logs.configure()
    quieten(os.environ)
    return _serve(options.control, os.environ.pop(_JOIN_TOKEN, ""), options.host, SystemClock())


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # TensorFlow's own shutdown would wait for the other ranks
