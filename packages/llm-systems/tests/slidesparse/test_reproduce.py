"""The order of perplexities on a real model; tests of the whole run the experiment itself."""

from __future__ import annotations

import pytest

from llm_systems._data import data_file, smollm2

pytest.importorskip("repro_bench")
pytest.importorskip("transformers")

from llm_systems.slidesparse.reproduce import Sizes, trial


@pytest.mark.slow
def test_milder_patterns_and_wanda_are_more_accurate() -> None:
    # The order that the paper reports on larger models, on two chunks of 256 tokens.
    try:
        smollm2()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    sizes = Sizes(seeds={"perplexity": 1}, chunks=2)
    found = {
        arm: trial(f"perplexity/{arm}", 0, sizes).metrics["perplexity"]
        for arm in ("dense", "wanda-14:16", "wanda-6:8", "wanda-4:6", "wanda-2:4", "magnitude-6:8")
    }
    order = ["dense", "wanda-14:16", "wanda-6:8", "wanda-4:6", "wanda-2:4"]
    assert sorted(order, key=lambda arm: found[arm]) == order
    assert found["wanda-6:8"] < found["magnitude-6:8"]
    assert found["wanda-2:4"] > 3 * found["dense"]


def test_a_missing_package_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="pip install --no-deps no-such-package==1"):
        data_file("no-such-package", "1", "file")
