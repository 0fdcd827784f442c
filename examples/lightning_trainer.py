"""VaSSO in Lightning's Trainer: two lines beyond plain SGD. Seconds on a CPU.

python examples/lightning_trainer.py
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from vasso import VaSSO
from vasso.integrations.lightning import SharpnessAwareCallback


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)
        )

    def training_step(self, batch):
        x, y = batch
        loss = cross_entropy(self.model(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)  # the loss at w, once per batch
        return loss

    def configure_optimizers(self):
        base = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return VaSSO(base, rho=0.1, theta=0.4, model=self)


torch.manual_seed(0)
x = torch.randn(512, 2)
data = DataLoader(TensorDataset(x, (x.norm(dim=1) > 1.2).long()), batch_size=32, shuffle=True)
trainer = Trainer(
    max_epochs=5,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    callbacks=[SharpnessAwareCallback()],
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Net(), data)
opt, loss = trainer.optimizers[0], trainer.callback_metrics["loss"]
print(f"loss {loss:.3f} after {trainer.global_step} steps, {opt.cost:.0f} gradients")
