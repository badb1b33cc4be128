"""Mild structured sparsity, (2N-2):2N, on hardware made for 2:4, on a CPU, and in vLLM.

GPUs speed up weights with two zeros in every four inputs; language models survive two zeros in
every eight much better. Sliding windows turn the second into the first without loss: the weight is
rearranged once, the activations are repeated accordingly, and the products are the same.

Source: "SlideSparse", ICML 2026, arXiv 2603.05232. The closed form of the decomposition, its proof
for other hardware, the CPU kernel and the vLLM plugin are this package's.

Examples
--------
>>> import torch
>>> weight = torch.tensor([[1, 0, 2, 3, 0, 4, 5, 6]])
>>> slide(weight, "6:8").to_2to4().tolist()
[[1, 0, 2, 0, 0, 3, 0, 4, 0, 0, 5, 6]]
>>> lift(torch.arange(1, 9), "6:8").tolist()
[1, 2, 3, 4, 3, 4, 5, 6, 5, 6, 7, 8]
"""

from .checkpoint import check_directory, load, save_pretrained
from .conversion import ConversionReport, convert
from .cost import Cost, cost_model
from .directory import convert_directory
from .lifting import lift, lift_index, quantize_lift
from .linear import SlideLinear
from .patterns import Pattern, PatternReport, PatternViolation, check
from .pruning import prune_
from .windows import SlidWeight, decompose, slide

__all__ = [
    "ConversionReport",
    "Cost",
    "Pattern",
    "PatternReport",
    "PatternViolation",
    "SlidWeight",
    "SlideLinear",
    "check",
    "check_directory",
    "convert",
    "convert_directory",
    "cost_model",
    "decompose",
    "lift",
    "lift_index",
    "load",
    "prune_",
    "quantize_lift",
    "save_pretrained",
    "slide",
]
