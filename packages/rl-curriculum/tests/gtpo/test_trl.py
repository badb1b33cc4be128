"""The trainers for TRL against TRL's own, on models that are made here."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

trl = pytest.importorskip("trl")
from peft import LoraConfig  # noqa: E402

from rl_curriculum.gtpo import clipped_loss, grpo_s_advantages, gtpo_advantages  # noqa: E402
from rl_curriculum.gtpo.explain import explain_group, read_groups  # noqa: E402
from rl_curriculum.gtpo.trl import (  # noqa: E402
    GRPOSConfig,
    GRPOSTrainer,
    GTPOConfig,
    GTPOTrainer,
)

_spec = importlib.util.spec_from_file_location(
    "gtpo_trl_helpers", Path(__file__).with_name("trl_helpers.py")
)
helpers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(helpers)
train, parameters = helpers.train, helpers.parameters

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
TRLS_DEVIATION = {"std_eps": 1e-4, "ddof": 1}
PLAIN = {"epsilon_high": 0.28, "disable_dropout": True}


def texts(trainer, batch) -> list[str]:
    decode = trainer.processing_class.decode
    pairs = zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    return [decode(ids[m.bool()], skip_special_tokens=True) for ids, m in pairs]


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_without_weight_it_is_trls_trainer(tmp_path, kind) -> None:
    theirs = train(trl.GRPOTrainer, trl.GRPOConfig, tmp_path / "a", kind=kind, **PLAIN)
    ours = train(GTPOTrainer, GTPOConfig, tmp_path / "b", kind=kind, alpha1=1.0, alpha2=0.0)
    assert ours.losses == pytest.approx(theirs.losses, abs=1e-6)
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=1e-6)
    assert [tuple(a.shape) for a in ours.given] == [(8, 12)] * 3
    start = train(trl.GRPOTrainer, trl.GRPOConfig, tmp_path / "c", kind=kind, max_steps=1,
                  learning_rate=0.0, **PLAIN)  # fmt: skip
    assert not torch.allclose(parameters(ours), parameters(start))
    shaped = train(GTPOTrainer, GTPOConfig, tmp_path / "d", kind=kind, alpha1=0.5, alpha2=0.5)
    # On-policy the loss cannot tell them apart; the gradient can.
    assert shaped.losses[0] == pytest.approx(theirs.losses[0], abs=1e-6)
    assert not torch.allclose(parameters(shaped), parameters(theirs))
    logged = [row for row in shaped.state.log_history if "gtpo/weight_max" in row]
    assert len(logged) == 3
    assert all(1 <= row["gtpo/weight_max"] <= 4 for row in logged)
    assert all(0 < row["gtpo/weight_effective"] <= 1 for row in logged)
    assert all(row["gtpo/sign_flips"] == 0 for row in logged)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_advantages_are_those_of_the_pure_functions(tmp_path, kind) -> None:
    run = train(GTPOTrainer, GTPOConfig, tmp_path / "a", kind=kind, alpha1=0.5, alpha2=0.5)
    sequence = train(GRPOSTrainer, GRPOSConfig, tmp_path / "b", kind=kind, alpha1=0.5, alpha2=0.5)
    for trainer, function in ((run, gtpo_advantages), (sequence, grpo_s_advantages)):
        seen = 0
        for batch in trainer.scored:
            rewards = torch.tensor(helpers.reward(texts(trainer, batch)))
            weights = {"alpha": (0.5, 0.5), **TRLS_DEVIATION}
            if function is grpo_s_advantages:
                weights = {"beta": (0.5, 0.5)}
            expected = function(rewards, batch["entropy"], batch["completion_mask"], 4, **weights)
            got = batch["advantages"]
            expected = expected[:, None] if expected.ndim == 1 else expected
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
            seen += int((got != 0).any())
        assert seen > 0


def test_accumulation_does_not_change_the_advantages(tmp_path) -> None:
    whole = train(GTPOTrainer, GTPOConfig, tmp_path / "a", alpha1=0.5, alpha2=0.5)
    parts = train(
        GTPOTrainer, GTPOConfig, tmp_path / "b", alpha1=0.5, alpha2=0.5,
        per_device_train_batch_size=2, gradient_accumulation_steps=4,
    )  # fmt: skip
    first, second = whole.scored[0], parts.scored[0]
    assert torch.equal(first["completion_ids"], second["completion_ids"])
    assert first["advantages"].shape == (8, 12)
    torch.testing.assert_close(second["advantages"], first["advantages"], rtol=0, atol=1e-6)
    assert [tuple(a.shape) for a in parts.given[:4]] == [(2, 12)] * 4
    # Of single rows: a group never meets in the loss, and still is one group.
    single = train(
        GTPOTrainer, GTPOConfig, tmp_path / "c", alpha1=0.5, alpha2=0.5, max_steps=1,
        per_device_train_batch_size=1, gradient_accumulation_steps=8,
    )  # fmt: skip
    torch.testing.assert_close(
        single.scored[0]["advantages"], first["advantages"], rtol=0, atol=1e-6
    )
    torch.testing.assert_close(sum(single.losses), whole.losses[0], rtol=0, atol=1e-5)


def test_old_log_probabilities_save_the_pass_for_entropies(tmp_path) -> None:
    """Two updates on a batch: the parent scores it anyway."""
    more = {"num_iterations": 2, "max_steps": 4}
    theirs = train(trl.GRPOTrainer, trl.GRPOConfig, tmp_path / "a", **PLAIN, **more)
    ours = train(GTPOTrainer, GTPOConfig, tmp_path / "b", alpha1=1.0, alpha2=0.0, **more)
    # Two batches, each scored once and used twice, in both trainers.
    assert ours.passes == theirs.passes == 2 + 4
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=1e-6)
    shaped = train(GTPOTrainer, GTPOConfig, tmp_path / "c", alpha1=0.5, alpha2=0.5, **more)
    batch = shaped.scored[1]
    rewards = torch.tensor(helpers.reward(texts(shaped, batch)))
    expected = gtpo_advantages(
        rewards, batch["entropy"], batch["completion_mask"], 4, alpha=(0.5, 0.5), **TRLS_DEVIATION
    )
    torch.testing.assert_close(batch["advantages"], expected, rtol=1e-4, atol=1e-4)


def test_peft_with_a_reference_takes_entropies_of_the_policy(tmp_path) -> None:
    """With adapters the reference is the same model with them off, and is asked first."""
    run = train(
        GTPOTrainer, GTPOConfig, tmp_path, alpha1=0.5, alpha2=0.5, beta=0.1, learning_rate=0.1,
        named={"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"])},
    )  # fmt: skip
    names = {n for n, p in run.model.named_parameters() if p.requires_grad}
    assert names
    assert all("lora" in name for name in names)
    changed = 0
    for batch in run.scored[1:]:
        rewards = torch.tensor(helpers.reward(texts(run, batch)))
        mask = batch["completion_mask"]
        with run.model.disable_adapter():
            reference = helpers.plain_entropy(run.model, batch)
        weights = {"alpha": (0.5, 0.5), **TRLS_DEVIATION}
        expected = gtpo_advantages(rewards, batch["entropy"], mask, 4, **weights)
        torch.testing.assert_close(batch["advantages"], expected, rtol=1e-4, atol=1e-4)
        other = gtpo_advantages(rewards, reference, mask, 4, **weights)
        changed += not torch.allclose(other, expected, rtol=1e-3, atol=1e-3)
    assert changed > 0


def test_tokens_of_tools_and_truncated_rows_are_left_out(tmp_path) -> None:
    ids = [[5, 6, 7, 1], [8, 9, 3, 1], [4, 4, 5, 1], [9, 8, 7, 6]]
    tools = [[1, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]]

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [trainer.processing_class(p).input_ids for p in prompts],
            "completion_ids": ids * 2,
            "logprobs": None,
            "env_mask": tools * 2,
        }

    def by_row(completions, **_):
        return [1.0, 1.0, 0.0, 0.0] * 2

    run = train(
        GTPOTrainer, GTPOConfig, tmp_path, alpha1=0.5, alpha2=0.5, rewards=by_row,
        mask_truncated_completions=True, named={"rollout_func": rollout},
    )  # fmt: skip
    batch = run.scored[0]
    got = batch["advantages"]
    mask = batch["completion_mask"] * batch["tool_mask"]
    # The fourth response has no end: it is out of the loss and out of the sums.
    assert mask.tolist() == [*tools[:3], [0, 0, 0, 0]] * 2
    assert (got[mask == 0] == 0).all()
    scale = 0.5 / (((4 * 0.25) / 3) ** 0.5 + 1e-4)
    h = batch["entropy"]
    first = scale * (0.5 + 0.5 * 2 * h[0, 0] / (h[0, 0] + h[1, 0]))
    assert float(got[0, 0]) == pytest.approx(float(first), abs=1e-4)
    assert float(got[1, 1]) == pytest.approx(scale, abs=1e-4)  # alone at its position
    assert got[2, 1:].tolist() == pytest.approx([-scale] * 3, abs=1e-4)


def test_a_batch_of_truncated_completions_changes_nothing(tmp_path) -> None:
    """Without an end no token counts: no credit, and no numbers about it that are none."""
    run = train(
        GTPOTrainer, GTPOConfig, tmp_path, mask_truncated_completions=True,
        generation_kwargs={"suppress_tokens": [1]}, log_groups=1,
    )  # fmt: skip
    start, _ = helpers.decided_model("qwen2")
    assert torch.equal(parameters(run), torch.nn.utils.parameters_to_vector(start.parameters()))
    assert run.losses == [0, 0, 0]
    assert not any("gtpo/" in key for row in run.state.log_history for key in row)
    written = read_groups(tmp_path / "groups" / "step-000000.jsonl")
    assert [r.tokens for g in written for r in g.responses] == [[]] * 8
    assert explain_group(written[0]).advantages.abs().sum() == 0


def test_unscored_responses_have_no_credit(tmp_path) -> None:
    def some(completions, **_):
        return [None, 1.0, 0.0, 1.0] * 2

    run = train(GTPOTrainer, GTPOConfig, tmp_path, alpha1=0.5, alpha2=0.5, rewards=some)
    batch = run.scored[0]
    got, h, mask = batch["advantages"], batch["entropy"], batch["completion_mask"]
    expected = gtpo_advantages(
        torch.tensor([torch.nan, 1, 0, 1] * 2), h, mask, 4, alpha=(0.5, 0.5), **TRLS_DEVIATION
    )
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert (got[0] == 0).all()


def test_the_loss_of_grpo_s_is_the_arithmetic_one(tmp_path) -> None:
    """In the second iteration ratios differ from 1."""
    run = train(
        GRPOSTrainer, GRPOSConfig, tmp_path, alpha1=0.5, alpha2=0.5, num_iterations=2, max_steps=1
    )
    batch = dict(run.scored[0])
    model = run.model
    with torch.no_grad():  # move the policy far enough for ratios to matter
        noise = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=noise)
    logp, _, _ = trl.GRPOTrainer._get_per_token_logps_and_entropies(
        run, model,
        torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
        torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
        batch["completion_ids"].shape[1],
    )  # fmt: skip
    expected, stats = clipped_loss(
        logp, batch["old_per_token_logps"], batch["advantages"], batch["completion_mask"],
        ratio="seq_arith", aggregation="sequence",
    )  # fmt: skip
    geometric, _ = clipped_loss(
        logp, batch["old_per_token_logps"], batch["advantages"], batch["completion_mask"],
        ratio="seq_geom", aggregation="sequence",
    )  # fmt: skip
    got = run._compute_loss(model, batch)
    assert float(got) == pytest.approx(float(expected), abs=1e-6)
    assert abs(float(geometric) - float(expected)) > 1e-4
    grads = [
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        for loss in (got, expected)
    ]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-6)
    assert stats["clipped_low"] + stats["clipped_high"] > 0


def test_a_replaced_method_is_noticed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        GTPOTrainer,
        "_generate_and_score_completions",
        trl.GRPOTrainer._generate_and_score_completions,
    )
    with pytest.raises(RuntimeError, match="without shaping"):
        train(GTPOTrainer, GTPOConfig, tmp_path)


def test_evaluation_and_written_groups(tmp_path) -> None:
    run = train(
        GTPOTrainer, GTPOConfig, tmp_path, alpha1=0.5, alpha2=0.5, log_groups=2, max_steps=6,
        per_device_eval_batch_size=8,
    )  # fmt: skip
    metrics = run.evaluate(run.train_dataset.select(range(2)))
    assert metrics["eval_gtpo/weight_max"] >= 1
    files = sorted((tmp_path / "groups").iterdir())
    assert [f.name for f in files] == [f"step-00000{n}.jsonl" for n in (1, 3, 5)]
    step = max((1, 3, 5), key=lambda n: int((run.scored[n]["advantages"] != 0).sum()))
    groups = read_groups(files[step // 2])
    batch = run.scored[step]
    assert [len(g.responses) for g in groups] == [4, 4]
    assert groups[0].prompt in helpers.PROMPTS
    written = [r for g in groups for r in g.responses]
    shown = [re.sub("<(eos|pad|unk)>", "", "".join(r.tokens)) for r in written]
    assert shown == texts(run, batch)
    for row, response in enumerate(written):
        live = batch["completion_mask"][row].bool()
        expected = batch["entropy"][row][live]
        torch.testing.assert_close(torch.tensor(response.entropy), expected, rtol=1e-4, atol=1e-4)
    explained = torch.cat([explain_group(g, "gtpo:0.5").advantages[:, :3] for g in groups])
    got = batch["advantages"][:, :3]
    live = got != 0
    assert live.sum() > 12
    # TRL's deviation is the sample's, this one the population's.
    ratio = (explained / got)[live]
    torch.testing.assert_close(ratio, torch.full_like(ratio, (4 / 3) ** 0.5), rtol=1e-3, atol=0)


def test_several_batches_of_a_step_are_all_written(tmp_path) -> None:
    run = train(
        GTPOTrainer, GTPOConfig, tmp_path, log_groups=1, max_steps=2, steps_per_generation=2,
        per_device_train_batch_size=4, gradient_accumulation_steps=4,
    )  # fmt: skip
    names = ["step-000000.jsonl", "step-000000-1.jsonl", "step-000001.jsonl", "step-000001-1.jsonl"]
    for name, batch in zip(names, run.scored, strict=True):
        written = [r for g in read_groups(tmp_path / "groups" / name) for r in g.responses]
        shown = [re.sub("<(eos|pad|unk)>", "", "".join(r.tokens)) for r in written]
        assert shown == texts(run, batch)
    assert len(list((tmp_path / "groups").iterdir())) == 4


def test_training_goes_on_from_the_trainer_too(tmp_path) -> None:
    """Without the command: inside a batch of completions, in the second epoch."""
    size = {
        "alpha1": 0.5, "alpha2": 0.5, "per_device_train_batch_size": 4, "steps_per_generation": 4,
        "gradient_accumulation_steps": 2, "num_iterations": 2, "shuffle_dataset": True,
        "save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant",
    }  # fmt: skip
    prompts = helpers.PROMPTS[:2]
    whole = train(GTPOTrainer, GTPOConfig, tmp_path / "a", max_steps=15, prompts=prompts, **size)
    train(GTPOTrainer, GTPOConfig, tmp_path / "b", max_steps=10, prompts=prompts, **size)
    last = str(tmp_path / "b" / "checkpoint-10")
    parts = train(
        GTPOTrainer, GTPOConfig, tmp_path / "b", max_steps=15, prompts=prompts, resume=last, **size
    )
    assert 1 < whole.state.epoch < 2
    assert parts.losses == whole.losses[20:]
    assert torch.equal(parameters(parts), parameters(whole))
    # What it stood in the middle of is not what another size of batch would go on with.
    with pytest.warns(UserWarning, match="other sizes of batches; new completions"):
        train(
            GTPOTrainer, GTPOConfig, tmp_path / "b", max_steps=11, prompts=prompts, resume=last,
            **{**size, "num_iterations": 1},
        )  # fmt: skip
    (tmp_path / "b/checkpoint-10/completions-0.safetensors").unlink()
    with pytest.warns(UserWarning, match="holds no completions; new ones are drawn"):
        train(
            GTPOTrainer, GTPOConfig, tmp_path / "b", max_steps=11, prompts=prompts, resume=last,
            **size,
        )  # fmt: skip


def test_reasoning_gym(tmp_path) -> None:
    gym = pytest.importorskip("reasoning_gym")
    from rl_curriculum.gtpo.gym import gym_dataset, gym_reward

    rows = gym_dataset("chain_sum", size=6, seed=3)
    source = gym.create_dataset("chain_sum", size=6, seed=3)
    assert rows["prompt"] == [entry["question"] for entry in source]
    score = gym_reward(source)
    right = [entry["answer"] for entry in source]
    named = {name: rows[name] for name in rows.column_names if name != "prompt"}
    assert score(completions=right, **named) == [1.0] * 6
    assert max(score(completions=["no"] * 6, **named)) < 1
    chat = [[{"role": "assistant", "content": text}] for text in right]
    assert score(completions=chat, **named) == [1.0] * 6

    for name, more in (("nothing", {}), ("chain_sum", {"size": 0}), ("chain_sum", {"sizes": 2})):
        with pytest.raises(ValueError, match=f"name is '{name}' with"):
            gym_dataset(name, **more)
    with pytest.raises(TypeError, match="source is a Dataset"):
        gym_reward(rows)
    with pytest.raises(TypeError, match="allowed: entry among them"):
        score(completions=right, answer=right)

    from rl_curriculum.gtpo.character_model import character_model

    characters = "".join(sorted(set("".join([*rows["prompt"], *right]))))
    model, tokenizer = character_model(characters)
    trainer = helpers.recorder(GTPOTrainer)(
        model,
        [score, lambda completions, **_: [float(len(c) % 2) for c in completions]],
        GTPOConfig(**helpers.settings(tmp_path, max_steps=2)),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    trainer.train()
    assert trainer.given[0].shape == (8, 12)
    assert trainer.given[0].abs().sum() > 0


def test_bad_settings_are_refused_by_name(tmp_path) -> None:
    base = helpers.settings(tmp_path)
    for bad, message in (
        ({"alpha2": -0.1}, "alpha2 is -0.1; allowed: finite and at least 0"),
        ({"alpha1": "1"}, "alpha1 is '1'; allowed: a number"),
        ({"alpha1": 0.0, "alpha2": 0.0}, "alpha1 and alpha2 are 0"),
        ({"normalization": "both"}, "normalization is 'both'"),
        ({"entropy_clip_min": 0.0}, r"\(entropy_clip_min, entropy_clip_max\) is \(0.0, None\)"),
        ({"entropy_clip_min": 1e-40}, "allowed: 1e-30 <= low"),
        ({"entropy_clip_max": 1e-5}, r"is \(0.0001, 1e-05\); allowed"),
        ({"entropy_clip_max": "1"}, "allowed: two numbers, or a number and None"),
        ({"weight_clip": 0.0}, "weight_clip is 0.0"),
        ({"log_groups": -1}, "log_groups is -1"),
        ({"log_groups": 0.5}, "log_groups is 0.5; allowed: a whole number"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            GTPOConfig(**base, **bad)
    for bad in ({"beta": 0.1}, {"loss_type": "dapo"}, {"importance_sampling_level": "token"}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} is .* allowed for GRPO-S"):
            GRPOSConfig(**base, **bad)
    with pytest.raises(TypeError, match="allowed: a GTPOConfig"):
        GTPOTrainer("model", helpers.reward, trl.GRPOConfig(**base))


TWO_PROCESSES = """
import importlib.util, json, os, sys, torch
from pathlib import Path
spec = importlib.util.spec_from_file_location("helpers", sys.argv[1])
helpers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helpers)
from rl_curriculum.gtpo.trl import GTPOConfig, GTPOTrainer
run = helpers.train(
    GTPOTrainer, GTPOConfig, sys.argv[2], alpha1=0.5, alpha2=0.5,
    per_device_train_batch_size=int(sys.argv[3]), num_generations=4, log_groups=1,
)
rank = os.environ["RANK"]
rows = [{k: v.tolist() for k, v in batch.items()} for batch in run.scored]
rewards = [helpers.reward([run.processing_class.decode(
    ids[m.bool()], skip_special_tokens=True) for ids, m in zip(b["completion_ids"],
    b["completion_mask"], strict=True)]) for b in run.scored]
