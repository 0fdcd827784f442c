"""VaSSO around SGD, on scikit-learn's digits: wrap, closure, step. Takes seconds on a CPU."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from vasso import VaSSO

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
train, test = torch.randperm(len(x)).split([1297, 500])

model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
opt = VaSSO(base, rho=0.1, theta=0.4, model=model)  # model= holds BatchNorm still at w + epsilon

for epoch in range(10):
    for batch in train[torch.randperm(len(train))].split(64):

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            return loss

        loss = opt.step(closure)  # calls it at w and at w + epsilon, returns the loss at w
    print(f"epoch {epoch + 1:2}  loss of the last batch {loss.item():.4f}")

model.eval()
with torch.no_grad():
    accuracy = (model(x[test]).argmax(1) == y[test]).float().mean().item()
print(f"test accuracy {accuracy:.1%} after {opt.cost:.0f} gradient evaluations")
