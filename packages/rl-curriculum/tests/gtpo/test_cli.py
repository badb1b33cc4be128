"""The command: training from a file, going on with it, explaining a run, and bad input."""

from __future__ import annotations

import datetime
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

pytest.importorskip("trl")
from safetensors.torch import load_file

from rl_curriculum.gtpo.character_model import character_model
from rl_curriculum.gtpo.cli import app
from rl_curriculum.gtpo.settings import read_problems, read_settings

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


def steps_of(output: str) -> int:
    """What the command says at its end; the trainer's own output may stand before it."""
    found = re.search(r"(\d+) steps; the model is in", output)
    assert found is not None, output
    return int(found[1])


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
    # So are other problems in a file of the same name.
    with (tmp_path / "data.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "1+1=", "answer": 10}) + "\n")
    output = call("train", project("whole", training={"max_steps": 4}), status=2)
    assert "other settings of problems" in output


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("gtpo", {"steps_per_generation": 4}),
        ("gtpo", {"num_iterations": 3, "gradient_accumulation_steps": 2}),
        ("grpo-s", {"steps_per_generation": 2, "num_iterations": 2}),
        ("grpo", {"steps_per_generation": 4}),
    ],
)
def test_a_run_goes_on_inside_a_batch_of_completions(project, tmp_path, method, more) -> None:
    """Several updates are made on a batch; the run stops between them, and then once more."""
    size = {"per_device_train_batch_size": 4, "save_steps": 1, "log_groups": 2, **more}
    if method == "grpo":
        del size["log_groups"]
    call("train", project("whole", method=method, training={**size, "max_steps": 9}))
    for steps in (3, 5, 9):
        call("train", project("parts", method=method, training={**size, "max_steps": steps}))
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=0, atol=0, msg=name)
    logs = [
        json.loads((tmp_path / out / "checkpoint-9/trainer_state.json").read_text())["log_history"]
        for out in ("whole", "parts")
    ]
    rewards = [[row["reward"] for row in log if "reward" in row] for log in logs]
    assert rewards[0] == rewards[1]
    assert any(0 < r < 1 for r in rewards[0]), "no contrast, so nothing was compared"
    written = [
        {file.name: file.read_text() for file in (tmp_path / out).glob("groups/*")}
        for out in ("whole", "parts")
    ]
    assert written[0] == written[1]
    assert bool(written[0]) == (method != "grpo")


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch) -> None:
    """As it stands there, but for the length of the run and of completions."""
    text = Path(__file__).parents[2].joinpath("README.md").read_text()
    section = text[text.index("## GTPO") :]
    (config,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    commands = re.findall(r"^rl-curriculum gtpo (.*)$", section, re.MULTILINE)
    assert [c.split()[0] for c in commands] == ["train", "explain"]
    assert config.count("max_steps: 500") == 1
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(
        config.replace("max_steps: 500", "max_steps: 50, max_completion_length: 2")
    )
    model, tokenizer = character_model("01+=")
    for part in (model, tokenizer):
        part.save_pretrained("my-model")
    Path("problems.jsonl").write_text('{"prompt": "1+0=", "answer": "1"}\n' * 4)
    outputs = [call(*shlex.split(command, comments=True)) for command in commands]
    assert "50 steps; the model is in run/model" in outputs[0]
    assert "advantage" in outputs[1]
    assert "<h2>1+0=</h2>" in Path("credit.html").read_text()


def test_a_finished_run_is_not_trained_further(project, tmp_path) -> None:
    for training in ({}, {"max_steps": -1, "num_train_epochs": 2}):
        out = f"run{len(training)}"
        first = steps_of(call("train", project(out, training=training)))
        before = weights(tmp_path / out)
        shutil.rmtree(tmp_path / out / "model")  # killed before the model was written
        assert steps_of(call("train", project(out, training=training))) == first
        after = weights(tmp_path / out)
        assert all(torch.equal(after[name], value) for name, value in before.items())
    assert steps_of(call("train", project("run0", training={"max_steps": 1}))) != 1


def test_an_unfinished_checkpoint_is_passed_over(project, tmp_path) -> None:
    training = {"max_steps": 2, "save_steps": 1}
    call("train", project(training=training))
    before = weights(tmp_path / "run")
    (tmp_path / "run/checkpoint-2/trainer_state.json").unlink()
    (tmp_path / "run/checkpoint-2/model.safetensors").write_bytes(b"half")
    call("train", project(training=training))
    assert all(torch.equal(weights(tmp_path / "run")[n], value) for n, value in before.items())


def test_a_fresh_run_leaves_nothing_of_the_run_before(project, tmp_path) -> None:
    training = {"save_steps": 1, "log_groups": 1}
    call("train", project(training={**training, "max_steps": 3}))
    call("train", project(training={**training, "max_steps": 1, "learning_rate": 0.0}), "--fresh")
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-1"]
    assert [path.name for path in (tmp_path / "run/groups").iterdir()] == ["step-000000.jsonl"]


def test_what_was_there_is_kept_until_the_new_run_can_begin(project, tmp_path) -> None:
    call("train", project())
    (tmp_path / "run/groups").mkdir()
    before = sorted(path for path in (tmp_path / "run").rglob("*"))
    shutil.copytree(tmp_path / "model", tmp_path / "broken")
    (tmp_path / "broken/model.safetensors").write_bytes(b"half")
    for change in ({"model": "broken"}, {"training": {"report_to": "nowhere"}}):
        assert "cannot be trained so" in call("train", project(**change), "--fresh", status=2)
        assert sorted(path for path in (tmp_path / "run").rglob("*")) == before
        assert "cannot be trained so" in call("train", project("new", **change), status=2)
        assert not (tmp_path / "new").exists()
    # An adapter takes the place of the whole model.
    call("train", project(lora={"r": 2, "target_modules": ["q_proj"]}), "--fresh")
    assert not (tmp_path / "run/model/model.safetensors").exists()
    assert (tmp_path / "run/model/adapter_model.safetensors").exists()
    # Nothing says whose checkpoints these are.
    (tmp_path / "run/settings.json").unlink()
    assert "other settings of" in call("train", project(), status=2)


def test_a_removal_that_was_interrupted_leaves_no_checkpoint(
    project, tmp_path, monkeypatch
) -> None:
    call("train", project(training={"save_steps": 1}))

    def killed(folder: Path) -> None:
        raise OSError(f"{folder} is gone")

    monkeypatch.setattr("rl_curriculum.gtpo.run.shutil.rmtree", killed)
    assert "is gone" in call("train", project(training={"save_steps": 1}), "--fresh", status=2)
    monkeypatch.undo()
    assert (tmp_path / "run/checkpoint-1/model.safetensors").exists()
    assert not list((tmp_path / "run").glob("checkpoint-*/trainer_state.json"))


def test_numbers_that_yaml_takes_for_texts(project, tmp_path) -> None:
    path = project(training={"learning_rate": 0.25, "max_steps": 1})
    path.write_text(path.read_text().replace("0.25", "1e-6"))
    assert read_settings(path).config.learning_rate == 1e-6


def test_settings_without_bf16_do_on_a_processor(project, monkeypatch) -> None:
    for place in ("utils.import_utils", "utils", "training_args"):
        name = f"transformers.{place}.is_torch_bf16_gpu_available"
        monkeypatch.setattr(name, lambda: False, raising=False)
    path = project()
    settings = yaml.safe_load(path.read_text())
    del settings["training"]["bf16"], settings["training"]["use_cpu"]
    path.write_text(yaml.safe_dump(settings))
    assert not read_settings(path).config.bf16


def test_models_that_cannot_answer_are_refused_before_they_are_loaded(project, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(tmp_path / "model", tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / "bare" / name).unlink(missing_ok=True)
    (tmp_path / "bare/model.safetensors").write_bytes(b"not read")
    for change, message in (
        ({"model": "empty"}, "model is "),
        ({"model": "bare"}, "has a tokenizer"),
        ({"system": "Be brief."}, "has no chat template"),
        ({"lora": {"r": 0}}, "lora does not fit"),
        ({"lora": {"r": 2, "lora_dropout": 7.0}}, "between 0 and 1, but got 7.0"),
        ({"lora": {"r": 2, "bias": "some"}}, "bias: some"),
        ({"lora": {"r": 2, "target_modules": ["qq_proj"]}}, "Target modules {'qq_proj'} not found"),
        ({"lora": {"r": 2, "init_lora_weights": "magic"}}, "magic"),
    ):
        output = call("train", project(**change), status=2)
        assert message in output
        assert output.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_problems_as_other_programs_write_them(tmp_path) -> None:
    path = tmp_path / "data.jsonl"
    lines = ['{"prompt": "a\u2028b\x85c", "answer": 1e-05}', '{"prompt": "d", "answer": 1e22}', ""]
    path.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    wanted = (["a\u2028b\x85c", "d"], ["0.00001", "1" + "0" * 22])
    assert read_problems(path) == wanted


@pytest.mark.parametrize("method", ["grpo-s", "grpo"])
def test_other_methods_and_adapters(project, tmp_path, method) -> None:
    lora = {"r": 2, "target_modules": ["q_proj"]}
    call("train", project(method=method, lora=lora, training={"max_steps": 1}))
    assert (tmp_path / "run/model/adapter_model.safetensors").exists()
    from peft import AutoPeftModelForCausalLM

    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run/model")
    assert {c.r for c in model.peft_config.values()} == {2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "model is None"),
        ({"model": "./nowhere"}, "model is './nowhere'"),
        ({"methods": "gtpo"}, "methods unknown"),
        ({"method": "ppo"}, "method is 'ppo'"),
        ({"reward": "sympy"}, "reward is 'sympy'"),
        ({"reward": {"boxed": 1}}, "reward is {'boxed': 1}"),
        ({"model": "data.jsonl"}, "model is 'data.jsonl'"),
        ({"lora": {"r": datetime.date(2026, 1, 1)}}, "date is not JSON serializable"),
        ({"lora": 4}, "lora is 4"),
        ({"lora": {"rank": 4}}, "lora has rank; allowed: the arguments of LoraConfig"),
        ({"lora": {"megatron_core": "os"}}, "lora has megatron_core"),
        ({"lora": {"r": "many"}}, "lora: r is 'many'; allowed: int"),
        ({"lora": {"lora_dropout": "x"}}, "lora: lora_dropout is 'x'; allowed: float"),
        ({"lora": {"task_type": "SPEECH"}}, "lora: Invalid task type: 'SPEECH'"),
        ({"system": ["x"]}, "system is ['x']"),
        ({"training": {"alpha3": 1}}, "training has alpha3"),
        ({"training": {"trust_remote_code": True}}, "training has trust_remote_code"),
        (
            {"training": {"model_init_kwargs": {"trust_remote_code": True}}},
            "training has trust_remote_code",
        ),
        ({"training": {"alpha1": -1.0}}, "alpha1 is -1.0"),
        ({"training": {"alpha1": "much"}}, "alpha1 is 'much'; allowed: float"),
        ({"training": {"alpha1": None}}, "alpha1 is None; allowed: float"),
        ({"training": {"max_steps": 1.5}}, "max_steps is 1.5; allowed: int"),
        ({"training": {"log_groups": "often"}}, "log_groups is 'often'; allowed: int"),
        ({"training": {"learning_rate": "1e-6x"}}, "learning_rate is '1e-6x'; allowed: float"),
        ({"training": {"use_vllm": 1}}, "use_vllm is 1; allowed: bool"),
        ({"training": {"num_generations": 3}}, "must be divisible by num_generations"),
        ({"training": {"num_generations": 0}}, "num_generations is 0; allowed: finite, from 2"),
        ({"training": {"per_device_train_batch_size": 0}}, "per_device_train_batch_size is 0"),
        ({"training": {"gradient_accumulation_steps": 0}}, "gradient_accumulation_steps is 0"),
        ({"training": {"num_iterations": 0}}, "num_iterations is 0"),
        ({"training": {"max_completion_length": 0}}, "max_completion_length is 0"),
        ({"training": {"max_steps": 0}}, "max_steps is 0; allowed: -1, or 1 and more"),
        ({"training": {"num_train_epochs": 0}}, "num_train_epochs is 0; allowed: finite, above 0"),
        ({"training": {"temperature": 0.0}}, "temperature is 0.0; allowed: finite, above 0"),
        ({"training": {"top_p": 1.5}}, "top_p is 1.5; allowed: finite, above 0 to 1"),
        ({"training": {"learning_rate": float("inf")}}, "learning_rate is inf; allowed: finite"),
        ({"training": {"epsilon": -0.2}}, "epsilon is -0.2; allowed: finite, from 0 to 1"),
        ({"training": {"seed": -1}}, "seed is -1; allowed: finite, from 0 to 4294967295"),
        ({"training": {"steps_per_generation": 3}}, "data has 4 problems and training takes 6"),
        ({"data": "none.jsonl"}, "none.jsonl"),
        ({"data": "latin.jsonl"}, "latin.jsonl is not UTF-8"),
        ({"out": "data.jsonl"}, "output_dir is "),
        ({"out": "data.jsonl/run"}, "output_dir is "),
        ({"model": "trained/model", "out": "trained"}, "where output_dir puts the trained model"),
    ],
)
def test_bad_settings_are_refused_before_a_model_is_loaded(
    project, tmp_path, monkeypatch, change, message
) -> None:
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "\xe4", "answer": "1"}'.encode("latin-1"))
    shutil.copytree(tmp_path / "model", tmp_path / "trained" / "model")
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
        ('{"prompt": [{"role": "user", "content": 5}], "answer": "1"}', "line 2: prompt is [{"),
        ('{"prompt": [{"role": 5, "content": "a"}], "answer": "1"}', "line 2: prompt is [{"),
        ('{"prompt": "1", "answer": NaN}', "line 2: answer is nan"),
        ('{"prompt": "1", "answer": [1]}', "line 2: answer is [1]"),
        ('{"prompt": "1", "answer": true}', "line 2: answer is True"),
        ('{"prompt": "\\ud800", "answer": "1"}', "line 2: 'utf-8' codec can't encode"),
        ("[" * 100_000, "line 2: maximum recursion depth"),
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
        ("[" * 2000, "is not YAML"),
        ("lora: &a [*a]\nmodel: m\ndata: d\noutput_dir: o", "lora is [[...]]"),
        ("system: &a {b: *a}\nmodel: m\ndata: d\noutput_dir: o", "Circular reference"),
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
    before = run.read_text()
    for place in (run, tmp_path):
        assert "--html is" in call("explain", run, "--html", place, status=2)
    assert run.read_text() == before
    run.write_text(json.dumps({**GROUP, "prompt": "[b]2+2[/i]="}) + "\n")
    assert "[b]2+2[/i]=" in call("explain", run)
    run.write_text("{}\n")
    assert "line 1" in call("explain", run, status=2)
