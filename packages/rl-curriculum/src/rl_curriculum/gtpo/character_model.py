"""A small language model over characters, made on the spot, for trying trainers without a hub."""

from __future__ import annotations

from typing import Any, Literal


def character_model(
    characters: str,
    kind: Literal["qwen2", "llama"] = "qwen2",
    *,
    width: int = 32,
    layers: int = 2,
    heads: int = 4,
    seed: int = 0,
) -> tuple[Any, Any]:
    """A randomly initialised causal language model and its tokenizer.

    Parameters
    ----------
    characters
        The vocabulary; padding, end and an unknown character are added.
    kind
        The architecture, `transformers`' `Qwen2ForCausalLM` or `LlamaForCausalLM`.
    width, layers, heads
        Sizes; half as many heads of keys and values.
    seed
        Of the weights. The global generator is left as it was.

    Returns
    -------
    The model and a `PreTrainedTokenizerFast` that pads on the left. Both have `save_pretrained`.

    Raises
    ------
    ValueError
        If `kind` is unknown, `characters` is empty, or sizes do not fit.

    Examples
    --------
    >>> model, tokenizer = character_model("0123456789+=")
    >>> tokenizer.decode(tokenizer("3+4=").input_ids)
    '3+4='
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    if kind not in ("qwen2", "llama"):
        raise ValueError(f"kind is {kind!r}; allowed: 'qwen2' or 'llama'")
    if not characters:
        raise ValueError("characters is empty; allowed: at least one")
    if heads < 2 or heads % 2 or width % heads:
        raise ValueError(
            f"width is {width} and heads {heads}; allowed: an even number of heads that divides it"
        )
    names = ["<pad>", "<eos>", "<unk>", *dict.fromkeys(characters)]
    words = {name: number for number, name in enumerate(names)}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=raw,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    sizes: dict[str, Any] = {
        "vocab_size": len(names),
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**sizes)), tokenizer  # type: ignore[no-untyped-call]
        return LlamaForCausalLM(LlamaConfig(**sizes)), tokenizer  # type: ignore[no-untyped-call]
