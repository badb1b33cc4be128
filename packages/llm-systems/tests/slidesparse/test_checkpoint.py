"""Folders: converted tensor by tensor, continued, checked, saved and loaded; and the command."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file
from torch import nn
from typer.testing import CliRunner

from llm_systems.slidesparse import (
    Pattern,
    PatternViolation,
    SlideLinear,
    check,
    check_directory,
    convert,
    convert_directory,
    load,
    prune_,
    save_pretrained,
)
from llm_systems.slidesparse.checkpoint import Settings
from llm_systems.slidesparse.cli import app
from llm_systems.slidesparse.sharding import check_shard

LINEAR = [
    "model.layers.0.mlp.down_proj",
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.mlp.up_proj",
]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def test_only_linear_layers_are_pruned(model_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[tuple[int, int]] = []
    report = convert_directory(
        model_folder, out, "6:8", progress=lambda _, done, of: seen.append((done, of))
    )
    before, after = tensors(model_folder), tensors(out)
    assert sorted(layer.layer for layer in report.layers) == LINEAR
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert list(before) == list(after)
    for name, tensor in before.items():
        if name.removesuffix(".weight") in LINEAR:
            expected = tensor.clone()
            prune_(expected, "6:8")
            assert torch.equal(after[name], expected)
            assert after[name].dtype == tensor.dtype
        else:
            assert torch.equal(after[name], tensor)
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["quantization_config"] == {
        "quant_method": "slidesparse",
        "pattern": "6:8",
        "activation": "none",
        "ignore": ["lm_head"],
    }
    with safe_open(out / "model-00001-of-00002.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    names = {path.name for path in model_folder.iterdir()}
    assert {path.name for path in out.iterdir()} == names
    assert all(report.ok for report in check_directory(out).values())


def test_layers_left_out_are_ignored_when_served(model_folder: Path, tmp_path: Path) -> None:
    convert_directory(model_folder, tmp_path / "out", "6:8", targets="mlp")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["ignore"] == [
        "lm_head",
        "model.layers.0.self_attn.q_proj",
    ]
    assert sorted(check_directory(tmp_path / "out")) == [LINEAR[0], LINEAR[2]]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_run_is_continued(
    kind: type[BaseException], model_folder: Path, tmp_path: Path
) -> None:
    def stop(name: str, done: int, of: int) -> None:
        if done == 3:
            raise kind

    expected = tmp_path / "expected"
    convert_directory(model_folder, expected, "6:8", "random", seed=5)
    out = tmp_path / "out"
    with pytest.raises(kind):
        convert_directory(model_folder, out, "6:8", "random", seed=5, progress=stop)
    assert not out.exists()
    done: list[str] = []
    report = convert_directory(
        model_folder, out, "6:8", "random", seed=5, progress=lambda name, *_: done.append(name)
    )
    # Only the second file is done again.
    assert done == [LINEAR[2]]
    assert len(report.layers) == 3
    for name, tensor in tensors(expected).items():
        assert torch.equal(tensors(out)[name], tensor)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("seen", [".part-*.safetensors", ".layer07.safetensors.json"])
def test_a_killed_command_leaves_no_folder_and_is_continued(seen: str, tmp_path: Path) -> None:
    """SIGKILL while the first file is written, and when half of them are done."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    (source / "config.json").write_text("{}")
    generator = torch.Generator().manual_seed(0)
    for place in range(16):
        weight = torch.randn(1024, 768, generator=generator)
        save_file({f"{place}.up_proj.weight": weight}, source / f"layer{place:02}.safetensors")
    command = [sys.executable, "-c", "from llm_systems.cli import main; main()", "slidesparse"]
    with subprocess.Popen([*command, "convert", str(source), str(out)]) as running:
        while running.poll() is None and not list((tmp_path / ".out.part").glob(seen)):
            time.sleep(0.001)
        running.kill()
    assert running.returncode == -signal.SIGKILL
    assert not out.exists()
    done: list[str] = []
    report = convert_directory(source, out, "6:8", progress=lambda name, *_: done.append(name))
    assert len(report.layers) == 16
    assert len(done) in (range(1, 9) if "07" in seen else (15, 16))
    for name, weight in tensors(source).items():
        prune_(weight, "6:8")
        assert torch.equal(tensors(out)[name], weight)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]
    assert sorted(path.name for path in out.iterdir()) == sorted(p.name for p in source.iterdir())


