"""The plugin in a real vLLM engine on the CPU, and in its server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_systems.slidesparse import convert_directory
from llm_systems.slidesparse.patterns import PatternViolation

pytestmark = pytest.mark.vllm

PROMPTS = ([1, 2, 3, 4], [9, 8, 7, 6, 5])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of two layers with a tokenizer of whole words."""
    import tokenizers
    import transformers

    folder = tmp_path_factory.mktemp("models") / "source"
    config = transformers.Qwen2Config(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    words = {f"w{i}": i for i in range(511)} | {"[UNK]": 511}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    ).save_pretrained(folder)
    return folder


def plain(folder: Path) -> Path:
    """The same weights without a word about patterns, for stock vLLM."""
    out = folder.with_name(folder.name + "-plain")
    pattern = json.loads((folder / "config.json").read_text())["quantization_config"]["pattern"]
    convert_directory(folder, out, pattern, "keep")
    config = json.loads((out / "config.json").read_text())
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config))
    return out


def generate(folder: Path, **options: Any) -> list[tuple[list[int], float]]:
    """Greedy tokens and their summed log-probabilities."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=128,
        enforce_eager=True, **options,
    )  # fmt: skip
    how = SamplingParams(
        temperature=0, detokenize=False, ignore_eos=True, max_tokens=16, logprobs=0
    )
    done = llm.generate([{"prompt_token_ids": list(p)} for p in PROMPTS], how, use_tqdm=False)
    return [(list(o.outputs[0].token_ids), o.outputs[0].cumulative_logprob) for o in done]


def test_loading_the_entry_point_twice_is_harmless() -> None:
    from vllm.model_executor.layers.quantization import (
        QUANTIZATION_METHODS,
        get_quantization_config,
    )

    (point,) = entry_points(group="vllm.general_plugins", name="slidesparse")
    for _ in range(2):
        point.load()()
    assert QUANTIZATION_METHODS.count("slidesparse") == 1
    assert get_quantization_config("slidesparse").get_name() == "slidesparse"


def test_two_patterns_in_one_process_give_the_tokens_of_stock_vllm(source: Path) -> None:
    folders = {}
    for pattern in ("6:8", "4:6"):
        folders[pattern] = source.with_name(pattern.replace(":", "-"))
        convert_directory(source, folders[pattern], pattern)
    found = {pattern: generate(folder) for pattern, folder in folders.items()}
    expected = {pattern: generate(plain(folder)) for pattern, folder in folders.items()}
    for pattern in folders:
        for (tokens, logprob), (stock, stock_logprob) in zip(
            found[pattern], expected[pattern], strict=True
        ):
            assert tokens == stock
            assert logprob == pytest.approx(stock_logprob, abs=1e-3)
    # The patterns prune differently, so that equal numbers would mean that one was not used.
    assert found["6:8"][0][1] != found["4:6"][0][1]


def test_int8_and_ignored_layers_are_served(source: Path) -> None:
    out = source.with_name("int8")
    convert_directory(source, out, "6:8", activation="int8", targets="mlp")
    # Eight bits change the log-probability of 16 tokens a little, but it stays that of 1 in 512.
    for _, logprob in generate(out):
        assert -16 * 6.24 < logprob < 0


def test_weights_that_do_not_obey_are_refused(source: Path) -> None:
    out = source.with_name("wrong")
    convert_directory(source, out, "6:8")
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"]["pattern"] = "2:4"
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(PatternViolation, match=r"qkv_proj: row 0"):
        generate(out)


def test_the_server_answers(source: Path) -> None:
    out = source.with_name("served")
    convert_directory(source, out, "6:8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = out.with_suffix(".log")
    command = [
        str(Path(sys.executable).with_name("vllm")), "serve", str(out), "--port", str(port),
        "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-model-len", "128",
        "--served-model-name", "pruned",
    ]  # fmt: skip
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        )
    try:
        answer = ask(port, server, log)
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    assert answer["model"] == "pruned"
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["finish_reason"] == "length"


def ask(port: int, server: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """The answer to a completion, as soon as the server gives one."""
    body = {"model": "pruned", "prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0,
            "ignore_eos": True}  # fmt: skip
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    for _ in range(900):
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                found: dict[str, Any] = json.load(reply)
                return found
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    raise AssertionError(f"no answer: {log.read_text()[-3000:]}")