Path(sys.argv[2], f"rank-{rank}.json").write_text(json.dumps({"rows": rows, "rewards": rewards}))
"""


IN_PARTS = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("helpers", sys.argv[1])
helpers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helpers)
from rl_curriculum.gtpo.trl import GTPOConfig, GTPOTrainer
def run(name, steps, resume=None):
    return helpers.train(
        GTPOTrainer, GTPOConfig, f"{sys.argv[2]}/{name}", alpha1=0.5, alpha2=0.5, max_steps=steps,
        per_device_train_batch_size=2, steps_per_generation=4, num_iterations=2, resume=resume,
        save_strategy="steps", save_steps=1, lr_scheduler_type="constant",
    )
whole = run("whole", 7)
run("parts", 3)
parts = run("parts", 7, f"{sys.argv[2]}/parts/checkpoint-3")
assert parts.losses == whole.losses[3:]
assert torch.equal(helpers.parameters(parts), helpers.parameters(whole))
"""


def on_two_processes(script: str, folder: Path, *arguments: object) -> None:
    path = folder / "run.py"
    path.write_text(script)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2"),
            *(str(path), str(Path(__file__).with_name("trl_helpers.py")), str(folder)),
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_go_on_inside_a_batch_of_completions(tmp_path) -> None:
    on_two_processes(IN_PARTS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("per_device", [2, 6])
def test_a_group_on_two_processes_is_one_group(tmp_path, per_device) -> None:
    on_two_processes(TWO_PROCESSES, tmp_path, per_device)
    ranks = [json.loads((tmp_path / f"rank-{r}.json").read_text()) for r in (0, 1)]
    contrast = 0
    for step in range(3):
        parts = [{k: torch.tensor(v) for k, v in r["rows"][step].items()} for r in ranks]
        rewards = torch.tensor(ranks[0]["rewards"][step] + ranks[1]["rewards"][step])
        width = max(p["completion_ids"].shape[1] for p in parts)

        def wide(name, parts=parts, width=width):
            pads = [torch.nn.functional.pad(p[name], (0, width - p[name].shape[1])) for p in parts]
            return torch.cat(pads)

        expected = gtpo_advantages(
            rewards, wide("entropy"), wide("completion_mask"), 4,
            alpha=(0.5, 0.5), **TRLS_DEVIATION,
        )  # fmt: skip
        got = wide("advantages")
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        alone = gtpo_advantages(
            rewards[:2], wide("entropy")[:2], wide("completion_mask")[:2], 2,
            alpha=(0.5, 0.5), **TRLS_DEVIATION,
        )  # fmt: skip
        contrast += not torch.allclose(got[:2], alone, atol=1e-3)
    assert contrast > 0
    written = read_groups(sorted((tmp_path / "groups").iterdir())[-1])
    assert [len(g.responses) for g in written] == [4] * (per_device * 2 // 4)
