"""`vasso advise`: whether an averaged slope helps, which rho to start with, what a step costs."""

import shlex
from dataclasses import dataclass
from textwrap import fill

import tyro

from vasso.lab.cli.errors import usage_errors
from vasso.lab.cli.list import WIDTH
from vasso.lab.experiment.method import BASES
from vasso.lab.probe.target import Amount, check_loss, imported_function, of_function
from vasso.lab.schema import name_of


@dataclass(frozen=True)
class AdviseCommand:
    """Says whether VaSSO helps a model of yours, which rho to start with, what a step costs.

    It measures for a minute or two and ends with the line to paste; if the numbers are too
    uncertain, with the command that gives it more batches. Nothing of the model is changed.

    Try:
        vasso advise my_module:my_function
        vasso advise my_module:my_function --base AdamW
        vasso advise my_module:my_function --rho 0.1 --theta 0.2 --batches 192

    my_function takes no arguments and returns model, loss, loader, as for `vasso probe`; best a
    model after some epochs of training.
    """

    function: tyro.conf.Positional[str]
    """module:function"""
    base: str = "SGD"
    """your optimizer, SGD or AdamW, for the cost of a step"""
    rho: float | None = None
    """a rho that suits SAM here; default: that of your function, else found from 0.05 on"""
    theta: float = 0.4
    """weight of the newest gradient in the averaged slope"""
    batches: int = 96
    """batches whose gradients are measured"""

    def __call__(self) -> int:
        from vasso.lab.cli.display import ProbeBar
        from vasso.lab.probe.advice import advise

        with usage_errors():
            base = name_of("base", self.base, BASES)
            amount = Amount(self.batches, others=2)
            subject = of_function(self.function, imported_function(self.function), amount)
            check_loss(subject)
            with ProbeBar() as bar:
                found = advise(subject, base, self.rho, self.theta, bar)
        for name, answer in (("noise", found.noise), ("rho", found.rho)):
            print(fill(f"{name:<9}{answer.text}", WIDTH, subsequent_indent=9 * " "))
        first = found.costs[0]
        for c in found.costs:
            times = f"{1e3 * c.seconds:>8.1f} ms{c.seconds / first.seconds:>6.1f} times"
            memory = f"{c.gradients:>4g} gradients{times}{c.memory / 1e6:>9.3g} MB"
            print(f"a step   {c.name:<20}{memory}")
        print("         half batches: halve the loader's batch size, keep the number of steps")
        print("         MB: most at any moment of a step, without the model\n")
        if found.code:
            print(f"opt = {found.code}  # base is your optimizer")
            return 0
        words = ["vasso", "advise", self.function, "--batches", str(subject.count + found.more)]
        print(shlex.join([*words, *self._given()]))
        return 0

    def _given(self) -> list[str]:
        """The other options, as they were given."""
        given = {"base": self.base, "rho": self.rho, "theta": self.theta}
        default = {"base": "SGD", "rho": None, "theta": 0.4}
        pairs = ((f"--{k}", str(v)) for k, v in given.items() if v != default[k])
        return [word for pair in pairs for word in pair]
