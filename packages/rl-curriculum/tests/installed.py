"""Used from an installed wheel without extras."""

import numpy as np
import torch

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
