"""GTPO's trainer with vLLM on the CPU as the engine that samples, in the trainer's process."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]
pytest.importorskip("vllm")


def test_completions_and_weights_go_through_vllm(tmp_path, monkeypatch) -> None:
    # On the CPU vLLM replaces weights by packed copies when it has loaded them, and then has no
    # parameters left that TRL, which writes into the running engine's, could update. Without these
    # kernels it keeps the weights.
    monkeypatch.setattr("vllm._custom_ops._supports_onednn", False)
    monkeypatch.setattr("vllm.model_executor.layers.utils.check_cpu_sgl_kernel", lambda *_: False)
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rl_curriculum.gtpo import gtpo_advantages
    from rl_curriculum.gtpo.character_model import character_model
    from rl_curriculum.gtpo.trl import GTPOConfig, GTPOTrainer

    spec = importlib.util.spec_from_file_location(
        "gtpo_trl_helpers", Path(__file__).with_name("trl_helpers.py")
    )
    helpers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpers)

    # vLLM's attention on the CPU wants heads of at least 32.
    model, tokenizer = character_model(helpers.CHARACTERS, width=128, heads=4)
    with torch.no_grad():
        model.lm_head.weight *= 20
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    trainer = helpers.recorder(GTPOTrainer)(
        AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32),
        helpers.reward,
        GTPOConfig(
            **helpers.settings(
                tmp_path / "out",
                alpha1=0.5,
                alpha2=0.5,
                use_vllm=True,
                vllm_mode="colocate",
                vllm_max_model_length=64,
                vllm_gpu_memory_utilization=0.3,
            )
        ),
        train_dataset=Dataset.from_dict({"prompt": helpers.PROMPTS * 4}),
        processing_class=AutoTokenizer.from_pretrained(tmp_path / "model", padding_side="left"),
    )
    before = helpers.parameters(trainer).clone()
    trainer.train()
    assert not torch.allclose(helpers.parameters(trainer), before)
    # The parent scores what vLLM has sampled, and entropies come with that: no further pass.
    assert trainer.passes == 3 + 3
    decode = trainer.processing_class.decode
    contrast = 0
    for batch in trainer.scored:
        live = batch["completion_mask"].bool()
        # After an update too the engine samples from the trainer's weights.
        gap = (batch["sampling_per_token_logps"] - batch["old_per_token_logps"])[live]
        assert float(gap.abs().mean()) < 0.05
        rewards = torch.tensor(
            helpers.reward(
                [
                    decode(ids[m], skip_special_tokens=True)
                    for ids, m in zip(batch["completion_ids"], live, strict=True)
                ]
            )
        )
        expected = gtpo_advantages(
            rewards, batch["entropy"], live, 4, alpha=(0.5, 0.5), std_eps=1e-4, ddof=1
        )
        torch.testing.assert_close(batch["advantages"], expected, rtol=1e-4, atol=1e-4)
        contrast += bool((expected != 0).any())
    assert contrast > 0
    # The first weights would not do for the last batch.
    batch = trainer.scored[-1]
    first = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    with torch.no_grad():
        logp = first(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)
    width = batch["completion_ids"].shape[1]
    stale = logp[:, -width - 1 : -1].gather(-1, batch["completion_ids"][..., None])[..., 0]
    live = batch["completion_mask"].bool()
    assert float((batch["sampling_per_token_logps"] - stale)[live].abs().mean()) > 0.1
