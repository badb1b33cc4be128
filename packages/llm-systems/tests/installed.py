"""Uses the field from an installed wheel, with nothing but what it requires."""

import torch

from llm_systems.slidesparse import SlideLinear, lift, prune_, slide

weight = torch.tensor([[1.0, 0, 2, 3, 0, 4, 5, 6]])
x = torch.arange(1.0, 9)
# 1 + 2 * 3 + 3 * 4 + 4 * 6 + 5 * 7 + 6 * 8
assert float(slide(weight, "6:8").to_2to4()[0] @ lift(x, "6:8")) == 126.0
dense = torch.nn.Linear(64, 32)
prune_(dense, "6:8")
layer = SlideLinear.from_linear(dense, "6:8")
with torch.inference_mode():
    torch.testing.assert_close(layer(torch.ones(20, 64)), dense(torch.ones(20, 64)))