def test_other_settings_start_anew(model_folder: Path, tmp_path: Path) -> None:
    def stop(name: str, done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_directory(model_folder, tmp_path / "out", "6:8", progress=stop)
    report = convert_directory(model_folder, tmp_path / "out", "2:4")
    assert {layer.pattern for layer in report.layers} == {"2:4"}


def test_weights_pruned_elsewhere_are_kept(model_folder: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    convert_directory(model_folder, first, "6:8")
    config = json.loads((first / "config.json").read_text())
    # As llm-compressor writes it for dense storage.
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "dense",
        "sparsity_config": {"format": "dense", "sparsity_structure": "2:8"},
    }
    (first / "config.json").write_text(json.dumps(config))
    convert_directory(first, tmp_path / "second", "6:8", "keep", activation="int8")
    for name, tensor in tensors(first).items():
        assert torch.equal(tensors(tmp_path / "second")[name], tensor)
    with pytest.raises(PatternViolation, match=r"q_proj.weight: row 0"):
        convert_directory(model_folder, tmp_path / "third", "6:8", "keep")
    # Nothing is left of what was refused.
    assert not list(tmp_path.glob("*third*"))


@pytest.mark.parametrize(
    "change",
    [
        {"quantization_config": {"quant_method": "gptq"}},
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": 1}}},
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "sparsity_config": {"format": "sparse-24-bitmask"},
            }
        },
        {"model_type": "gpt2"},
    ],
)
def test_other_storage_is_refused(
    change: dict[str, Any], model_folder: Path, tmp_path: Path
) -> None:
    (model_folder / "config.json").write_text(json.dumps(change))
    with pytest.raises(ValueError, match="store"):
        convert_directory(model_folder, tmp_path / "out", "6:8")
    assert not (tmp_path / "out").exists()


def test_broken_folders_are_refused(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config.json"):
        convert_directory(tmp_path / "nowhere", tmp_path / "out", "6:8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(ValueError, match="not empty"):
        convert_directory(model_folder, tmp_path / "full", "6:8")
    shard = model_folder / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        convert_directory(model_folder, tmp_path / "out", "6:8")
    shard.unlink()
    with pytest.raises(ValueError, match="which is not in"):
        convert_directory(model_folder, tmp_path / "out", "6:8")
    (model_folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 3}}')
    with pytest.raises(ValueError, match="no index of shards"):
        convert_directory(model_folder, tmp_path / "out", "6:8")
    (model_folder / "config.json").write_text('{"quantization_config": 3}')
    with pytest.raises(ValueError, match="quantization_config is 3"):
        convert_directory(model_folder, tmp_path / "out", "6:8")
    (model_folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="no JSON"):
        convert_directory(model_folder, tmp_path / "out", "6:8")


def test_an_index_cannot_point_elsewhere(model_folder: Path, tmp_path: Path) -> None:
    save_file({"up_proj.weight": torch.ones(2, 8)}, tmp_path / "secret.safetensors")
    index = model_folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"up_proj.weight": "../secret.safetensors"}}))
    with pytest.raises(ValueError, match="which is not in"):
        check_directory(model_folder, "6:8")


def test_nan_is_refused_with_the_tensor_named(model_folder: Path, tmp_path: Path) -> None:
    path = model_folder / "model-00002-of-00002.safetensors"
    state = load_file(path)
    state["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.nan
    save_file(state, path)
    with pytest.raises(ValueError, match=r"up_proj.weight: weight holds NaN"):
        convert_directory(model_folder, tmp_path / "out", "6:8")
    assert not list(tmp_path.glob("*out*"))


def test_a_layer_to_leave_that_is_not_there_is_refused(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ignore names 'q_prj'; allowed: names of linear layers"):
        convert_directory(model_folder, tmp_path / "out", "6:8", ignore=["q_proj", "q_prj"])
    convert_directory(model_folder, tmp_path / "out", "6:8", ignore=["q_proj"])
    same = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(tensors(tmp_path / "out")[same], tensors(model_folder)[same])


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1, 10**15])
def test_every_seed_is_taken(seed: int, model_folder: Path, tmp_path: Path) -> None:
    for out in ("one", "two"):
        convert_directory(model_folder, tmp_path / out, "6:8", "random", seed=seed)
    assert all(map(torch.equal, *(tensors(tmp_path / out).values() for out in ("one", "two"))))
    with pytest.raises(ValueError, match=r"seed is .*; allowed: from"):
        convert_directory(model_folder, tmp_path / "three", "6:8", "random", seed=2**64)


