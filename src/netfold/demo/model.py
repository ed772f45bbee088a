"""A character model in the shape of GPT: causal attention, residual blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """1.8 million parameters as it stands, with some 80 characters."""

    characters: int
    context: int = 64
    layers: int = 4
    heads: int = 6
    width: int = 192


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width)
        self.project_in = nn.Linear(shape.width, 3 * shape.width)
        self.project_out = nn.Linear(shape.width, shape.width)
        self.norm_hidden = nn.LayerNorm(shape.width)
        self.hidden = nn.Linear(shape.width, 4 * shape.width)
        self.shrink = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self._attend(self.norm_attention(x))
        hidden: torch.Tensor = functional.gelu(self.hidden(self.norm_hidden(x)))
        return x + self.shrink(hidden)  # type: ignore[no-any-return]

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.project_in(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: torch.Tensor = self.project_out(mixed.transpose(1, 2).reshape(x.shape))
        return projected


class CharacterGPT(nn.Module):
    """Characters in, one distribution over the next character per position out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.characters, shape.width)
        self.position = nn.Parameter(torch.zeros(shape.context, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.characters, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Residual branches start small, so that depth does not scale up the sum.
                branch = name.endswith(("project_out.weight", "shrink.weight"))
                scale = 0.02 / (2 * shape.layers) ** 0.5 if branch else 0.02
                nn.init.normal_(parameter, std=scale)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """[batch, length] of character numbers to [batch, length, characters] of logits."""
        x = self.embedding(characters) + self.position[: characters.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def loss_of(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, in nats per character, of [batch, length + 1] characters."""
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
