"""VaSSO with FSDP2, weights and slope in shards: torchrun --nproc-per-node 2 examples/fsdp2.py."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from vasso import VaSSO

dist.init_process_group("gloo")  # on GPUs "nccl", and a device for each rank
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)

model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 10))
mesh = init_device_mesh("cpu", (ranks,))
for part in (model[0], model[3], model):  # the layers, then the root
    fully_shard(part, mesh=mesh)
base = torch.optim.AdamW(model.parameters(), lr=1e-3)  # of the shards, so after fully_shard
opt = VaSSO(base, rho=0.1, theta=0.4, clip_norm=1.0, model=model)  # model= lets us reshard

for batch in torch.randperm(len(x))[:1728].split(64):
    mine = batch.chunk(ranks)[rank]  # shares of equal size

    def closure(mine: torch.Tensor = mine) -> torch.Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
        loss.backward()
        return loss

    loss = opt.step(closure)  # at w, of this rank's share

kept = sum(p.to_local().numel() for p in model.parameters())
everything = sum(p.numel() for p in model.parameters())
if rank == 0:
    print(f"{ranks} ranks, {opt.cost:.0f} gradients each", end=", ")
    print(f"{kept} of {everything} weights on this one", flush=True)
dist.destroy_process_group()
