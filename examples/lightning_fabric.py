"""VaSSO in a loop with Fabric: the same lines for every precision. Seconds on a CPU.

python examples/lightning_fabric.py
"""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from vasso import VaSSO
from vasso.integrations.lightning import scaler_of

fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
torch.manual_seed(0)
x = torch.randn(512, 2)
data = DataLoader(TensorDataset(x, (x.norm(dim=1) > 1.2).long()), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
opt = VaSSO(base, rho=0.1, theta=0.4, model=model)
model, opt = fabric.setup(model, opt)
data = fabric.setup_dataloaders(data)

for _epoch in range(5):
    for x, y in data:
        opt.zero_grad()
        loss = cross_entropy(model(x), y)
        fabric.backward(loss)
        with opt.ascended(scaler=scaler_of(fabric)) as up:  # a scaler with "16-mixed", else None
            if up:
                fabric.backward(cross_entropy(model(x), y))
        fabric.clip_gradients(model, opt, max_norm=1.0)
        opt.step()
fabric.print(f"loss {loss.item():.3f} after {opt.cost:.0f} gradients")
