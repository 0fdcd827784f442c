"""The command `vasso train`: one run, in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tyro

from vasso.lab.flags import RunFlags
from vasso.lab.place import Place
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.tasks import prepare_data
from vasso.lab.usage import UsageError, usage


@dataclass(frozen=True)
class Train:
    """Trains one run, or goes on with it where it was left; prints the folder of its results.

    Try:
        vasso train
        vasso train --method VaSSO --rho 0.1 --theta 0.4 --wrong 0.5 --epochs 20
        vasso train --method SAM --rho "linear(0.1, 0.02, 200)"
        vasso train --data cifar10 --model resnet8 --size 16 --method LookSAM --set k=5 alpha=0.7
        vasso train --data my_module:my_data --model my_module:my_model --method SGD
    """

    run: tyro.conf.OmitArgPrefixes[RunFlags]
    place: tyro.conf.OmitArgPrefixes[Place] = field(default_factory=Place)

    def __call__(self) -> int:
        """Trains it.

        Returns:
            The exit code.
        """
        from vasso.lab.accelerators import check_accelerator  # Fabric: not for `vasso --help`

        with usage():
            run = Run.of(self.run.as_tables())
            how = self.place.how()
            check_accelerator(self.place.accelerator)
            prepare_data([run.task], self.place.data_root)
            store = Store(self.place.store)
        return train_here(run, store, how)


def train_here(run: Run, store: Store, how: dict[str, Any]) -> int:
    """Trains a run in this process, with a bar.

    Args:
        run: the run.
        store: where its results go.
        how: settings of `vasso.lab.how.How`.

    Returns:
        The exit code.

    Raises:
        UsageError: the settings do not fit the data or this machine.
    """
    from vasso.lab.display import Bars
    from vasso.lab.how import How
    from vasso.lab.train import CannotBeginError, train

    with Bars(1) as bars:
        bars.begun(0, run)

        def watch(step: int, total: int) -> bool:
            bars.at(0, step, total)
            return True

        try:
            result = train(run, store, How(**how), watch)
        except CannotBeginError as trouble:
            raise UsageError(str(trouble)) from trouble
        bars.ended(0, run, "done", result)
    print(store.folder(run.id).path)
    return 0