def test_calibration_is_made_last(model_folder: Path, tmp_path: Path) -> None:
    def never() -> list[torch.Tensor]:
        raise AssertionError

    with pytest.raises(ValueError, match="ignore names 'q_prj'"):
        convert_directory(
            model_folder, tmp_path / "out", "6:8", "wanda", calibration=never, ignore=["q_prj"]
        )


def test_the_current_folder_is_refused(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model = nn.Sequential(nn.Linear(16, 8))
    convert(model, "6:8")
    for out in (".", "new/.."):
        with pytest.raises(ValueError, match="is the current folder; allowed: a new folder"):
            convert_directory(model_folder, out, "6:8")
        with pytest.raises(ValueError, match="is the current folder; allowed: a new folder"):
            save_pretrained(model, out)
    assert not list((tmp_path / "here").iterdir())
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    convert_directory(model_folder, tmp_path / "link", "6:8")
    assert len(check_directory(tmp_path / "empty")) == 3


def test_a_folder_without_linear_layers_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"up_proj.weight": torch.ones(4, 8).double()}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"no linear layer: looked for .* in F32, F16 or BF16"):
        convert_directory(tmp_path, tmp_path / "out", "6:8")
    with pytest.raises(ValueError, match="no linear layer to check: looked for"):
        check_directory(tmp_path, "6:8")


def test_empty_tensors_are_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    state = {"a.up_proj.weight": torch.zeros(0, 8), "b.up_proj.weight": torch.ones(4, 8)}
    save_file(state, source / "model.safetensors")
    convert_directory(source, tmp_path / "out", "6:8")
    assert tensors(tmp_path / "out")["a.up_proj.weight"].shape == (0, 8)
    assert list(check_directory(tmp_path / "out")) == ["b.up_proj"]


def test_check_names_what_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"up_proj.weight": torch.full((4, 8), torch.nan)}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=r"^up_proj.weight: weight holds NaN"):
        check_directory(tmp_path, "6:8")


