"""Used from an installed wheel without extras."""

import numpy as np
import torch

from rl_curriculum.gtpo import (
    ConfidentShortcut,
    TinyRLTrainer,
    TinyTransformer,
    TokenTrap,
    boxed_reward,
    gtpo_advantages,
    train_tabular,
)
from rl_curriculum.pace import (
    LevelSampler,
    MazeVecEnv,
    MLPPolicy,
    PACEConfig,
    PACETrainer,
    generators,
    pace_scores,
    random_levels,
    to_minigrid,
)
from rl_curriculum.pace.fidelity import closed_form_errors

# Ranks 1, 3, 2 replay in the proportions 6 : 2 : 3.
sampler = LevelSampler(3, staleness=0.0)
sampler.insert([1, 2, 3], [3.0, 1.0, 2.0])
assert np.allclose(sampler.weights(), np.array([6, 2, 3]) / 11)
assert max(closed_form_errors().values()) < 1e-6

torch.set_num_threads(1)
trainer = PACETrainer(
    MLPPolicy(79, 3), MazeVecEnv(8, 32), generators.standard, PACEConfig(steps=32, capacity=16)
).learn(total_updates=2)
assert trainer.updates == 2
assert 0 < len(trainer.sampler) <= 16
assert callable(pace_scores)
assert to_minigrid(random_levels(1)).reset()[0]["image"].shape == (5, 5, 3)

# Entropies .6 and .3 of two right responses share 2 as 4/3 and 2/3.
shaped = gtpo_advantages(
    torch.tensor([1.0, 1.0, 0.0, 0.0]),
    torch.tensor([[0.6], [0.3], [0.4], [0.4]]),
    torch.ones(4, 1),
    4,
    alpha=(0.5, 0.5),
)
assert torch.allclose(shaped[:, 0], torch.tensor([7 / 6, 5 / 6, -1.0, -1.0]), atol=1e-5)
assert boxed_reward([r"\boxed{\frac{2}{4}}"], ["1/2"]) == [1.0]
study = train_tabular(TokenTrap(3, 0.5, 0.3), "grpo-s:0.5", steps=1, replicas=2, seed=0)
assert torch.allclose(study.curve[0], torch.tensor(0.3 / 8 + 0.7 / 2).double())
TinyRLTrainer(TinyTransformer(), ConfidentShortcut(), "gtpo", prompts=2, group=2).learn(1)
