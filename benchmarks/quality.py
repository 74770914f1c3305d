"""How good the built-in model is: streams that ship in packages, in one pass, each row predicted before it is learned,
beside what river learns from the same rows in the same order and, for the flights, predictors that cost nothing. All
with the model's defaults and the job's, in small rounds as of a slow stream. A table on stderr, JSON on stdout.

    python benchmarks/quality.py [STREAM ...] [--labels 20000] [--round 8] [--seeds 3] [--no-rivals]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import rivals
from prequential import Passed, Stream, one_pass
from streams import CLASSIFIED, classified, demo_job, labelled_flights

from streamtrain import config, scores
from streamtrain.demo.baselines import MeanBaseline, ShiftBaseline
from streamtrain.types import Scores

FLIGHTS = "flights"
MARKS = (1_000, 5_000, 20_000, 60_000)
Result = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", nargs="*", metavar="STREAM", help=f"of {', '.join((FLIGHTS, *CLASSIFIED))}")
    parser.add_argument("--labels", type=int, default=20_000, help="how many flights (there are 327,346)")
    parser.add_argument("--rows", type=int, default=None, help="how many rows of each other stream (default: all)")
    parser.add_argument("--round", type=int, default=8, help="new rows in a round")
    parser.add_argument("--seeds", type=int, default=3, help="of the small streams: so many passes of what has a seed")
    parser.add_argument("--rivals", action=argparse.BooleanOptionalAction, default=True, help="let river learn too")
    parser.add_argument("--without", default="", help="leave out the flights' features whose fields begin with this")
    parser.add_argument("--hyper", type=json.loads, default={}, help="other than the built-in model's defaults")
    options = parser.parse_args()
    wanted = options.streams or [*CLASSIFIED, FLIGHTS]
    if unknown := set(wanted) - {FLIGHTS, *CLASSIFIED}:
        parser.error(f"there is no stream {min(unknown)!r}")
    results = {}
    for name in wanted:
        results[name] = _flights(options) if name == FLIGHTS else _classified(name, options)
        print(_table(name, results[name]), file=sys.stderr, flush=True)
    print(json.dumps({"rows_per_round": options.round, "streams": results, "python": sys.version.split()[0]}, indent=2))


def _classified(name: str, options: argparse.Namespace) -> Result:
    found: Result = {"score": "accuracy", "built-in": {}}
    for title, ratio in (("as by default", 1.0), ("replay 0", 0.0)):
        passes = []
        for seed in range(options.seeds):
            job, stream = classified(
                name, limit=options.rows, seed=seed, hyper=options.hyper, round={"replay_ratio": ratio}
            )
            passes.append(_pass(job, stream, options))
        found["built-in"][title] = _measured(passes, [scores.accuracy(each.scores) for each in passes], len(stream))
        found["built-in"][title]["log_loss"] = _mean([scores.log_loss(each.scores) for each in passes])
    found["rows"] = len(stream)
    if options.rivals:
        found["river"] = {
            title: _rivals([rivals.accuracy(make(seed), stream) for seed in range(options.seeds if seeded else 1)])
            for title, (make, seeded) in rivals.classifiers(job.labels[0].classes).items()
        }
    return found


def _flights(options: argparse.Namespace) -> Result:
    found: Result = {"score": "mean absolute error", "built-in": {}}
    for title, ratio in (("as in the demo", 1.0), ("replay 0", 0.0)):
        job = demo_job(hyper=options.hyper, round={"batch_size": 64, "replay_ratio": ratio})
        if options.without:
            kept = tuple(feature for feature in job.features if not feature.field.startswith(options.without))
            job = job.model_copy(update={"features": kept})
        if not found["built-in"]:
            stream, departed = labelled_flights(job.schema_(), options.labels)
        so_far: dict[int, Scores] = {}
        passed = _pass(job, stream, options, so_far)
        found["built-in"][title] = _measured([passed], [scores.mae(passed.scores)], len(stream))
        found["built-in"][title]["so_far"] = {mark: _rounded(scores.mae(score)) for mark, score in so_far.items()}
    found["rows"] = len(stream)
    mean, shift = MeanBaseline(), ShiftBaseline()
    found["baselines"] = {"running mean": {"so_far": {}}, "dep_delay + running median": {"so_far": {}}}
    for number, (late, label) in enumerate(zip(departed, stream.labels.tolist(), strict=True), start=1):
        mean.score_then_learn(int(label))
        shift.score_then_learn(late, int(label))
        for entry, baseline in zip(found["baselines"].values(), (mean, shift), strict=True):
            if number in MARKS:
                entry["so_far"][number] = _rounded(baseline.mae)
            entry["score"] = _rounded(baseline.mae)
    if options.rivals:
        found["river"] = {}
        for title, make in rivals.regressors(seed=0).items():
            rows = rivals.FOREST_ROWS if "forest" in title else len(stream)
            found["river"][title] = _rivals([rivals.absolute_error(make(), stream, rows=rows, marks=MARKS)])
    return found


def _pass(
    job: config.Job, stream: Stream, options: argparse.Namespace, so_far: dict[int, Scores] | None = None
) -> Passed:
    """so_far: takes the scores at each mark, of the first round that reaches it."""

    def note(rows: int, total: Scores) -> None:
        for mark in MARKS:
            if so_far is not None and rows >= mark:
                so_far.setdefault(mark, total)

    return one_pass(job, stream, rows_per_round=options.round, window=job.window.max_records, on_round=note)


def _measured(passes: Sequence[Passed], found: Sequence[float | None], rows: int) -> Result:
    return {
        "score": _mean(found),
        "each": [_rounded(score) for score in found],
        "steps": passes[0].steps,
        "cpu_us_per_new_row": round(min(each.cpu_s for each in passes) / rows * 1e6),
        "cpu_us_per_learned_row": round(min(each.cpu_s / each.rows_learned for each in passes) * 1e6, 1),
    }


def _rivals(seeds: Sequence[rivals.Rival]) -> Result:
    first = seeds[0]
    cpu_s = min(each.cpu_s for each in seeds)
    entry: Result = {
        "score": _mean([each.score for each in seeds]),
        "each": [_rounded(each.score) for each in seeds],
        "cpu_us_per_new_row": round(cpu_s / first.rows * 1e6),
    }
    if first.so_far:
        entry |= {"rows": first.rows, "so_far": {mark: _rounded(score) for mark, score in first.so_far.items()}}
    return entry


def _mean(found: Sequence[float | None]) -> float | None:
    known = [score for score in found if score is not None]
    return _rounded(sum(known) / len(known)) if known else None


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(score, 4)


def _table(name: str, result: Result) -> str:
    lines = [f"\n{name}: {result['score']} over {result['rows']:,} rows ({time.strftime('%H:%M:%S')})"]
    for kind in ("built-in", "baselines", "river"):
        entries: Mapping[str, Result] = result.get(kind, {})
        for title, entry in entries.items():
            cpu = entry.get("cpu_us_per_new_row")
            cost = "" if cpu is None else f"{cpu:>8} us of CPU a row"
            rows = f" of the first {entry['rows']:,}" if entry.get("rows", result["rows"]) != result["rows"] else ""
            lines.append(f"  {kind if kind != 'baselines' else '':9} {title:40} {entry['score']:>8} {cost}{rows}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
