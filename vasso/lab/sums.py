"""What is added up while a run trains? Losses, seconds, images, rises; the device is not asked."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vasso.records import StepSummary


@dataclass
class Sums:
    """What has been added up: of this epoch, and of the whole run.

    Attributes:
        loss: sum of the losses of the epoch's steps, as the optimizer returned them.
        steps: how many.
        seconds: of the epoch's steps, tests and checkpoints not counted.
        images: of the epoch; or pieces of sentences.
        run_seconds: of all steps of the run.
        run_images: of the run.
        rise: sum of the rises of the loss from w to the adversary, over the epoch's climbs.
        climbs: steps of the epoch that climbed and knew both losses.
    """

    loss: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    steps: int = 0
    seconds: float = 0.0
    images: int = 0
    run_seconds: float = 0.0
    run_images: int = 0
    rise: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    climbs: int = 0

    def add(self, loss: Tensor, images: int, seconds: float) -> None:
        """Takes in a step; without asking the device for its number.

        Args:
            loss: what the step returned.
            images: that it saw.
            seconds: that it took.
        """
        self.loss = self.loss.to(loss.device) + loss.detach().double()
        self.steps += 1
        self.seconds += seconds
        self.run_seconds += seconds
        self.images += images
        self.run_images += images

    def add_rise(self, last: StepSummary | None) -> None:
        """Takes in how much higher the loss was at the adversary; likewise.

        Args:
            last: what the optimizer tells of its step, None if it tells nothing.
        """
        if last is None or not last.climbed or last.loss_at != "w" or last.perturbed_loss is None:
            return
        rise = (last.perturbed_loss - last.loss).detach().double()
        self.rise = self.rise.to(rise.device) + rise
        self.climbs += 1

    def next_epoch(self) -> None:
        """Begins the sums of an epoch anew."""
        self.loss, self.steps, self.seconds, self.images = torch.zeros_like(self.loss), 0, 0.0, 0
        self.rise, self.climbs = torch.zeros_like(self.rise), 0
