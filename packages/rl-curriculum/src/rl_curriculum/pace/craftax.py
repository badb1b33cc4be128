"""Craftax as an environment that takes levels; needs the extra `craftax` (JAX)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .levels import Arrays, count


class CraftaxVecEnv(VectorEnv[Any, Any, Any]):
    """Worlds of Craftax, stepped together; each goes on with its own world until `assign`.

    A level is the whole first state of a world: the arrays of its fields by name, such as `"map"`.
    Compiling takes about a minute before the first level and step.

    Parameters
    ----------
    num_envs
        The number of worlds.
    name
        Such as `"Craftax-Classic-Symbolic-v1"` or `"Craftax-Symbolic-v1"`.
    max_steps
        Cuts episodes off before the world's own limit of 10,000 steps.

    Raises
    ------
    ImportError
        Without the extra `craftax`.

    Examples
    --------
    >>> env = CraftaxVecEnv(64, max_steps=500)  # doctest: +SKIP
    >>> levels = env.sample(np.random.default_rng(0), 64)  # doctest: +SKIP
    >>> env.assign(levels, seed=0).shape  # doctest: +SKIP
    (64, 1345)
    """

    def __init__(
        self,
        num_envs: int,
        name: str = "Craftax-Classic-Symbolic-v1",
        max_steps: int | None = None,
    ) -> None:
        try:
            import jax

            craftax_env = import_module("craftax.craftax_env")
        except ImportError:
            raise ImportError(
                "Craftax needs the extra craftax: pip install 'rl-curriculum[craftax]'"
            ) from None
        for argument, value in (("num_envs", num_envs), ("max_steps", max_steps or 1)):
            if value < 1:
                raise ValueError(f"{argument} is {value!r}; allowed: at least 1")
        self.num_envs = num_envs
        self._jax = jax
        env = craftax_env.make_craftax_env_from_name(name, auto_reset=False)
        self._params = env.default_params
        self._limit = max_steps or 2**31 - 1
        shape = env.observation_space(self._params).shape
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.single_action_space = gym.spaces.Discrete(env.action_space(self._params).n)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        first = jax.eval_shape(env.reset, jax.random.PRNGKey(0), self._params)[1]
        paths, self._tree = jax.tree_util.tree_flatten_with_path(first)
        self._names = [jax.tree_util.keystr(path).strip(".") for path, _ in paths]
        self._types = [leaf.dtype for _, leaf in paths]
        params = self._params

        def draw(keys: Any) -> Any:
            return jax.tree_util.tree_leaves(jax.vmap(lambda k: env.reset(k, params)[1])(keys))

        def step(key: Any, state: Any, start: Any, time: Any, actions: Any) -> Any:
            keys = jax.random.split(key, num_envs + 1)
            obs, after, reward, done, _ = jax.vmap(lambda k, s, a: env.step(k, s, a, params))(
                keys[1:], state, actions
            )
            time = time + 1
            cut = (time >= self._limit) & ~done
            end = done | cut

            def pick(new: Any, old: Any) -> Any:
                return jax.numpy.where(end.reshape(-1, *[1] * (new.ndim - 1)), old, new)

            after = jax.tree_util.tree_map(pick, after, start)
            shown = jax.vmap(env.get_obs)(after)
            return keys[0], after, time * ~end, shown, obs, reward, done, cut

        self._draw, self._step = jax.jit(draw), jax.jit(step)
        self._get_obs = jax.jit(jax.vmap(env.get_obs))
        self._state: Any = None

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        """New worlds: the generator for a `PACETrainer`.

        Parameters
        ----------
        rng
            The generator.
        n
            The number of worlds.

        Returns
        -------
        levels
            Arrays of the first state by name, shape (n, ...).
        """
        found: list[list[NDArray[Any]]] = []
        for low in range(0, n, self.num_envs):
            # One size of batch, so that it is compiled once.
            seeds = rng.integers(0, 2**32, (self.num_envs, 2), dtype=np.uint32)
            leaves = self._draw(seeds)
            found.append([np.asarray(leaf)[: n - low] for leaf in leaves])
        parts = [np.concatenate(column) for column in zip(*found, strict=True)]
        return dict(zip(self._names, parts, strict=True))

    def assign(self, levels: Arrays, seed: int | None = None) -> NDArray[np.float32]:
        """Put the environments into these worlds and return the first observations."""
        if not isinstance(levels, dict) or set(levels) != set(self._names):
            raise ValueError("levels are no worlds of this environment; see sample")
        if count(levels) != self.num_envs:
            raise ValueError(f"levels are {count(levels)}; allowed: {self.num_envs}")
        jnp = self._jax.numpy
        leaves = [
            jnp.asarray(levels[name], dtype=kind)
            for name, kind in zip(self._names, self._types, strict=True)
        ]
        self._start = self._state = self._jax.tree_util.tree_unflatten(self._tree, leaves)
        if seed is not None or not hasattr(self, "_key"):
            self._key = self._jax.random.PRNGKey(seed or 0)
        self._time = jnp.zeros(self.num_envs, dtype=jnp.int32)
        # JAX's own buffers are read-only.
        return np.array(self._get_obs(self._state), dtype=np.float32)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start anew on `options["levels"]`, or on new worlds."""
        number = seed if isinstance(seed, int) else None
        levels = (options or {}).get("levels")
        if levels is None:
            levels = self.sample(np.random.default_rng(number), self.num_envs)
        return self.assign(levels, number), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Act in every world; ended ones go on with their own first state."""
        if self._state is None:
            raise ValueError("no level is assigned; call assign or reset first")
        self._key, self._state, self._time, shown, obs, reward, done, cut = self._step(
            self._key, self._state, self._start, self._time, np.asarray(actions)
        )
        terminated, truncated = np.asarray(done), np.asarray(cut)
        info = {}
        if terminated.any() or truncated.any():
            info["final_obs"] = np.array(obs, dtype=np.float32)
        return (
            np.array(shown, dtype=np.float32),
            np.asarray(reward, dtype=np.float32),
            terminated,
            truncated,
            info,
        )


def swap(levels: Arrays, rng: np.random.Generator, edits: int) -> Arrays:
    """Copies of worlds with pairs of blocks of their maps swapped: ACCEL's mutator for Craftax.

    Parameters
    ----------
    levels
        Worlds with a `"map"` of shape (N, height, width), or (N, floors, height, width), and the
        player's place.
    rng
        The generator.
    edits
        Pairs in each world. Pairs with the player's block are passed over.

    Returns
    -------
    children

    Examples
    --------
    >>> world = {"map": np.arange(9).reshape(1, 3, 3), "player_position": np.array([[1, 1]])}
    >>> child = swap(world, np.random.default_rng(0), 4)["map"]
    >>> sorted(child.ravel().tolist()) == list(range(9)), int(child[0, 1, 1])
    (True, 4)
    """
    if edits < 0:
        raise ValueError(f"edits is {edits!r}; allowed: at least 0")
    maps = np.array(levels["map"])
    n, (height, width) = len(maps), maps.shape[-2:]
    flat = maps.reshape(n, -1, height * width)
    player = levels["player_position"][:, 0] * width + levels["player_position"][:, 1]
    rows = np.arange(n)
    for _ in range(edits):
        a, b = rng.integers(0, height * width, (2, n))
        floor = rng.integers(0, flat.shape[1], n)
        a = np.where((a == player) | (b == player), b, a)
        flat[rows, floor, a], flat[rows, floor, b] = (
            flat[rows, floor, b].copy(),
            flat[rows, floor, a].copy(),
        )
    return {**levels, "map": flat.reshape(maps.shape)}
