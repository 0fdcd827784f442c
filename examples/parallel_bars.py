"""How far are we? Work in processes of one torch thread each, with a live bar for each kind."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress


def in_parallel(
    work: Callable[[Any], Any],
    items: Sequence[Any],
    *,
    kinds: Sequence[str],
    say: Callable[[list[Any]], str],
    workers: int,
) -> list[Any]:
    """The results of `work` in the order of items; `say` puts words to those of a kind so far."""
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[said]}"
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, torch.set_num_threads, (1,))
    so_far: dict[str, list[Any]] = {kind: [] for kind in kinds}
    with pool, Progress(*columns) as progress:
        bars = {k: progress.add_task(k, total=kinds.count(k), said="") for k in so_far}
        futures = dict(zip(submit_all(pool, work, items), kinds, strict=True))
        try:
            for future in as_completed(futures):
                kind = futures[future]
                so_far[kind].append(future.result())
                progress.update(bars[kind], advance=1, said=say(so_far[kind]))
        except BaseException:  # Ctrl-C too: the pool would finish what is queued first
            for child in multiprocessing.active_children():
                child.terminate()
            raise
    return [future.result() for future in futures]


def submit_all(
    pool: ProcessPoolExecutor, work: Callable[[Any], Any], items: Sequence[Any]
) -> list[Future[Any]]:
    """Starts the processes deaf to Ctrl-C, which they inherit: it is for the parent to hear."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return [pool.submit(work, item) for item in items]
    finally:
        signal.signal(signal.SIGINT, handler)
