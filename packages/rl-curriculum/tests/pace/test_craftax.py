"""Craftax through the adapter; slow, because its environments are compiled for a minute."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from rl_curriculum.pace import MLPPolicy, PACETrainer, config_for
from rl_curriculum.pace.craftax import CraftaxVecEnv, swap
from rl_curriculum.pace.ppo import PPOConfig

needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("craftax") is None, reason="needs the extra craftax"
)


def test_swapping_moves_blocks_and_keeps_the_players() -> None:
    rng = np.random.default_rng(0)
    world = {
        "map": rng.integers(0, 17, (5, 64, 64)),
        "player_position": rng.integers(0, 64, (5, 2)),
        "other": np.arange(5),
    }
    child = swap(world, rng, 30)
    for i in range(5):
        assert np.array_equal(
            np.bincount(child["map"][i].ravel()), np.bincount(world["map"][i].ravel())
        )
        at = tuple(world["player_position"][i])
        assert child["map"][i][at] == world["map"][i][at]
    changed = (child["map"] != world["map"]).sum((1, 2))
    assert ((changed > 20) & (changed <= 60)).all()
    assert child["other"] is world["other"]


def test_importing_the_method_brings_no_jax() -> None:
    code = (
        "import sys, rl_curriculum.pace, rl_curriculum.pace.craftax, rl_curriculum.pace.cli\n"
        "print('jax' in sys.modules, 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_without_the_extra_its_name_is_said(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"rl-curriculum\[craftax\]"):
        CraftaxVecEnv(2)


@pytest.mark.slow
@needs_jax
def test_worlds_replay_and_train() -> None:
    env = CraftaxVecEnv(8, max_steps=20)
    rng = np.random.default_rng(0)
    levels = env.sample(rng, 8)
    assert len({m.tobytes() for m in levels["map"]}) == 8
    first = env.assign(levels, seed=1)
    np.testing.assert_array_equal(first, env.assign(levels, seed=1))
    for _ in range(20):
        obs, _, terminated, truncated, info = env.step(rng.integers(0, 17, 8))
        assert np.isfinite(obs).all()
        for i in np.flatnonzero(terminated | truncated):
            # The same world again.
            np.testing.assert_array_equal(obs[i], first[i])
    assert truncated.any()
    assert "final_obs" in info
    trainer = PACETrainer(
        MLPPolicy(1345, 17, (32,)),
        env,
        env.sample,
        config_for("accel-pace", steps=40, capacity=16, mutations=10, ppo=PPOConfig(epochs=1)),
        mutator=swap,
        seed=0,
    ).learn(total_updates=3)
    assert {"new", "replay", "mutate"} == {row["phase"] for row in trainer.history}
    assert np.isfinite(trainer.sampler.scores).all()


@pytest.mark.slow
@needs_jax
def test_the_demonstration_reports_unseen_worlds() -> None:
    command = [sys.executable, "-c", "from rl_curriculum.cli import main; main()"]
    sizes = ["--steps", "600", "--num-envs", "8", "--length", "20"]
    done = subprocess.run(
        [*command, "pace", "craftax", *sizes], capture_output=True, text=True, check=True
    )
    assert "return on unseen worlds, after" in done.stdout
    assert "Warning" not in done.stderr
    # Three batches of 8 worlds x 20 steps leave less than 600, the fourth is the last.
    assert "640, " in done.stdout
