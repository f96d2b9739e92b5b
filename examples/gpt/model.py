"""A small GPT: token and position embeddings, blocks of attention and a two-layer network, a tied head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everybody calls it F


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        # Without biases: softmax ignores a bias of the keys, so its gradient would be nothing but rounding.
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.queries_keys_values(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    """Attention, then a network for each position; both add to what comes in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, dropout), nn.Dropout(dropout))
        self.network = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        attended = x + self.attention(x)
        result: Tensor = attended + self.network(attended)
        return result


class GPT(nn.Module):
    """Predicts the next of `vocabulary` tokens from up to `context` before it."""

    def __init__(
        self, vocabulary: int, context: int, layers: int, width: int, heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # What is added to the stream of a position starts smaller the more often it is added.
                added = name.endswith(("out.weight", "network.3.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if added else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token at each position."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy in nats of predicting each of `tokens` but the first."""
        scores = self(tokens[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
