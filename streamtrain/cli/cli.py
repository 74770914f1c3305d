"""The command line. Data goes to stdout and logs to stderr; exit codes are those of `errors.py`. Everything a
command needs is imported inside it: `--help` must answer at once."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from streamtrain.errors import EXIT_DEPENDENCY, EXIT_INTERNAL, StreamtrainError, UsageError

if TYPE_CHECKING:
    from streamtrain.client import AdminClient
    from streamtrain.masking import Mask
    from streamtrain.settings.settings_file import Loaded

app = typer.Typer(
    name="streamtrain",
    help="Keeps TensorFlow models fresh while their training data is still being written to MongoDB.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
sandbox = typer.Typer(help="Embedded MongoDB and Kafka for development.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(sandbox, name="sandbox")
models = typer.Typer(help="What jobs have learned, and its export.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(models, name="models")
dead_letters = typer.Typer(
    help="Documents that jobs could not learn, and their second chance.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(dead_letters, name="dead-letters")

ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Settings file; else $STREAMTRAIN_CONFIG, ./streamtrain.yaml, /etc/streamtrain.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a setting, such as kafka.topic_prefix=test or sources.0.uri=..."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="Only letters with it, such as type or type:dep_delay.")
]
FieldOption = Annotated[str | None, typer.Option("--field", help="Only letters of this field.")]


class ExportFormat(StrEnum):
    SAVEDMODEL = "savedmodel"
    KERAS = "keras"
    BOTH = "both"


def main() -> NoReturn:
    """Runs the command and exits. A StreamtrainError becomes its message, hint and exit code."""
    state = _state
    try:
        app()
    except StreamtrainError as error:
        text = state.masked(str(error))
        if state.json:
            _print_json({"error": {"kind": type(error).__name__, **_details(error, state)}})
        else:
            print(f"streamtrain: {text}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("streamtrain"):
            _crash(error, state)
        print(
            f"streamtrain: this command needs the package {error.name!r}, which is not installed\n"
            "  hint: pip install 'streamtrain[cpu,sandbox]'",
            file=sys.stderr,
        )
        sys.exit(EXIT_DEPENDENCY)
    except BaseExceptionGroup as group:
        _crash(group, state)
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it is, no secret may be printed
        _crash(error, state)
    sys.exit(0)


@app.command()
def init(
    database: Annotated[str, typer.Option(help="Of the collection.")],
    collection: Annotated[str, typer.Option("--collection", "--name", help="What to learn from.")],
    uri: Annotated[str | None, typer.Option(help="MongoDB, such as mongodb://host:27017/?replicaSet=rs0.")] = None,
    uri_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file that holds the URI, instead of --uri.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="FIELD", help="What to predict; default: what looks most like it.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="The job's name; default: of the collection and the label.")] = None,
    sample: Annotated[int, typer.Option(help="Documents to look at.")] = 1000,
    watch: Annotated[str, typer.Option(help="How long to watch how the collection is written to; 0s: not.")] = "10s",
    kafka: Annotated[str, typer.Option(metavar="HOST:PORT", help="Your brokers.")] = "127.0.0.1:9092",
    output: Annotated[str, typer.Option(metavar="FILE", help="The settings file to write.")] = "streamtrain.yaml",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    json: JsonOption = False,
) -> None:
    """Look at a collection and write a settings file for it, with the reason for every line. It only reads."""
    _state.json = json
    from streamtrain.clock import SystemClock
    from streamtrain.init.command import Options
    from streamtrain.init.command import init as run_init
    from streamtrain.init.summary import summary
    from streamtrain.masking import Mask

    _state.mask = Mask.of([uri or ""])
    options = Options(
        uri=uri,
        uri_file=uri_file,
        database=database,
        collection=collection,
        job=job,
        label=label,
        sample=sample,
        watch=watch,
        kafka=kafka,
        output=output,
        force=force,
    )
    written = run_init(options, clock=SystemClock(), say=lambda text: None if json else _say(text))
    _show(written.document(), lambda: summary(written))


@app.command()
def run(config: ConfigOption = None, set_: SetOption = None) -> None:
    """Follow the sources and train the jobs, until SIGTERM. The admin endpoint says how it goes."""
    loaded = _load(config, set_)
    from streamtrain.daemon.daemon import run as run_daemon

    _exit(run_daemon(loaded))


@app.command()
def validate(
    config: ConfigOption = None,
    set_: SetOption = None,
    connect: Annotated[bool, typer.Option("--connect", help="Also check MongoDB and Kafka.")] = False,
    models: Annotated[
        bool, typer.Option("--models/--no-models", help="Build each job's model in a process of its own.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Check settings, models and servers; nothing is changed. The servers only with --connect."""
    _state.json = json
    loaded = _load(config, set_)
    from streamtrain.cli.validation import run as run_checks

    checks = run_checks(loaded.settings, connect=connect, models=models)
    if json:
        _print_json({"file": str(loaded.path), "ok": all(c.error is None for c in checks), "checks": _checks(checks)})
    for check in checks if not json else ():
        if check.error is None:
            print(f"ok    {check.name}")
        else:
            print(f"wrong {check.name}\n  {_state.masked(str(check.error))}", file=sys.stderr)
    _exit(max((c.error.exit_code for c in checks if c.error), default=0))


