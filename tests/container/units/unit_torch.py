"""Run by PyTorch's interpreter inside the image: one layer learns, and Keras finds its backend."""

import importlib.metadata

import keras
import torch

assert keras.backend.backend() == "torch"
assert float((torch.ones(64, 32) @ torch.ones(32, 16)).sum()) == 64 * 32 * 16

torch.manual_seed(1)
x = torch.randn(512, 8)
y = (x.sum(dim=1, keepdim=True) > 0).float()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
losses = []
for _ in range(40):
    optimizer.zero_grad()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
assert losses[-1] < losses[0] / 2, losses
print("torch", torch.__version__, "rocmlab", importlib.metadata.version("rocmlab"))
