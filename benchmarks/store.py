"""Benchmark of stores of thousands of runs: time and memory of the commands that read one.

A store is made of runs that nobody has trained: those of the package's studies of accuracy at scale
cpu, with as many seeds as it takes, and a run in fifty of no study. Their numbers follow a formula,
their files have the form and size of real ones. Each command is a process of its own; its time is
that of the processor, so that other programs disturb little, and its memory is the largest it held.

    python benchmarks/store.py --json out.json
    python benchmarks/store.py --show benchmarks/results/<file>.json
"""

import argparse
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from certificate import certificate
from tables import table

from vasso.lab.experiment.run import Run
from vasso.lab.store.json import as_json
from vasso.lab.store.provenance import certificate as certificate_of_run
from vasso.lab.store.run_directory import FORMAT
from vasso.lab.store.store import Store, run_status
from vasso.lab.studies import names
from vasso.lab.studies import study as studies

SIZES = (1250, 2500, 5000, 10000)
MOST_SECONDS, MOST_MEGABYTES = 30, 400
PARTS = ("test", "validation", "training", "wrong")
LAST = {"epoch", "step", "train_loss", *(f"{p}_{x}" for p in PARTS for x in ("loss", "accuracy"))}
COMMANDS = {"report": ("report", "{store}", "-o", "{store}.html"), "status": ("status", "{store}")}