@app.command("check-model")
def check_model(
    config: ConfigOption = None,
    set_: SetOption = None,
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Whose model; needed with several.")] = None,
    sample: Annotated[int, typer.Option(min=1, max=1_000_000, help="Documents to try it on.")] = 1000,
    documents: Annotated[
        str | None,
        typer.Option(
            "--documents", metavar="FILE", help="JSON lines or BSON instead of a sample of the source's collection."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Try a job's model on documents: builds, decodes, learns alike with one and two workers, restores, exports."""
    _state.json = json
    loaded = _load(config, set_)
    from streamtrain.cli import check_command

    subject, found = check_command.run(loaded.settings, job=job, file=documents, count=sample)
    _show(check_command.as_json(subject, found), lambda: _state.masked("\n".join(check_command.lines(found))))
    _exit(check_command.exit_code(found))


@app.command()
def status(config: ConfigOption = None, set_: SetOption = None, json: JsonOption = False) -> None:
    """Show the sources, jobs, freshness and scores of the daemon."""
    _state.json = json
    from streamtrain.cli import status_text

    found = _client(config, set_).status()
    _show(found, lambda: status_text.render(found))


@app.command()
def pause(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Save what a job has learned and give its workers back, until `resume` or the daemon's next start."""
    _state.json = json
    found = _client(config, set_).pause(job)
    _show(found, lambda: f"{job}: pauses as soon as it has saved; `streamtrain resume {job}` goes on")


@app.command()
def resume(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Go on with a job that is paused, by you or by a failure."""
    _state.json = json
    found = _client(config, set_).resume(job)
    _show(found, lambda: f"{job}: goes on; `streamtrain status` shows it")


@app.command()
def retrain(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    lineage: Annotated[
        str | None, typer.Argument(help="A retrain that has begun: show it, --promote it or --cancel it.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", help="weights: the present ones. scratch: new ones. Or the id of a manifest.")
    ] = "weights",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="A duration before now such as 6h, or an ISO time. Default: the window's begin.",
        ),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Default: now.")] = None,
    hyper: Annotated[
        list[str] | None, typer.Option("--hyper", metavar="KEY=VALUE", help="Another hyper-parameter; JSON or a text.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes beside those of the job. Default: as many.")
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Take the job's place: once the range is learned, or with LINEAGE.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="With LINEAGE: end it and remove what it has saved.")
    ] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Learn the window, or a range of the topic, again beside the running job; then promote it, or cancel it."""
    _state.json = json
    from streamtrain.cli import retrain_command

    if lineage is None:
        if cancel:
            raise UsageError("--cancel needs the lineage", hint="streamtrain status shows those that are retrained")
        found = retrain_command.begin(
            _client(config, set_),
            job,
            start=start,
            since=since,
            until=until,
            hyper=hyper or (),
            workers=workers,
            promote=promote,
        )
        _show(found, lambda: retrain_command.begun_text(found, promote=promote))
    else:
        found = retrain_command.act(_client(config, set_), job, lineage, promote=promote, cancel=cancel)
        _show(found, lambda: retrain_command.acted_text(job, lineage, found))


@app.command("config")
def show_config(
    config: ConfigOption = None,
    set_: SetOption = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the settings file instead.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print the effective settings, with secrets masked. They come from file, environment, secrets, flags, defaults."""
    _state.json = json
    from streamtrain.settings import settings_text

    if schema:
        _print_json(settings_text.schema())
        return
    effective = settings_text.effective(_load(config, set_))
    if json:
        _print_json(effective)
    else:
        print(settings_text.to_yaml(effective), end="")


@models.command("list")
def models_list(
    job: Annotated[str | None, typer.Argument(help="Only of this job.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show the manifests that are kept, newest first; the head of a job has a star."""
    _state.json = json
    loaded = _load(config, set_)
    from streamtrain.cli import models_command

    found = models_command.listed(loaded.settings, job)
    _show(found, lambda: models_command.list_text(found))


@models.command("export")
def models_export(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The model becomes DIR/JOB/NUMBER.")],
    manifest: Annotated[str | None, typer.Option("--manifest", metavar="ID", help="Default: the job's head.")] = None,
    format_: Annotated[ExportFormat, typer.Option("--format", help="What is written.")] = ExportFormat.BOTH,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Export what a job has learned, for TensorFlow Serving, as a new version that takes raw fields."""
    _state.json = json
    loaded = _load(config, set_)
    from pathlib import Path

    from streamtrain.cli import models_command

    found = models_command.export(
        loaded.settings,
        job,
        to=Path(to),
        manifest_id=manifest,
        savedmodel=format_ is not ExportFormat.KERAS,
        keras=format_ is not ExportFormat.SAVEDMODEL,
    )
    _show(found, lambda: models_command.export_text(found))


@dead_letters.command("list")
def dead_letters_list(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    reason: ReasonOption = None,
    field: FieldOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show a job's dead letters by reason."""
    _state.json = json
    loaded = _load(config, set_)
    from streamtrain.cli import dead_letters_command

    found = dead_letters_command.listed(loaded.settings, job, reason=reason, field=field)
    _show(found, lambda: dead_letters_command.list_text(found))


@dead_letters.command("replay")
def dead_letters_replay(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    reason: ReasonOption = None,
    field: FieldOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Have a job learn its dead letters after all: each once, however often this is asked for."""
    _state.json = json
    loaded = _load(config, set_)
    from streamtrain.cli import dead_letters_command

    found = dead_letters_command.replay(loaded.settings, job, reason=reason, field=field)
    _show(found, lambda: dead_letters_command.replay_text(found))


@sandbox.command("up")
def sandbox_up(
    mongo_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 27117,
    kafka_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 19092,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Keep the data here; else it is gone afterwards.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Start the embedded MongoDB and Kafka and print their addresses, until Ctrl-C. For development only."""
    _state.json = json
    from streamtrain.cli.sandbox_command import up

    _exit(up(mongo_port=mongo_port, kafka_port=kafka_port, data=data, json=json))


@app.command()
def demo(
    rate: Annotated[float, typer.Option(help="Writes a second.")] = 2000.0,
    duration: Annotated[str, typer.Option(help="How long to write, such as 30s or 2m.")] = "60s",
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    json: JsonOption = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the work directory behind.")] = False,
) -> None:
    """Learn the delays of real flights, on embedded servers."""
    _state.json = json
    from streamtrain.demo.command import demo as run_demo

    _exit(run_demo(rate=rate, duration=duration, workers=workers, json=json, keep=keep))


@app.command()
def version() -> None:
    """Print the version."""
    from streamtrain import __version__

    print(__version__)


class _State:
    """What `main` needs to know of the command that failed: how to print, and what never to print."""

    def __init__(self) -> None:
        self.json = False
        self.mask: Mask | None = None

    def masked(self, text: str) -> str:
        from streamtrain.masking import Mask

        return (self.mask or Mask()).text(text)


_state = _State()


def _load(config: str | None, overrides: list[str] | None) -> Loaded:
    from streamtrain.settings import settings_file

    loaded = settings_file.load(settings_file.find(config), flags=overrides or ())
    _state.mask = loaded.mask
    return loaded


def _client(config: str | None, overrides: list[str] | None) -> AdminClient:
    from streamtrain.client import AdminClient

    return AdminClient.of(_load(config, overrides).settings.admin)


def _exit(code: int | None) -> None:
    raise typer.Exit(code or 0)


def _checks(checks: list[Any]) -> list[dict[str, Any]]:
    return [
        {"name": c.name, "ok": c.error is None} | ({} if c.error is None else _details(c.error, _state)) for c in checks
    ]


def _details(error: StreamtrainError, state: _State) -> dict[str, Any]:
    found: dict[str, Any] = {"message": state.masked(error.message), "hint": state.masked(error.hint)}
    if problems := getattr(error, "problems", None):
        found["problems"] = [{key: state.masked(text) for key, text in problem.items()} for problem in problems]
    return found


def _say(text: str) -> None:
    print(_state.masked(text), file=sys.stderr, flush=True)


def _show(found: Any, text: Callable[[], str]) -> None:
    """What a command has found: as JSON where that was asked for, else as text."""
    if _state.json:
        _print_json(found)
    else:
        print(text())


def _print_json(value: Any) -> None:
    print(jsonlib.dumps(value, indent=2, default=str))


def _crash(error: BaseException, state: _State) -> NoReturn:
    import traceback

    text = "".join(traceback.format_exception(error))
    print(f"{state.masked(text)}\nstreamtrain: an internal error; please report it", file=sys.stderr)
    sys.exit(EXIT_INTERNAL)
