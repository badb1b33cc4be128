"""What entropies cost in TRL's trainer, the memory they need, and the small transformer's speed."""

from __future__ import annotations

import re
import statistics
import time
from pathlib import Path

CASES = {
    "step-reused": {
        "text": "processor time of a training step with two updates on a batch, 16 completions"
        " x 32 tokens, Qwen2 of width 128 and 4 layers",
        "peer": "TRL 1.16.0 GRPOTrainer; 0.95 means that GTPO takes 5% more time",
        "requirements": "trl.txt",
        "target": 0.952,
        "repeats": 5,
        "quantity": "processor seconds",
    },
    "step-plain": {
        "text": "processor time of a training step with one update on a batch, the same model",
        "peer": "TRL 1.16.0 GRPOTrainer; 0.74 means that GTPO takes 35% more time",
        "requirements": "trl.txt",
        "target": 0.741,
        "repeats": 5,
        "quantity": "processor seconds",
    },
    "entropy-memory": {
        "text": "peak memory for the entropies of 4096 tokens, vocabulary 151936, bfloat16 logits",
        "peer": "torch: softmax of all logits in float32",
        "requirements": None,
        "target": 2.0,
        "repeats": 3,
        "quantity": "bytes",
    },
    "generation": {
        "text": "128 samples of 40 tokens, transformer of width 64 with 2 layers",
        "peer": "transformers 5.20.2 generate on a Qwen2 of that size, as TRL 1.16.0 calls it",
        "requirements": "trl.txt",
        "target": 1.0,
        "repeats": 5,
    },
}
TOKENS, VOCABULARY = 4096, 151_936
ROWS, LENGTH = 128, 40
_KEPT: dict[str, object] = {}


def inputs(path: Path) -> None:
    if path.name == "entropy-memory":
        return
    from rl_curriculum.gtpo.character_model import character_model

    wide = path.name != "generation"
    model, tokenizer = character_model(
        "0123456789+=;#~.", width=128 if wide else 64, layers=4 if wide else 2
    )
    for part in (model, tokenizer):
        part.save_pretrained(path / "model")


def ours(path: Path) -> dict[str, float]:
    if path.name == "entropy-memory":
        from rl_curriculum.gtpo import token_entropy

        return _peak(token_entropy)
    if path.name == "generation":
        return _generate_ours()
    from rl_curriculum.gtpo.trl import GTPOConfig, GTPOTrainer

    return _step(path, GTPOTrainer, GTPOConfig)


def peer(path: Path) -> dict[str, float]:
    if path.name == "entropy-memory":
        import torch

        def plain(logits):
            logp = logits.float().log_softmax(-1)
            return -(logp.exp() * logp).sum(-1)

        with torch.no_grad():
            return _peak(plain)
    if path.name == "generation":
        return _generate_theirs(path)
    from trl import GRPOConfig, GRPOTrainer

    return _step(path, GRPOTrainer, GRPOConfig)


def _step(path: Path, trainer_class, config_class) -> dict[str, float]:
    """The median step of a run; at learning rate 0 both sides train on the same completions."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(path / "model", dtype=torch.float32)
    # An improbable end: completions have their full length.
    with torch.no_grad():
        model.lm_head.weight[1] = 0
    reused = path.name == "step-reused"
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            times.append(time.process_time())

    trainer = trainer_class(
        model,
        lambda completions, **_: [float(sum(map(ord, c)) % 2) for c in completions],
        config_class(
            output_dir=str(path / "out"),
            per_device_train_batch_size=16,
            num_generations=8,
            num_iterations=2 if reused else 1,
            max_completion_length=32,
            generation_kwargs={"min_new_tokens": 32},
            max_steps=24,
            learning_rate=0.0,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            mask_truncated_completions=False,
            seed=0,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["12+34=", "5+6="] * 8}),
        processing_class=AutoTokenizer.from_pretrained(path / "model", padding_side="left"),
        callbacks=[Clock()],
    )
    trainer.train()
    # Steps in pairs, since with two iterations only every other one generates.
    pairs = [(b - a) / 2 for a, b in zip(times[3:-2:2], times[5::2], strict=True)]
    return {"processor seconds": statistics.median(pairs)}


def _peak(function) -> dict[str, float]:
    """How far the resident memory rises above what the logits take."""
    import torch

    torch.set_num_threads(1)
    if "logits" not in _KEPT:
        generator = torch.Generator().manual_seed(0)
        logits = torch.empty(TOKENS, VOCABULARY, dtype=torch.bfloat16)
        for start in range(0, TOKENS, 256):
            logits[start : start + 256] = torch.randn(256, VOCABULARY, generator=generator)
        _KEPT["logits"] = logits
    logits = _KEPT["logits"]
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    start = time.perf_counter()
    entropy = function(logits)
    seconds = time.perf_counter() - start
    return {
        "bytes": float(_resident("VmHWM") - before),
        "seconds": seconds,
        "mean": float(entropy.mean()),
    }


def _resident(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", status)[1])


def _generate_ours() -> dict[str, float]:
    import torch

    from rl_curriculum.gtpo import TinyTransformer, encode
    from rl_curriculum.gtpo.tiny import END

    torch.set_num_threads(1)
    model = TinyTransformer(max_length=LENGTH + 5)
    # A direction that every hidden state has and that only the end's logit reads.
    with torch.no_grad():
        model.norm.weight[0], model.norm.bias[0] = 0.0, 1.0
        model.head.weight[:, 0] = 0.0
        model.head.weight[END, 0] = -100.0
    prompts = encode(["1234="]).expand(ROWS, -1)
    start = time.perf_counter()
    drawn = model.sample(prompts, LENGTH, torch.Generator().manual_seed(0))
    seconds = time.perf_counter() - start
    assert int(drawn.mask.sum()) == ROWS * LENGTH
    return {"seconds": seconds, "tokens per second": ROWS * LENGTH / seconds}


def _generate_theirs(path: Path) -> dict[str, float]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(path / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path / "model", padding_side="left")
    batch = tokenizer(["1234="] * ROWS, return_tensors="pt")
    settings = GenerationConfig(
        max_new_tokens=LENGTH,
        min_new_tokens=LENGTH,
        do_sample=True,
        pad_token_id=0,
        eos_token_id=1,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        disable_compile=True,
    )
    torch.manual_seed(0)
    start = time.perf_counter()
    with torch.no_grad():
        ids = model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            generation_config=settings,
        )
    seconds = time.perf_counter() - start
    assert ids.shape == (ROWS, batch.input_ids.shape[1] + LENGTH)
    return {"seconds": seconds, "tokens per second": ROWS * LENGTH / seconds}