def runs_of_studies() -> Iterator[Run]:
    """Runs without end: all cells seed by seed, every fiftieth one of a task of no study."""
    every = [studies.load(name) for name in names()]
    found = [s.at("cpu").runs for s in every if s.measure == "accuracy" and "cpu" in s.scales]
    cells = list({run.cell_key: run for runs in found for run in runs}.values())
    own = Run.of({"task": {"train_size": 300, "batch": 50}, "method": {"name": "SAM", "rho": 0.1}})
    count = 0
    for seed in itertools.count():
        for run in cells:
            count += 1
            yield run.changed({"seed": seed})
            if count % 50 == 0:
                yield own.changed({"seed": seed, "batch": 10 + count // 50 % 20})


def make_store(root: Path, count: int) -> list[Run]:
    """Writes a store of finished runs."""
    Store(root)
    made: dict[str, Run] = {}
    for run in runs_of_studies():
        made[run.id] = run
        if len(made) == count:
            break
    about = certificate_of_run()
    for run in made.values():
        write_run(root / run.id, run, about)
    return [*made.values()]


def write_run(folder: Path, run: Run, about: dict[str, Any]) -> None:
    """Settings, a line for the start and for each epoch, and the result, by a formula."""
    folder.mkdir()
    noise = random.Random(run.id)
    settings = {"format": FORMAT, "id": run.id, "run": run.in_full(), "certificate": about}
    begun = "2026-01-01T10:00:00+00:00"
    start = {"kind": "start", "step": 0, "time": begun, "threads": 1, "certificate": about}
    epochs = [epoch(run, number, noise) for number in range(1, run.task.epochs + 1)]
    last = {name: x for name, x in epochs[-1].items() if name in LAST}
    steps = epochs[-1]["step"]
    result = {"last": last, "best": last, "cost": 2.0 * steps, "seconds": 60.0, "steps": steps}
    result |= {"skipped": 0, "images_per_second": 600.0, "ended": "2026-01-01T11:00:00+00:00"}
    lines = b"".join(as_json(line) + b"\n" for line in [start, *epochs])
    (folder / "run.json").write_bytes(as_json({**settings, "begun": begun}, indent=1))
    (folder / "metrics.jsonl").write_bytes(lines)
    (folder / "result.json").write_bytes(as_json(result, indent=1))


def epoch(run: Run, number: int, noise: random.Random) -> dict[str, Any]:
    """The line of an epoch, with the entries of a real one."""
    share = number / run.task.epochs
    rho = dict(run.method.settings).get("rho")
    radius = rho if isinstance(rho, float) else 0.0
    test = 90 - 40 * run.task.wrong - 20 * math.exp(-3 * share) + 5 * radius + noise.gauss(0, 1)
    found: dict[str, Any] = {"kind": "epoch", "step": 78 * number, "epoch": number}
    found |= {"lr": 0.05 * (1 - share), "train_loss": 2.3 - share + noise.gauss(0, 0.1)}
    found |= {"cost": 156.0 * number, "skipped": 0, "seconds": 4.2, "images_per_second": 601.5}
    for part, accuracy in {"test": test, "validation": test - 0.3, "training": test + 3}.items():
        found |= {f"{part}_loss": 3 - accuracy / 50, f"{part}_accuracy": accuracy}
    if run.task.wrong:
        found |= {"wrong_loss": 2.3, "wrong_accuracy": 20 * share + noise.random()}
    if radius:
        own = 2 * radius / (1 + share) * math.exp(noise.gauss(0, 0.1))
        others = [own * noise.random() / 2 for _ in range(run.task.others)]
        norms = {f"{name}_norm": noise.random() for name in ("g", "d", "h")}
        cosines = {"epsilon_norm": radius, "cos_dg": 0.9, "cos_gh": noise.random()}
        found |= {"rise": own, "adversary": {"own": own, "others": others, **norms, **cosines}}
    return found


def measured(command: tuple[str, ...]) -> dict[str, float]:
    """Seconds of the processor and of the clock, and megabytes, of a command of vasso."""
    begun = time.perf_counter()
    words = [sys.executable, "-m", "vasso.lab", *command]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} failed: {said}")
    return {
        "seconds": used.ru_utime + used.ru_stime,
        "clock": time.perf_counter() - begun,
        "megabytes": used.ru_maxrss / 1024,
    }


def looked_up(runs: list[Run], root: Path) -> dict[str, float]:
    """Seconds in which this process finds that all runs are done, as a study does at its start."""
    begun = time.process_time()
    found = run_status(runs, Store(root), results=False)
    if len(found.done) < len(runs):
        raise SystemExit(f"{len(found.missing)} runs are missing: {found.warnings()[:3]}")
    return {"seconds": time.process_time() - begun}


def measure(sizes: list[int], folder: Path) -> dict[str, Any]:
    """Every command on a store of each size."""
    found: dict[str, Any] = {}
    for size in sizes:
        root = folder / f"store-{size}"
        runs = make_store(root, size)
        commands = {
            name: measured(tuple(word.format(store=root) for word in words))
            for name, words in COMMANDS.items()
        }
        commands["start of a study"] = looked_up(runs, root)
        commands["the same, with the index"] = looked_up(runs, root)
        commands["status, with the index"] = measured(("status", str(root)))
        print(size, commands, file=sys.stderr, flush=True)
        found[str(size)] = commands
    return found


def show(result: dict[str, Any]) -> str:
    """The tables, from the stored value alone."""
    by_size = result["commands"]
    rows = []
    for name in next(iter(by_size.values())):
        each = [commands[name] for commands in by_size.values()]
        rows.append([name, *(cell(x) for x in each)])
    return table(["command", *(f"{int(size):,} runs" for size in by_size)], rows)


def cell(x: dict[str, float]) -> str:
    return f"{x['seconds']:.1f} s" + (f", {x['megabytes']:.0f} MB" if "megabytes" in x else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path)
    args = parser.parse_args()
    if args.show:
        print(show(json.loads(args.show.read_text())))
        return
    with tempfile.TemporaryDirectory() as folder:
        commands = measure(list(args.sizes), Path(folder))
    settings = {"goals": {"seconds": MOST_SECONDS, "megabytes": MOST_MEGABYTES}}
    about = certificate("commands that read a store", ("torch", "numpy", "matplotlib"), settings)
    result = {**about, "commands": commands}
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(show(result))


if __name__ == "__main__":
    main()
