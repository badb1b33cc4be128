"""Credit the tokens, or the responses, of a group by the policy's entropy.

Reinforcement learning with verifiable rewards gives all tokens of a response one advantage. GTPO
spreads it: in right responses the tokens at which the policy was uncertain get more credit, in
wrong ones those at which it was certain get more blame, and at every position the total stays what
it was. GRPO-S does the same between whole responses. No critic and no process reward is needed.

`rl_curriculum.gtpo.trl` has the trainers for language models; the functions here are pure and need
torch alone; `TinyRLTrainer` and `train_tabular` are for studies on a processor core.

Source: Tan, Wang, Pan, Lin, Wang, Wu, Chen, Zheng, Tang and Yang, "GTPO and GRPO-S: Token and
Sequence-Level Reward Shaping with Policy Entropy", ICML 2026, arXiv 2508.04349. No code of the
authors is published, and Eq. 6 can be read in several ways: see `shape_advantages`. Other methods
of the name GTPO (arXiv 2508.03772 and 2511.14846) are unrelated.

Examples
--------
>>> import torch
>>> rewards = torch.tensor([1.0, 1.0, 0.0, 0.0])
>>> entropy = torch.tensor([[0.6, 0.2], [0.3, 0.6], [0.5, 0.1], [0.25, 0.4]])
>>> gtpo_advantages(rewards, entropy, torch.ones(4, 2), group_size=4, alpha=(0.5, 0.5))
tensor([[ 1.1667,  0.7500],
        [ 0.8333,  1.2500],
        [-0.8333, -1.3000],
        [-1.1667, -0.7000]])
"""

from rl_curriculum.gtpo.advantages import (
    grpo_advantages,
    grpo_s_advantages,
    gtpo_advantages,
    shape_advantages,
)
from rl_curriculum.gtpo.entropy import token_entropy
from rl_curriculum.gtpo.explain import (
    Explanation,
    Group,
    Response,
    as_html,
    explain_group,
    read_groups,
    write_groups,
)
from rl_curriculum.gtpo.loss import (
    clipped_loss,
    dapo_overlong_penalty,
    group_overlong_penalty,
    importance_ratio,
)
from rl_curriculum.gtpo.methods import METHODS, Method, named_method
from rl_curriculum.gtpo.rewards import boxed_answer, boxed_reward, exact_reward
from rl_curriculum.gtpo.tabular import Study, TokenChain, TokenTrap, train_tabular
from rl_curriculum.gtpo.tasks import BuggyCarry, ConfidentShortcut
from rl_curriculum.gtpo.tiny import TinyTransformer, decode, encode
from rl_curriculum.gtpo.tiny_trainer import TinyRLTrainer, evaluate_tiny, imitate
from rl_curriculum.gtpo.weights import gtpo_shaped_rewards, gtpo_weights

__all__ = [
    "METHODS",
    "BuggyCarry",
    "ConfidentShortcut",
    "Explanation",
    "Group",
    "Method",
    "Response",
    "Study",
    "TinyRLTrainer",
    "TinyTransformer",
    "TokenChain",
    "TokenTrap",
    "as_html",
    "boxed_answer",
    "boxed_reward",
    "clipped_loss",
    "dapo_overlong_penalty",
    "decode",
    "encode",
    "evaluate_tiny",
    "exact_reward",
    "explain_group",
    "group_overlong_penalty",
    "grpo_advantages",
    "grpo_s_advantages",
    "gtpo_advantages",
    "gtpo_shaped_rewards",
    "gtpo_weights",
    "imitate",
    "importance_ratio",
    "named_method",
    "read_groups",
    "shape_advantages",
    "token_entropy",
    "train_tabular",
    "write_groups",
]
