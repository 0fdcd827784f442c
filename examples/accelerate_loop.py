"""accelerate with VaSSO: accumulation over two micro-batches, clipping. Seconds on a CPU."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from vasso import VaSSO
from vasso.integrations.accelerate import Window

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
data = DataLoader(TensorDataset(x[:1297], y[:1297]), batch_size=64, shuffle=True)

accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
opt = VaSSO(base, rho=0.1, theta=0.4, model=model)
model, opt, data = accelerator.prepare(model, opt, data)
window = Window(accelerator, model, opt)  # instead of accelerator.backward


def compute_loss(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(inputs), labels)


for epoch in range(5):
    for batch in data:
        with accelerator.accumulate(model):
            loss = window.backward(compute_loss, *batch)  # at w, to be logged
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
    accelerator.print(f"epoch {epoch + 1}  loss of the last batch {loss.item():.4f}")

steps = opt.param_groups[0]["vasso_step"]
accelerator.print(f"{window.optimizer.cost:.0f} gradients for {steps} steps")
