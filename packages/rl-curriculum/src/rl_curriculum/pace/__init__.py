"""Train a policy on the levels of a procedural environment that still move it.

A level generator, an environment and a policy go in; the trainer decides which levels to train on
next. A level's score is how far a provisional update on it alone would move the policy's
parameters: mastered and hopeless levels score nothing, and so, on average, do levels whose reward
is only noise, which scores made of values take for something to learn.

Source: Yuan, Yin, Shen, Xie, Yang, Qin, Zeng and Li, "PACE: Parameter Change for Unsupervised
Environment Design", ICML 2026, arXiv 2605.01358.

Examples
--------
>>> trainer = PACETrainer(
...     MLPPolicy(79, 3, seed=0), MazeVecEnv(8, 32), generators.standard,
...     PACEConfig(steps=32, capacity=64), seed=0)
>>> trainer = trainer.learn(total_steps=5_000)
>>> evaluate(trainer.policy, MazeVecEnv(8, 250), named_levels("prefabs")).rates.shape
(8,)
"""

from rl_curriculum.pace import generators
from rl_curriculum.pace.adapters import CleanRLAgent, StableBaselines3Policy
from rl_curriculum.pace.baseline_scores import (
    l1_value_loss,
    learnability,
    marginal_benefit,
    max_mc,
    positive_value_loss,
    random_score,
)
from rl_curriculum.pace.craftax import CraftaxVecEnv, swap
from rl_curriculum.pace.curriculum_env import CurriculumVectorEnv, LevelWrapper
from rl_curriculum.pace.evaluation import (
    Evaluation,
    cvar_success,
    evaluate,
    iqm,
    optimality_gap,
    stratified_bootstrap,
)
from rl_curriculum.pace.maze_env import MazeVecEnv, to_minigrid
from rl_curriculum.pace.mazes import (
    MazeLevels,
    mutate_levels,
    random_levels,
    read_levels,
    shortest_actions,
    solvable,
)
from rl_curriculum.pace.paired import PAIREDTrainer
from rl_curriculum.pace.policies import LSTMPolicy, MLPPolicy
from rl_curriculum.pace.ppo import PPOConfig
from rl_curriculum.pace.prefabs import PREFABS, four_rooms, perfect_mazes
from rl_curriculum.pace.rollout import Rollout
from rl_curriculum.pace.sampler import LevelSampler
from rl_curriculum.pace.scores import level_gradients, pace_scores
from rl_curriculum.pace.sources import level_generator, named_levels
from rl_curriculum.pace.trainer import PACEConfig, PACETrainer, config_for

__all__ = [
    "PREFABS",
    "CleanRLAgent",
    "CraftaxVecEnv",
    "CurriculumVectorEnv",
    "Evaluation",
    "LSTMPolicy",
    "LevelSampler",
    "LevelWrapper",
    "MLPPolicy",
    "MazeLevels",
    "MazeVecEnv",
    "PACEConfig",
    "PACETrainer",
    "PAIREDTrainer",
    "PPOConfig",
    "Rollout",
    "StableBaselines3Policy",
    "config_for",
    "cvar_success",
    "evaluate",
    "four_rooms",
    "generators",
    "iqm",
    "l1_value_loss",
    "learnability",
    "level_generator",
    "level_gradients",
    "marginal_benefit",
    "max_mc",
    "mutate_levels",
    "named_levels",
    "optimality_gap",
    "pace_scores",
    "perfect_mazes",
    "positive_value_loss",
    "random_levels",
    "random_score",
    "read_levels",
    "shortest_actions",
    "solvable",
    "stratified_bootstrap",
    "swap",
    "to_minigrid",
]
