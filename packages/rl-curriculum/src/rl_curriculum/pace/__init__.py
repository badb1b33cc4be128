"""x"""

from . import generators
from .adapters import CleanRLAgent, StableBaselines3Policy
from .curriculum_env import CurriculumVectorEnv, LevelWrapper
from .evaluation import (
    Evaluation,
    cvar_success,
    evaluate,
    iqm,
    optimality_gap,
    stratified_bootstrap,
)
from .maze_env import MazeVecEnv, to_minigrid
from .mazes import MazeLevels, mutate_levels, random_levels, read_levels, shortest_actions, solvable
from .policies import LSTMPolicy, MLPPolicy
from .ppo import PPOConfig
from .prefabs import PREFABS
from .rollout import Rollout
from .sampler import LevelSampler
from .scores import pace_scores
from .trainer import PACEConfig, PACETrainer, config_for
