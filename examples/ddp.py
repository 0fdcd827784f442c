"""VaSSO on several processes with DDP: torchrun --nproc-per-node 2 examples/ddp.py [local]."""

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vasso import VaSSO

sync = sys.argv[1] if len(sys.argv) > 1 else "global"  # one adversary for all ranks, or "local"
dist.init_process_group("gloo")  # on GPUs "nccl", and a device for each rank
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)

net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
model = DistributedDataParallel(net)
base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
opt = VaSSO(base, rho=0.1, theta=0.4, model=model, sync=sync)  # the wrapped model

for batch in torch.randperm(len(x))[:1728].split(64):
    mine = batch.chunk(ranks)[rank]  # shares of equal size

    def closure(mine: torch.Tensor = mine) -> torch.Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
        loss.backward()
        return loss

    loss = opt.step(closure)  # at w, of this rank's share

weights = nn.utils.parameters_to_vector(net.parameters()).detach()
others = [torch.empty_like(weights) for _ in range(ranks)]
dist.all_gather(others, weights)
if rank == 0:
    apart = max((other - weights).abs().max().item() for other in others)
    print(f"{ranks} ranks, {opt.cost:.0f} gradients each, replicas {apart} apart", flush=True)
dist.destroy_process_group()