def test_a_module_is_saved_with_its_pattern(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    convert(model, "6:8", targets="^0$", activation="int8")
    save_pretrained(model, tmp_path / "saved")
    state = load_file(tmp_path / "saved" / "model.safetensors")
    assert torch.equal(state["0.weight"], model[0].weight)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert (config["pattern"], config["activation"], config["ignore"]) == ("6:8", "int8", ["1"])
    again = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    convert(again, "6:8", targets="^0$", activation="int8")
    load_model(again, tmp_path / "saved" / "model.safetensors")
    x = torch.ones(3, 16)
    with torch.inference_mode():
        assert torch.equal(again(x), model(x))
    with pytest.raises(ValueError, match=r"no model_type .*safetensors\.torch\.load_model"):
        load(tmp_path / "saved")
    convert(model, "2:4", targets="^1$")
    with pytest.raises(ValueError, match="allowed: one in a checkpoint"):
        save_pretrained(model, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
def test_a_hugging_face_model_goes_out_and_in(method: str, llama: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ids = torch.arange(40).view(1, 40)
    report = convert_directory(
        llama,
        tmp_path / "pruned",
        "6:8",
        method,
        calibration=[ids],  # type: ignore[arg-type]
    )
    assert len(report.layers) == 14
    model = load(tmp_path / "pruned").eval()
    assert sum(isinstance(m, SlideLinear) for m in model.modules()) == 14
    # transformers alone reads it as an ordinary model.
    shutil.copytree(tmp_path / "pruned", tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config))
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-5, rtol=1e-4)
    save_pretrained(model, tmp_path / "saved")
    again = load(tmp_path / "saved").eval()
    with torch.inference_mode():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_wanda_keeps_the_bits_of_what_it_keeps(llama: Path, tmp_path: Path) -> None:
    # A model in bfloat16 with a layer in float32, which transformers would round.
    path = llama / "model.safetensors"
    state = load_file(path)
    wide = "model.layers.0.mlp.up_proj.weight"
    save_file(
        {k: v if k == wide else v.bfloat16() for k, v in state.items()}, path, {"format": "pt"}
    )
    config = json.loads((llama / "config.json").read_text()) | {"dtype": "bfloat16"}
    (llama / "config.json").write_text(json.dumps(config))
    convert_directory(
        llama, tmp_path / "out", "6:8", "wanda", calibration=[torch.arange(40).view(1, 40)]
    )
    after = tensors(tmp_path / "out")[wide]
    assert torch.equal(after[after != 0], state[wide][after != 0])
    assert check(after, "6:8").worst_nnz == 6


@pytest.mark.parametrize("ignore", [(), ("lm_head", "gate_proj")])
def test_routers_and_ignored_layers_stay_as_they_are(
    ignore: tuple[str, ...], llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A layer that conversion takes for a router must not be held to the pattern when it is loaded.
    monkeypatch.setattr("llm_systems.slidesparse.checkpoint._NOT_LINEAR", re.compile("o_proj|lm_h"))
    convert_directory(llama, tmp_path / "pruned", "6:8", ignore=ignore)
    model = load(tmp_path / "pruned")
    kept = {name.rpartition(".")[2] for name, m in model.named_modules() if type(m) is nn.Linear}
    assert kept == {"o_proj", "lm_head", *ignore}


def test_the_command(model_folder: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    out = str(tmp_path / "out")
    done = run(app, ["convert", str(model_folder), out, "--pattern", "6:8"])
    assert done.exit_code == 0, done.output
    assert "3 layers to 6:8" in done.output
    assert run(app, ["check", out]).exit_code == 0
    worse = run(app, ["check", out, "--pattern", "2:4"])
    assert worse.exit_code == 1
    assert "0 of 3 layers obey" in worse.output
    assert "…" not in worse.output  # names are whole, in 80 columns too
    again = run(app, ["convert", str(model_folder), out])
    assert again.exit_code == 2
    assert "not empty" in again.output
    assert run(app, ["check", str(model_folder)]).exit_code == 2
    small = ["bench", "--shapes", "32x16", "--patterns", "6:8", "--tokens", "3", "--repeats", "1"]
    assert run(app, small).exit_code == 0
    # At 4096 tokens the large layers of a 7B model on an A100 are near the bound of 1.33.
    predicted = run(app, ["predict", "--patterns", "6:8"])
    assert predicted.exit_code == 0
    assert "1.3" in predicted.output
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for wrong in (
        ["convert", str(model_folder), out + "2", "--pattern", "2:8"],
        ["convert", str(model_folder), out + "2", "--method", "wanda"],
        ["convert", str(model_folder), out + "2", "--targets", "("],
        ["convert", str(model_folder), out + "2", "--activation", "None"],
        ["convert", str(model_folder), out + "2", "--calib", str(model_folder / "config.json")],
        ["convert", str(model_folder), out + "2", "--method", "wanda", "--calib", str(binary)],
        ["convert", str(model_folder), out + "2", "--method", "random", "--seed", "9" * 30],
        ["bench", "--shapes", "1000000x1000000"],
        ["bench", "--shapes", "9" * 30 + "x8"],
        ["bench", "--shapes", "8x8", "--tokens", "999999999"],
        ["predict", "--hardware", "1:-1"],
        ["predict", "--shapes", "9" * 400 + "x8"],
        ["bench", "--shapes", "many"],
        ["bench", "--tokens", "0"],
        ["predict", "--hardware", "toaster"],
    ):
        refused = run(app, wrong)
        assert refused.exit_code == 2, wrong
        assert refused.output.startswith("error:")


def test_activation_is_named_as_it_is_written(model_folder: Path, tmp_path: Path) -> None:
    wanted = "activation is 'int4'; allowed: 'none', 'int8' or 'fp8'"
    out = str(tmp_path / "out")
    refused = CliRunner().invoke(app, ["convert", str(model_folder), out, "--activation", "int4"])
    assert wanted in refused.output
    with pytest.raises(ValueError, match=wanted):
        Settings.read({"quant_method": "slidesparse", "pattern": "6:8", "activation": "int4"})


@pytest.mark.parametrize("pieces", [1, 2, 16])
def test_pieces_that_keep_whole_blocks_are_taken(pieces: int) -> None:
    check_shard("down_proj", 1536, 1536 // pieces, Pattern.parse("6:8"))


def test_pieces_that_cut_blocks_are_refused() -> None:
    # 576 / 16 = 36, no multiple of 8; pieces of 288, 192, 144 ... inputs would do.
    with pytest.raises(
        ValueError, match=r"16 pieces of 36.*tensor_parallel_size in \[1, 2, 3, 4, 6"
    ):
        check_shard("o_proj", 576, 36, Pattern.parse("6:8"))


def test_check_agrees_with_the_weights(model_folder: Path) -> None:
    found = check_directory(model_folder, "6:8")
    for name, tensor in tensors(model_folder).items():
        layer = name.removesuffix(".weight")
        if layer in found:
            assert found[layer] == check(tensor, "6:8")
    assert sorted(found) == LINEAR
