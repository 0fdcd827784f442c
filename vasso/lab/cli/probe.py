"""`vasso probe`: measures one model at its weights."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from vasso.lab.cli.errors import FAILED, INTERRUPTED, say, usage_errors
from vasso.lab.cli.paths import DataRoot, StoreOption
from vasso.lab.probe.target import Amount, Subject, check_loss, subject_of
from vasso.lab.store.store import STORE
from vasso.lab.training.options import check_data_root

RHO = 0.05
"""If neither the run nor the user gives one: the default of `SAM` and `VaSSO`."""


@dataclass(frozen=True)
class ProbeCommand:
    """Measures a finished run, or a model of yours, at its weights; changes nothing of it.

    Reports the noise of gradients, the error of the slope of each theta and the sharpness of the
    loss. Also: the share of other batches that gain from the perturbation of one, and the rho of
    VaSSO that has the effect of SAM's. Ctrl-C keeps what has been measured.

    Try:
        vasso train --rho 0.1
        vasso probe digits-mlp-vasso-rho-0.1-s0-8b85e915b8 --quick
        vasso probe my_module:my_function --rho 0.1 --thetas 1 0.4
        vasso probe runs/some-run --only snr,friendliness --also landscape

    my_function takes no arguments and returns model, loss, loader; or these and a loader of other
    batches; or a dict with the keys model, loss, loader, others, rho.
    """

    subject: tyro.conf.Positional[str]
    """id of a finished run, its directory, or module:function"""
    only: str = ""
    """measures, separated by commas: snr, slope, friendliness, radius, sharpness, eigenvalues,
    trace"""
    also: str = ""
    """additional measures, which take longer: density, landscape"""
    rho: float | None = None
    """radius of SAM; default: that of the run or of your function, else 0.05"""
    thetas: tuple[float, ...] = (1.0, 0.9, 0.4, 0.2)
    """slopes to measure; 1 is SAM's"""
    batches: int | None = None
    """batches whose gradients make slopes; default: 96, with --quick 32"""
    batch_size: int | None = None
    """samples in each; default: as in training"""
    quick: bool = False
    """measure less: fewer batches, adversaries, radii and samples"""
    out: Path | None = None
    """directory for probe.json and pictures; default: probe in the directory of the run, where
    `vasso report` finds it, or probes/<name> for a function of yours. A probe that lies there is
    replaced if the new one is of the same subject and has all of its measures, from as many
    batches; otherwise the new one goes to a folder of its own, such as probe-2"""
    store: StoreOption = STORE
    data_root: DataRoot = None
    accelerator: Annotated[
        str, tyro.conf.arg(help="for runs: cpu, cuda, mps or tpu; auto takes the fastest available")
    ] = "auto"

    def __call__(self) -> int:
        from vasso.lab.cli.display import ProbeBar
        from vasso.lab.probe.pictures import draw  # scipy and matplotlib: slow
        from vasso.lab.probe.results import FILE, document, sentences, table_of, write
        from vasso.lab.probe.run import Depth, check_thetas, chosen, probe

        with usage_errors():
            check_data_root(self.data_root)
            names = chosen(_words(self.only), _words(self.also))
            places = {"store": self.store, "data": self.data_root, "accelerator": self.accelerator}
            subject = subject_of(self.subject, self.amount(), **places)  # type: ignore[arg-type]
            check_loss(subject)
            rho = self.rho if self.rho is not None else subject.rho or RHO
            depth = Depth(rho=rho, thetas=self.thetas)
            check_thetas(subject, depth, names)
        depth = depth.quick() if self.quick else depth
        with ProbeBar() as bar:
            findings = probe(subject, depth, names, bar)
        content = document(subject, depth, findings)
        path = self.free_folder(subject, content) / FILE
        write(path, content)
        pictures = draw(findings, path.parent)
        console = Console()
        table = table_of(findings)
        if table.row_count:
            console.print(table)
        for text in (*sentences(findings, depth), *(f"Note: {x}" for x in findings.notes)):
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        for file in (path, *pictures):
            print(file)
        if findings.interrupted:
            say("vasso: stopped; what had been measured is kept")
            return INTERRUPTED
        return 0 if any(findings.results.values()) else FAILED

    def free_folder(self, subject: Subject, probe: Mapping[str, Any]) -> Path:
        """The folder to write to: one that holds no probe with more in it."""
        wanted = self.out
        if wanted is None and subject.directory is not None:
            if os.access(subject.directory, os.W_OK):
                wanted = subject.directory / "probe"
            else:
                say(f"vasso: {subject.directory} cannot be written: the probe is not put there")
        wanted = wanted or Path("probes") / subject.name
        from vasso.lab.probe.results import free_folder, reason_to_keep

        found = free_folder(wanted, probe)
        if found != wanted:
            why = reason_to_keep(wanted, probe)
            say(f"vasso: {wanted} has {why}, which is kept: the new probe is in {found}")
        return found

    def amount(self) -> Amount:
        """How much data to use; less with `--quick`."""
        usual = 32 if self.quick else 96
        batches = usual if self.batches is None else self.batches
        if self.quick:
            return Amount(batches, self.batch_size, others=4, samples=256)
        return Amount(batches, self.batch_size)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
