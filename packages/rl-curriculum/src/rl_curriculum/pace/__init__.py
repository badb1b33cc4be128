"""x"""
from .policies import LSTMPolicy, MLPPolicy
from .rollout import Rollout
from .sampler import LevelSampler
from .scores import pace_scores
