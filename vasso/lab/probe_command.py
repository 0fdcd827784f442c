"""The command `vasso probe`: one model at its weights, looked at from all sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from vasso.lab.place import check_data_root
from vasso.lab.probe_place import FILE, free, worth_keeping
from vasso.lab.subject import Amount, Subject, subject_of
from vasso.lab.usage import say, usage

RHO = 0.05
"""Where neither the run nor the user names one: the default of `SAM` and `VaSSO`."""


@dataclass(frozen=True)
class Probe:
    """Measures a finished run, or a model of yours, at its weights; nothing of it is touched.

    Tells how noisy gradients are, how good the slope of each theta is, whether its adversary is a
    friend of other batches, which rho of VaSSO does what SAM's does, and how sharp the loss is.
    Ctrl-C keeps what has been measured.

    Try:
        vasso train --rho 0.1
        vasso probe digits-mlp-vasso-rho-0.1-s0-8b85e915b8 --quick
        vasso probe my_module:my_function --rho 0.1 --thetas 1 0.4
        vasso probe runs/some-run --only snr,friendliness --also landscape

    my_function takes no arguments and returns model, loss, loader; or these and a loader of other
    batches; or a dict with the keys model, loss, loader, others, rho.
    """

    subject: tyro.conf.Positional[str]
    """id of a finished run, its folder, or module:function"""
    only: str = ""
    """measures, by commas: snr, slope, friendliness, radius, sharpness, eigenvalues, trace"""
    also: str = ""
    """further ones, which take longer: density, landscape"""
    rho: float | None = None
    """radius of SAM; else that of the run or of your function, else 0.05"""
    thetas: tuple[float, ...] = (1.0, 0.9, 0.4, 0.2)
    """slopes to look at; 1 is SAM's"""
    batches: int | None = None
    """batches whose gradients make slopes: 96, with --quick 32"""
    batch_size: int | None = None
    """samples in each; that of training if not given"""
    quick: bool = False
    """a first look: fewer batches, adversaries, radii and samples"""
    out: Path | None = None
    """folder for probe.json and pictures; else probe in the folder of the run, where `vasso report`
    finds it, or probes/<name> for a function of yours. What lies there is replaced by a probe of
    the same subject with all of its measures, from as many batches; beside any other probe the new
    one goes to a folder of its own, such as probe-2"""
    store: Path = Path("runs")
    """directory of runs"""
    data_root: Path | None = None
    """directory of data sets; else VASSO_DATA, else the cache of the user"""
    accelerator: str = "auto"
    """for runs: cpu, cuda, mps or tpu; auto takes the best there is"""

    def __call__(self) -> int:
        """Measures, prints and writes.

        Returns:
            The exit code.
        """
        from vasso.lab.fitness import fit  # scipy and matplotlib: not for `vasso --help`
        from vasso.lab.probe_bar import Bar
        from vasso.lab.probe_pictures import draw
        from vasso.lab.probe_report import document, sentences, table_of, write
        from vasso.lab.probing import Depth, chosen, probe

        with usage():
            check_data_root(self.data_root)
            names = chosen(_words(self.only), _words(self.also))
            places = {"store": self.store, "data": self.data_root, "accelerator": self.accelerator}
            subject = fit(subject_of(self.subject, self.amount(), **places))  # type: ignore[arg-type]
            rho = self.rho if self.rho is not None else subject.rho or RHO
            depth = Depth(rho=rho, thetas=self.thetas)
        depth = depth.quick() if self.quick else depth
        with Bar() as bar:
            findings = probe(subject, depth, names, bar)
        content = document(subject, depth, findings)
        path = self.kept(self.place(subject), content) / FILE
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
            return 130
        return 0 if findings.results else 1

    def place(self, subject: Subject) -> Path:
        """Where results go.

        Args:
            subject: what is probed.

        Returns:
            A folder.
        """
        if self.out is not None:
            return self.out
        return Path("probes") / subject.name if subject.home is None else subject.home / "probe"

    def kept(self, folder: Path, probe: Mapping[str, Any]) -> Path:
        """Where a probe is kept, and says so if that is not where it was to go.

        Args:
            folder: where it was to go.
            probe: what is to be written.

        Returns:
            A folder without a probe that says more.
        """
        found = free(folder, probe)
        if found != folder:
            why = worth_keeping(folder, probe)
            say(f"vasso: {folder} has {why}, which stays: this one is in {found}")
        return found

    def amount(self) -> Amount:
        """How much data is asked for.

        Returns:
            Less with `quick`.
        """
        usual = 32 if self.quick else 96
        batches = usual if self.batches is None else self.batches
        if self.quick:
            return Amount(batches, self.batch_size, others=4, samples=256)
        return Amount(batches, self.batch_size)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
