"""GTPO and GRPO-S in TRL: `GRPOTrainer` with one step overridden.

The parent generates, scores and normalises as ever; then, while the responses of a prompt still
stand together, its advantages of responses are spread over their tokens. Everything else (peft,
accelerate, gradient accumulation, tool masks, vLLM) is the parent's, but that checkpoints keep the
completions that are in use (`ResumableTrainer`).

Another "GTPO", the group-relative trajectory-based one (arXiv 2508.03772), and a turn-level one
(arXiv 2511.14846) have nothing to do with this.

Needs the extra `trl`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from .advantages import Normalization, shape_advantages
from .checks import require_finite, require_whole
from .explain import Group, Response, write_groups
from .loss import importance_ratio
from .weights import checked_clips, gtpo_weights, mean_entropy

try:
    from trl import GRPOConfig  # type: ignore[attr-defined]

    from .checkpoints import ResumableTrainer
except ImportError as error:  # pragma: no cover
    raise ImportError(f"{error}; install with: pip install 'rl-curriculum[trl]'") from error

_PAPER = {
    "title": "GTPO and GRPO-S: Token and Sequence-Level Reward Shaping with Policy Entropy",
    "id": "2508.04349",
    "citation": "",
}


@dataclass
class GTPOConfig(GRPOConfig):
    r"""`trl.GRPOConfig` with the weights of the shaped rewards, and DAPO's settings as defaults.

    Parameters
    ----------
    alpha1, alpha2
        $a_1$ and $a_2$ of Eq. 3 and 5; other sums than 1 change the total credit.
    normalization
        As in `shape_advantages`.
    entropy_clip_min, entropy_clip_max, weight_clip
        Bounds of entropies and of weights, as in `gtpo_weights`.
    log_groups
        Every so many batches of completions, write them with their entropies to
        `output_dir/groups/step-N.jsonl`, for `rl-curriculum gtpo explain`; 0 for never. A second
        batch of the same optimiser step goes to `step-N-1.jsonl`.

    Raises
    ------
    ValueError
        If a value is not allowed.

    Notes
    -----
    Dropout is switched off by default: entropies are those of the policy that samples. They are
    taken when the completions are scored, at the sampling temperature, so several iterations on a
    batch see the same ones.

    Examples
    --------
    >>> config = GTPOConfig("out", alpha1=0.5, alpha2=0.5, report_to="none", bf16=False)
    >>> config.epsilon_high, config.loss_type
    (0.28, 'dapo')
    """

    alpha1: float = field(default=0.9, metadata={"help": "Weight of the outcome."})
    alpha2: float = field(default=0.1, metadata={"help": "Weight of the entropy's share."})
    normalization: Normalization = field(
        default="outcome", metadata={"help": "outcome, joint, pooled or polarity."}
    )
    entropy_clip_min: float = field(default=1e-4, metadata={"help": "Least entropy."})
    entropy_clip_max: float | None = field(default=None, metadata={"help": "Largest entropy."})
    weight_clip: float | None = field(default=None, metadata={"help": "Largest weight."})
    log_groups: int = field(default=0, metadata={"help": "Batches between written groups."})
    epsilon_high: float | None = field(default=0.28, metadata={"help": "Upper clip."})
    mask_truncated_completions: bool = field(
        default=True, metadata={"help": "Leave completions without an end out of the loss."}
    )
    disable_dropout: bool = field(default=True, metadata={"help": "Switch dropout off."})

    def __post_init__(self) -> None:
        require_finite(0, alpha1=self.alpha1, alpha2=self.alpha2)
        if self.alpha1 == self.alpha2 == 0:
            raise ValueError("alpha1 and alpha2 are 0; allowed: non-negative numbers, not both 0")
        if self.normalization not in get_args(Normalization):
            raise ValueError(
                f"normalization is {self.normalization!r}; "
                f"allowed: {', '.join(get_args(Normalization))}"
            )
        checked_clips(
            (self.entropy_clip_min, self.entropy_clip_max),
            self.weight_clip,
            "(entropy_clip_min, entropy_clip_max)",
        )
        require_whole(0, log_groups=self.log_groups)
        super().__post_init__()  # type: ignore[no-untyped-call]


@dataclass
class GRPOSConfig(GTPOConfig):
    """`GTPOConfig` with the defaults of GRPO-S; `alpha1` and `alpha2` are its $b_1$ and $b_2$.

    Raises
    ------
    ValueError
        If a value is not allowed, or asks for what the sequence-level loss does not have: another
        `loss_type` than `"grpo"`, a KL term (`beta`), or an off-policy mask.

    Examples
    --------
    >>> GRPOSConfig("out", report_to="none", bf16=False).importance_sampling_level
    'sequence'
    """

    normalization: Normalization = field(
        default="joint", metadata={"help": "outcome, joint, pooled or polarity."}
    )
    loss_type: str = field(default="grpo", metadata={"help": "Only grpo."})
    importance_sampling_level: str = field(default="sequence", metadata={"help": "Only sequence."})

    def __post_init__(self) -> None:
        for name, allowed in (
            ("loss_type", "grpo"),
            ("importance_sampling_level", "sequence"),
            ("beta", 0.0),
            ("off_policy_mask_threshold", None),
        ):
            if getattr(self, name) != allowed:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; allowed for GRPO-S: {allowed!r}"
                )
        super().__post_init__()


class GTPOTrainer(ResumableTrainer):
    r"""`trl.GRPOTrainer` whose advantages have a value for every token.

    The constructor is the parent's; `args` is a `GTPOConfig`. With `alpha1=1, alpha2=0` training is
    the parent's to the last bit. The parent's advantages $A_i$, with its `scale_rewards`,
    `reward_weights` and so on, become $A_i (a_1 + a_2 s_{i,t})$ (`normalization="outcome"`).

    Logged beside the parent's metrics: `gtpo/weight_max`, `gtpo/weight_effective` (the effective
    share of tokens under the weights, 1 when all are equal) and `gtpo/sign_flips` (tokens whose
    advantage has another sign than their response's). A batch without a single token that counts
    has none of them.

    Raises
    ------
    TypeError
        If `args` is not a `GTPOConfig`.
    RuntimeError
        While training, if the shaping was not called, for instance because another library has
        replaced the method.

    Notes
    -----
    Source: Eq. 3, 5, 6 and 7. The one further forward pass that entropies cost is saved where the
    parent computes old log-probabilities anyway: with vLLM, and with several updates on a batch.

    Examples
    --------
    >>> from rl_curriculum.gtpo.character_model import character_model
    >>> from datasets import Dataset
    >>> model, tokenizer = character_model("0123456789+=")
    >>> trainer = GTPOTrainer(
    ...     model, lambda completions, **_: [float("7" in c) for c in completions],
    ...     GTPOConfig("out", max_steps=1, per_device_train_batch_size=4, num_generations=4,
    ...                max_completion_length=4, report_to="none", bf16=False, disable_tqdm=True),
    ...     train_dataset=Dataset.from_dict({"prompt": ["3+4="] * 4}),
    ...     processing_class=tokenizer)
    >>> trainer._name
    'GTPO'
    """

    _name = "GTPO"
    _tag_names = ["trl", "gtpo"]  # noqa: RUF012
    _paper = _PAPER
    _config: type[GTPOConfig] = GTPOConfig
    args: GTPOConfig
    model: Any
    processing_class: Any

    def __init__(
        self, model: Any, reward_funcs: Any = None, args: Any = None, *more: Any, **named: Any
    ) -> None:
        if not isinstance(args, self._config):
            raise TypeError(f"args is a {type(args).__name__}; allowed: a {self._config.__name__}")
        self._scoring = False
        self._seen_entropy: Tensor | None = None
        self._rewards = torch.empty(0)
        self._written: list[int] = []  # steps
        super().__init__(model, reward_funcs, args, *more, **named)

    def _calculate_rewards(self, *args: Any, **named: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(*args, **named)
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        self._rewards = torch.where(rewards.isnan().all(1), torch.nan, total)
        return rewards

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **named: Any) -> Any:
        """Keep the entropies of the first pass of the policy while a batch is scored."""
        first = self._scoring and self._seen_entropy is None and model is self.model
        if first:
            named["compute_entropy"] = True
        result = super()._get_per_token_logps_and_entropies(model, *args, **named)
        if first:
            self._seen_entropy = result[1]
        return result

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._scoring, self._seen_entropy = True, None
        try:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        finally:
            self._scoring = False
        # Without old log-probabilities the first pass, if any, was the reference policy's.
        known = self._seen_entropy if "old_per_token_logps" in output else None
        entropy = self._policy_entropy(output) if known is None else known
        output["advantages"] = self._shaped(output, entropy)
        return output

    def _policy_entropy(self, batch: dict[str, Any]) -> Tensor:
        keys = (
            *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask"),
            *("spatial_shapes", "num_tiles", "image_sizes", "token_type_ids"),
            *("mm_token_type_ids", "image_position_ids"),
        )
        training = self.model.training
        size = "per_device_train_batch_size" if training else "per_device_eval_batch_size"
        entropy: Tensor
        with torch.no_grad():
            _, entropy, _ = super()._get_per_token_logps_and_entropies(
                self.model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
                batch["completion_ids"].shape[1],
                batch_size=getattr(self.args, size),
                compute_entropy=True,
                **{key: batch[key] for key in keys if key in batch},
            )
        return entropy

    def _shaped(self, batch: dict[str, Any], entropy: Tensor) -> Tensor:
        """Advantages (B, T), or (B, 1) for responses, of this process's rows."""
        mask = batch["completion_mask"]
        if "tool_mask" in batch:
            mask = mask * batch["tool_mask"]
        # A group may lie on several processes.
        local = mask.shape
        entropy, mask = self._from_all(entropy.float()), self._from_all(mask)
        outcome = self.accelerator.gather(batch["advantages"])
        outcome = torch.where(self._rewards.isnan(), torch.nan, outcome)
        mode = "train" if self.model.training else "eval"
        group: Any = self.num_generations if mode == "train" else self.num_generations_eval
        units, live = self._units(entropy, mask)
        clip: dict[str, Any] = {
            "entropy_clip": (self.args.entropy_clip_min, self.args.entropy_clip_max),
            "weight_clip": self.args.weight_clip,
        }
        shaped = shape_advantages(
            outcome,
            units,
            live,
            group,
            alpha=(self.args.alpha1, self.args.alpha2),
            normalization=self.args.normalization,
            **clip,
        )
        known = live.bool() & ~outcome.isnan()[:, None]
        s_pos, s_neg = gtpo_weights(units, known, outcome > 0, group, **clip)
        weights = (s_pos + s_neg)[known]
        flips = (shaped * outcome[:, None] < 0)[known]
        metrics = self._metrics[mode]
        if len(weights):
            metrics["gtpo/weight_max"].append(float(weights.max()))
            effective = weights.sum().square() / (len(weights) * weights.square().sum())
            metrics["gtpo/weight_effective"].append(float(effective))
            metrics["gtpo/sign_flips"].append(float(flips.float().mean()))
        if mode == "train" and self.args.log_groups:
            batches = self._step // self._updates_on_a_batch + 1
            if batches % self.args.log_groups == 0:
                self._write(batch, entropy, mask, group)
        start = self.accelerator.process_index * local[0]
        return shaped[start : start + local[0], : local[1]]

    def _units(self, entropy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What credit is given to, (B, T) or (B, 1): its entropy, and whether it counts."""
        return entropy, mask

    def _from_all(self, values: Tensor) -> Tensor:
        padded = self.accelerator.pad_across_processes(values.contiguous(), dim=1)
        gathered: Tensor = self.accelerator.gather(padded)
        return gathered

    def _write(self, batch: dict[str, Any], entropy: Tensor, mask: Tensor, group: int) -> None:
        ids = self._from_all(batch["completion_ids"])
        prompts = self._from_all(batch["prompt_ids"].flip(1)).flip(1)
        shown = self._from_all(batch["prompt_mask"].flip(1)).flip(1).bool()
        if not self.accelerator.is_main_process:
            return
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        groups = []
        for start in range(0, len(ids), group):
            responses = []
            for row in range(start, start + group):
                live = mask[row].bool()
                reward = float(self._rewards[row])
                responses.append(
                    Response(
                        tokens=[tokenizer.decode([t]) for t in ids[row][live].tolist()],
                        entropy=entropy[row][live].tolist(),
                        reward=None if math.isnan(reward) else reward,
                    )
                )
            prompt = tokenizer.decode(prompts[start][shown[start]])
            groups.append(Group(prompt, responses))
        step = self.state.global_step
        before = self._written.count(step)
        self._written = [*(s for s in self._written if s == step), step]
        name = f"step-{step:06d}" + (f"-{before}" if before else "")
        write_groups(Path(str(self.args.output_dir)) / "groups" / f"{name}.jsonl", groups)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if inputs["advantages"].ndim != 2:
            raise RuntimeError(
                "advantages reached the loss without shaping: something has replaced "
                f"{type(self).__name__}._generate_and_score_completions"
            )
        loss: Tensor = super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]
        return loss


class GRPOSTrainer(GTPOTrainer):
    """`GTPOTrainer` with one advantage a response and the arithmetic mean of token ratios.

    `args` is a `GRPOSConfig`. Metrics are those of `GTPOTrainer`, with responses for tokens.

    Notes
    -----
    Source: Eq. 8, 9 and 11. TRL's own `importance_sampling_level="sequence"` is the geometric mean
    of ratios (GSPO); here the parent is handed log-probabilities whose ratios are all equal to the
    arithmetic mean, so that its loss is Eq. 11.

    Examples
    --------
    >>> GRPOSTrainer("no-model", args=GTPOConfig("out", report_to="none", bf16=False))
    Traceback (most recent call last):
    TypeError: args is a GTPOConfig; allowed: a GRPOSConfig
    """

    _name = "GRPO-S"
    _tag_names = ["trl", "grpo-s"]  # noqa: RUF012
    _config = GRPOSConfig

    def __init__(self, *args: Any, **named: Any) -> None:
        self._loss_inputs: dict[str, Any] | None = None
        super().__init__(*args, **named)

    def _units(self, entropy: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return mean_entropy(entropy, mask)

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **named: Any) -> Any:
        logp, entropy, aux = super()._get_per_token_logps_and_entropies(model, *args, **named)
        batch = self._loss_inputs
        if batch is None:
            return logp, entropy, aux
        mask = batch["completion_mask"]
        if "tool_mask" in batch:
            mask = mask * batch["tool_mask"]
        old = batch.get("old_per_token_logps")
        old = logp.detach() if old is None else old
        return old + importance_ratio(logp, old, mask, "seq_arith").log(), entropy, aux

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._loss_inputs = inputs
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None
