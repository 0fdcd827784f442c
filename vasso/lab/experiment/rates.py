"""Learning rate schedules: the rate is a plain function of the step, so nothing has to be saved.

| schedule       | lr at step t of T, after the warm-up of W steps             |
|----------------|-------------------------------------------------------------|
| `constant`     | lr                                                          |
| `cosine`       | lr_end + (lr - lr_end) (1 + cos(pi (t - W) / (T - W))) / 2  |
| `linear`       | lr + (lr_end - lr) (t - W) / (T - W)                        |
| `inverse-sqrt` | lr sqrt(W / t)                                              |

During the warm-up lr (t + 1) / W. If the rate changes per epoch, t is that of the epoch's first
step.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

ScheduleName: TypeAlias = Literal["constant", "cosine", "linear", "inverse-sqrt"]


@dataclass(frozen=True)
class LearningRate:
    """The learning rate over a run: a function of the number of completed steps.

    `lr` is the largest, `lr_end` the last of cosine and linear. With `per_epoch` steps from change
    to change, 1 changes at every step.

    Example:
        >>> rate = LearningRate("cosine", lr=0.1, total=100)
        >>> rate(0), round(rate(50), 12), round(rate(100), 12)
        (0.1, 0.05, 0.0)
    """

    schedule: ScheduleName
    lr: float
    total: int
    lr_end: float = 0.0
    warm_up: int = 0
    per_epoch: int = 1

    def __call__(self, step: int) -> float:
        """The learning rate of the step after so many completed ones."""
        if step < self.warm_up:
            return self.lr * (step + 1) / self.warm_up
        t = step - step % self.per_epoch
        share = max(t - self.warm_up, 0) / max(self.total - self.warm_up, 1)
        if self.schedule == "cosine":
            return self.lr_end + (self.lr - self.lr_end) * (1 + math.cos(math.pi * share)) / 2
        if self.schedule == "linear":
            return self.lr + (self.lr_end - self.lr) * share
        if self.schedule == "inverse-sqrt":
            return self.lr * math.sqrt(max(self.warm_up, 1) / max(t, self.warm_up, 1))
        return self.lr
