"""The two networks whose scaling is measured, in PyTorch; only ranks import this, for it needs torch.

The small one is MNIST's, too small to gain from sharing. The larger one is a language model with the parts that
are usual today: RMS norms, causal attention, gated feed-forward, and one matrix for words in and out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Batch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Attention, then a gated feed-forward, each with its norm and a way around."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.into = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next (batch, length, width)."""
        batch, length, width = x.shape
        parts = self.into(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, width / heads)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        gate, content = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * content)


class Transformer(nn.Module):  # type: ignore[misc]
    """A causal language model; it returns the mean loss of predicting every next word."""

    def __init__(self, layers: int, width: int, hidden: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, hidden, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        for one in self.modules():
            if isinstance(one, nn.Linear | nn.Embedding):
                nn.init.normal_(one.weight, std=0.02)

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, () float32, of words and the words that follow, both (batch, length) int64."""
        x = self.words(words) + self.places.weight[: words.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores = functional.linear(self.norm(x), self.words.weight)  # (batch, length, vocabulary)
        return functional.cross_entropy(scores.flatten(0, 1), following.flatten())


class Digits(nn.Module):  # type: ignore[misc]
    """784-512-512-10; it returns the mean loss."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
        self.layers = nn.Sequential(*layers)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, () float32, of pixels (batch, 784) float32 and labels (batch,) int64."""
        return functional.cross_entropy(self.layers(pixels), labels)


def network(name: str, size: dict[str, int], seed: int) -> nn.Module:
    """Return `transformer` or `mnist`, with the same first weights for the same seed."""
    torch.manual_seed(seed)
    return Transformer(**size) if name == "transformer" else Digits()


def optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """Return the rule of this network: AdamW, fused on GPUs, or RMSprop as Keras has it."""
    if name == "transformer":
        on_gpu = next(model.parameters()).is_cuda
        return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True if on_gpu else None)
    return torch.optim.RMSprop(model.parameters(), lr=0.001, alpha=0.9, eps=1e-7)


def batch(name: str, size: dict[str, int], count: int, seed: int, device: Any) -> Batch:  # noqa: ANN401  torch.device
    """Return `count` random samples, the same for the same seed: made on the CPU, which is everywhere alike."""
    generator = torch.Generator().manual_seed(seed)
    if name == "transformer":
        shape = (count, size["length"] + 1)
        words = torch.randint(size["vocabulary"], shape, generator=generator).to(device)
        return words[:, :-1].contiguous(), words[:, 1:].contiguous()
    pixels = torch.rand(count, 784, generator=generator)
    return pixels.to(device), torch.randint(10, (count,), generator=generator).to(device)
