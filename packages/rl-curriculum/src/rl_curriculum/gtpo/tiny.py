"""A small transformer that samples with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .checks import require_tensors, require_whole
from .tasks import CHARACTERS

PAD = 0
_CODE = {character: number for number, character in enumerate(CHARACTERS, 1)}
_TEXT = ["", *CHARACTERS]
END = _CODE["."]


def encode(texts: Sequence[str]) -> Tensor:
    """Token numbers of texts, (n, longest), 0 after the end.

    Raises
    ------
    TypeError, ValueError
        If `texts` is one text, or a text has a character that is not in `CHARACTERS`.

    Examples
    --------
    >>> encode(["01=", "7."])
    tensor([[ 1,  2, 12],
            [ 8, 16,  0]])
    """
    if isinstance(texts, str):
        raise TypeError(f"texts is {texts!r}; allowed: a list of texts")
    try:
        rows = [[_CODE[c] for c in text] for text in texts]
    except KeyError as error:
        raise ValueError(f"a text has {error}; allowed: {CHARACTERS!r}") from None
    width = max(map(len, rows), default=0)
    padded = [row + [PAD] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.long).view(len(rows), width)


def decode(tokens: Tensor) -> list[str]:
    """Texts of token numbers (n, T).

    Raises
    ------
    TypeError, ValueError
        If `tokens` is no such tensor, or has another number than a token's.

    Examples
    --------
    >>> decode(encode(["01=", "7."]))
    ['01=', '7.']
    """
    require_tensors(tokens=tokens)
    if tokens.ndim != 2 or not ((tokens >= 0) & (tokens < len(_TEXT))).all():
        raise ValueError(
            f"tokens has shape {tuple(tokens.shape)}; allowed: (n, T), of 0 to {len(_TEXT) - 1}"
        )
    return ["".join(_TEXT[t] for t in row) for row in tokens.tolist()]


@dataclass(frozen=True)
class Samples:
    """Completions and what the policy knew when it drew them, (B, T) each.

    `mask` is true up to and including the first end; `logp` is the log-probability of the token
    drawn, `entropy` that of the distribution it was drawn from, in nats.
    """

    tokens: Tensor
    logp: Tensor
    entropy: Tensor
    mask: Tensor


class TinyTransformer(nn.Module):
    """A pre-normalised decoder with learned positions over the characters of the tasks.

    Parameters
    ----------
    width, layers, heads
        Sizes; `width` is a multiple of `heads`.
    max_length
        The longest prompt with its completion.
    seed
        Of the weights.

    Raises
    ------
    TypeError, ValueError
        If a size is no whole number from 1, or `width` is no multiple of `heads`.

    Examples
    --------
    >>> model = TinyTransformer(32, 1, 2)
    >>> model(encode(["12="])).shape
    torch.Size([1, 3, 17])
    """

    def __init__(
        self,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        max_length: int = 32,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_whole(1, width=width, layers=layers, heads=heads, max_length=max_length)
        if width % heads:
            raise ValueError(f"width is {width} and heads {heads}; allowed: a multiple of heads")
        self.heads, self.max_length = heads, max_length
        self.token = nn.Embedding(len(_TEXT), width)
        self.position = nn.Embedding(max_length, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(_TEXT), bias=False)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = 0.02 if name.startswith(("token", "position")) else width**-0.5
                nn.init.normal_(parameter, std=scale, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self, tokens: Tensor, cache: list[tuple[Tensor, Tensor]] | None = None, past: int = 0
    ) -> Tensor:
        """Logits (B, T, V) of the next tokens; with a cache, T tokens after `past` others.

        The padding has the logit -inf: it is never drawn.
        """
        hidden = self.token(tokens) + self.position.weight[past : past + tokens.shape[1]]
        for number, block in enumerate(self.blocks):
            hidden = block(hidden, None if cache is None else cache[number], past)
        logits: Tensor = self.head(self.norm(hidden))
        never = torch.zeros(logits.shape[-1], device=logits.device, dtype=logits.dtype)
        never[PAD] = -torch.inf
        return logits + never

    @torch.no_grad()
    def sample(self, prompts: Tensor, max_new_tokens: int, generator: torch.Generator) -> Samples:
        """Completions of prompts (B, P) of one length, until each has ended or the limit.

        Raises
        ------
        ValueError
            If prompt and completion are longer than the model's positions.
        """
        rows, width = prompts.shape
        if width + max_new_tokens > self.max_length:
            raise ValueError(
                f"a prompt of {width} and max_new_tokens {max_new_tokens}; "
                f"allowed: {self.max_length} together"
            )
        size = (rows, self.heads, width + max_new_tokens, self.token.weight.shape[1] // self.heads)
        cache = [
            (self.token.weight.new_empty(size), self.token.weight.new_empty(size))
            for _ in self.blocks
        ]
        columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        going = torch.ones(rows, dtype=torch.bool, device=prompts.device)
        step, past = prompts, 0
        while len(columns) < max_new_tokens and bool(going.any()):
            logp = self(step, cache, past)[:, -1].float().log_softmax(-1)
            past += step.shape[1]
            p = logp.exp()
            entropy = -(p * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)
            drawn = torch.multinomial(p, 1, generator=generator)
            columns.append(
                (
                    torch.where(going, drawn[:, 0], PAD),
                    torch.where(going, logp.gather(1, drawn)[:, 0], 0),
                    torch.where(going, entropy, 0),
                    going,
                )
            )
            going = going & (drawn[:, 0] != END)
            step = drawn
        return Samples(*(torch.stack(column, 1) for column in zip(*columns, strict=True)))

    def score(self, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies (B, T) of completions, with gradients."""
        width = prompts.shape[1]
        logits = self(torch.cat([prompts, tokens[:, :-1]], 1))[:, width - 1 :]
        logp = logits.float().log_softmax(-1)
        finite = logp.clamp(min=torch.finfo(logp.dtype).min)
        entropy = -(finite.exp() * finite).sum(-1)
        # Padding after the end has no probability; whoever masks it must not meet -inf.
        return finite.gather(-1, tokens[..., None])[..., 0], entropy


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None, past: int) -> Tensor:
        rows, length, width = x.shape
        parts = self.attend(self.norm1(x)).view(rows, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[0][:, :, past : past + length] = key
            cache[1][:, :, past : past + length] = value
            key, value = (c[:, :, : past + length] for c in cache)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        x = x + self.project(mixed.transpose(1, 2).reshape(rows, length, width))
        deeper: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return deeper
