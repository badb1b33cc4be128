"""The command: training from a file, going on with it, explaining a run, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

pytest.importorskip("trl")
from safetensors.torch import load_file

from rl_curriculum.gtpo.character_model import character_model
from rl_curriculum.gtpo.cli import app

GROUP = {
    "prompt": "2+2=",
    "responses": [
        {"tokens": ["4", "[b]"], "entropy": [0.6, 0.2], "reward": 1.0},
        {"tokens": ["4", "."], "entropy": [0.3, 0.6], "reward": 1.0},
        {"tokens": ["5"], "entropy": [0.5], "reward": 0.0},
    ],
}


def call(*arguments: object, status: int = 0) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def project(tmp_path):
    model, tokenizer = character_model("01+=")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    lines = [json.dumps({"prompt": f"{a}+0=", "answer": a}) for a in (0, 1, 1, 0)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")

    def write(out: str = "run", name: str = "config.yaml", **more: object) -> Path:
        training = {
            "max_steps": 2, "save_steps": 2, "per_device_train_batch_size": 8,
            "num_generations": 4, "max_completion_length": 1, "bf16": False, "use_cpu": True,
            "disable_tqdm": True, "lr_scheduler_type": "constant", "learning_rate": 0.01,
            "mask_truncated_completions": False,
            **more.pop("training", {}),
        }  # fmt: skip
        settings = {
            "model": "model", "data": "data.jsonl", "output_dir": out, "reward": "exact",
            "training": training, **more,
        }  # fmt: skip
        (tmp_path / name).write_text(yaml.safe_dump(settings))
        return tmp_path / name

    return write


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def test_a_run_in_two_parts_is_the_run_in_one(project, tmp_path) -> None:
    call("train", project("whole", training={"max_steps": 4}))
    assert "2 steps" in call("train", project("parts"))
    halfway = weights(tmp_path / "parts")
    assert "4 steps" in call("train", project("parts", training={"max_steps": 4}))
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=0, msg=name)
    state = json.loads((tmp_path / "parts/checkpoint-4/trainer_state.json").read_text())
    rewards = [row["reward"] for row in state["log_history"] if "reward" in row]
    assert len(rewards) == 4
    assert any("gtpo/weight_max" in row for row in state["log_history"])
    assert any(0 < r < 1 for r in rewards), "no contrast, so nothing was compared"
    assert any(not torch.equal(halfway[n], v) for n, v in parts.items())
    # Other settings are another run.
    output = call("train", project("parts", training={"alpha2": 0.0, "alpha1": 1.0}), status=2)
    assert "other settings of training" in output
    call("train", project("parts", training={"alpha2": 0.0, "alpha1": 1.0}), "--fresh")


@pytest.mark.parametrize("method", ["grpo-s", "grpo"])
def test_other_methods_and_adapters(project, tmp_path, method) -> None:
    lora = {"r": 2, "target_modules": ["q_proj"]}
    call("train", project(method=method, lora=lora, training={"max_steps": 1}))
    assert (tmp_path / "run/model/adapter_model.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "model is None"),
        ({"model": "./nowhere"}, "model is './nowhere'"),
        ({"methods": "gtpo"}, "methods unknown"),
        ({"method": "ppo"}, "method is 'ppo'"),
        ({"reward": "sympy"}, "reward is 'sympy'"),
        ({"lora": 4}, "lora is 4"),
        ({"system": ["x"]}, "system is ['x']"),
        ({"training": {"alpha3": 1}}, "training has alpha3"),
        ({"training": {"trust_remote_code": True}}, "training has trust_remote_code"),
        (
            {"training": {"model_init_kwargs": {"trust_remote_code": True}}},
            "training has trust_remote_code",
        ),
        ({"training": {"alpha1": -1.0}}, "alpha1 is -1.0"),
        ({"training": {"num_generations": 3}}, "must be divisible by num_generations"),
        ({"data": "none.jsonl"}, "none.jsonl"),
    ],
)
def test_bad_settings_are_refused_before_a_model_is_loaded(
    project, tmp_path, monkeypatch, change, message
) -> None:
    monkeypatch.setattr("rl_curriculum.gtpo.run.train", lambda *_, **__: pytest.fail("trained"))
    output = call("train", project(**change), status=2)
    assert message in output.replace("\n", "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2"),
        ('"text"', "line 2"),
        ('{"prompt": "1"}', "line 2: 'answer'"),
        ('{"prompt": "", "answer": "1"}', "line 2: prompt is ''"),
        ('{"prompt": 7, "answer": "1"}', "line 2: prompt is 7"),
        ('{"prompt": [{"role": "user"}], "answer": "1"}', "line 2: prompt is [{"),
        (
            '{"prompt": [{"role": "user", "content": "a"}], "answer": "1"}',
            "line 2: prompt is a list",
        ),
        ('{"prompt": "1", "answer": [1]}', "line 2: answer is [1]"),
        ('{"prompt": "1", "answer": true}', "line 2: answer is True"),
    ],
)
def test_bad_lines_are_refused_with_their_number(project, tmp_path, line, message) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "1", "answer": "1"}\n' + line)
    assert message in call("train", project(), status=2).replace("\n", "")


def test_files_that_are_no_settings(tmp_path) -> None:
    bad = tmp_path / "bad.yaml"
    for text, message in (
        ("- 1", "holds no settings"),
        ("a: [", "is not YAML"),
        ("model: !!python/object/apply:os.system ['touch hacked']", "is not YAML"),
    ):
        bad.write_text(text)
        assert message in call("train", bad, status=2).replace("\n", "")
    assert not Path("hacked").exists()
    call("train", tmp_path / "missing.yaml", status=2)


def test_explaining(tmp_path) -> None:
    run = tmp_path / "run.jsonl"
    run.write_text(json.dumps(GROUP) + "\n" + json.dumps(GROUP) + "\n")
    output = call("explain", run, "--method", "gtpo:0.5")
    assert "'[b]'" in output
    assert "1.500" in output  # .6 / .8 * 2
    rows = json.loads(call("explain", run, "--json", "--group", 1))
    assert [row["token"] for row in rows] == ["4", "[b]", "4", ".", "5"]
    call("explain", run, "--html", tmp_path / "out" / "page.html")
    assert (tmp_path / "out" / "page.html").read_text().count("<h2>") == 2
    assert "--group is 2" in call("explain", run, "--group", 2, status=2)
    assert "method is 'x'" in call("explain", run, "--method", "x", status=2)
    run.write_text("{}\n")
    assert "line 1" in call("explain", run, status=2)
