"""Benchmark of Ray against the lab's own worker pool: the same runs on the same machine, in turns.

Both train as many runs at a time as there are cores, in workers that are started for it. The start
of the local Ray cluster is told separately. The figure is the ratio of the clock within a round;
who is first alternates.

    python benchmarks/scaling.py --json out.json
    python benchmarks/scaling.py --show benchmarks/results/<file>.json
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from certificate import certificate
from tables import table

from vasso.lab.execution.engine import RunTracker
from vasso.lab.execution.job import Job
from vasso.lab.execution.placement import Placement
from vasso.lab.experiment.run import Run
from vasso.lab.store.store import Store
from vasso.lab.training.options import RunOptions

GOAL = 1.10
ENGINES = ("here", "ray")
METHOD = {"name": "VaSSO", "rho": 0.1, "theta": 0.4}


class Silent:
    """A display that shows nothing."""

    def started(self, job: int, run: Run) -> None: ...
    def advanced(self, job: int, step: int, total: int) -> None: ...
    def lost(self, job: int, run: Run, why: str) -> None: ...
    def ended(self, job: int, run: Run, outcome: str, detail: Any) -> None: ...


def timed(on: Any, runs: list[Run]) -> dict[str, float]:
    """Seconds until the engine stands, and from there until all runs are done."""
    place = Placement(on=on)
    options = place.options_of_run(RunOptions(accelerator="cpu"))
    with tempfile.TemporaryDirectory() as folder:
        root = Store(folder).root

        def job_of(run: Run, attempt: int) -> Job:
            return Job(run.as_table(), root, options, attempt=attempt)

        begun = time.perf_counter()
        engine = place.engine(options, root, os.cpu_count() or 1)
        stands = time.perf_counter()
        outcome = RunTracker(engine, root, job_of, Silent()).train(runs)
        done = time.perf_counter()
    if len(outcome.done) < len(runs):
        raise SystemExit(f"on {on} runs have failed: {outcome.failed}")
    return {"start": stands - begun, "runs": done - stands}


def measure(count: int, epochs: int, rounds: int) -> list[dict[str, dict[str, float]]]:
    """The times of each engine, round by round."""
    task = {"epochs": epochs, "batch": 32}
    runs = [Run.of({"task": task, "method": METHOD, "seed": seed}) for seed in range(count)]
    return [
        {on: timed(on, runs) for on in (ENGINES if number % 2 == 0 else ENGINES[::-1])}
        for number in range(rounds)
    ]


def show(result: dict[str, Any]) -> str:
    """The table and the ratio, from the stored value alone."""
    rounds = result["rounds"]
    rows = [
        [on, *(f"{statistics.median(r[on][part] for r in rounds):.1f}" for part in rounds[0][on])]
        for on in ENGINES
    ]
    ratios = [r["ray"]["runs"] / r["here"]["runs"] for r in rounds]
    found = f"Ray to here: {statistics.median(ratios):.2f} (goal {GOAL}), rounds "
    found += ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return f"{table(['engine', 'start, s', 'runs, s'], rows)}\n\n{found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.show:
        print(show(json.loads(args.show.read_text())))
        return
    settings = {"runs": args.runs, "epochs": args.epochs, "rounds": args.rounds, "goal": GOAL}
    about = certificate("runs on Ray and on the lab's pool", ("torch", "ray"), settings)
    result = {**about, "rounds": measure(args.runs, args.epochs, args.rounds)}
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(show(result))


if __name__ == "__main__":
    main()
