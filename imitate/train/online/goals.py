"""Hindsight relabelling of online RL with goals, and its requirements on algorithm and environment.

Steps are replayed with an outcome that was achieved later as their goal.

Andrychowicz et al., "Hindsight Experience Replay", NeurIPS 2017 (arXiv:1707.01495). The strategies are those of the
paper's section 4.5: the goal is the one achieved at a later step of the same episode (``future``), at its last step
(``final``), or at any step (``episode``). A share s of samples is relabelled, s / (1 - s) of them for each original
one: the paper's k = 4 is a share of 0.8.

Departure: the paper stores k relabelled copies of each step after its episode. Here nothing is stored twice:
goals are sampled with the batch, also from the steps so far of a running episode, and again for each batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from imitate.config import Config
from imitate.data.batches.build import training_filter_key
from imitate.data.shards.data_files import DataFiles, data_files
from imitate.envs.env import Env
from imitate.errors import ConfigError, EnvError
from imitate.train.online.ring import StepRing
from imitate.train.online.steps import Array

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
GOALS = (ACHIEVED, DESIRED)
GoalRewards = Callable[[Array, Array], Array]
Strategy = Literal["future", "final", "episode"]
MOST_SUBGOALS = 1000
"""Largest number of demonstrated states that become goals; limited because the env_args contain all of them."""


@dataclass(frozen=True)
class Gathered:
    """Values at the rows of a batch, and one step later.

    Attributes:
        seen, following: (B, F, D) observations that are vectors.
        rewards: (B, F) rewards of the environment.
        terminals: (B, F) bool.
    """

    seen: Array
    following: Array
    rewards: Array
    terminals: NDArray[np.bool_]


@dataclass(frozen=True)
class Hindsight:
    """Replacement of the goals of replayed steps.

    Attributes:
        rewards: function from achieved goals (B, G) and desired goals (B, G) to rewards (B,).
        share: average share of relabelled samples.
        strategy: source of the new goals.
        ends_at_goal: true if reaching a goal is a terminal; false to keep terminals unchanged.
    """

    rewards: GoalRewards
    share: float = 0.8
    strategy: Strategy = "future"
    ends_at_goal: bool = False

    def relabel(
        self,
        ring: StepRing,
        rows: NDArray[np.int64],
        windows: NDArray[np.int64],
        values: Gathered,
        generator: np.random.Generator,
    ) -> None:
        """Give some of a batch's steps another goal, with its reward and terminal.

        Args:
            ring: ring in which they are stored.
            rows: (B,) rows of the steps.
            windows: (B, F) rows of their stacked frames.
            values: copies of the values there; changed in place.
            generator: random generator.
        """
        chosen = np.flatnonzero(generator.random(len(rows)) < self.share)
        if not len(chosen):
            return
        achieved, desired = (ring.columns[key] for key in GOALS)
        steps, frames = rows[chosen], windows[chosen]
        goals = ring.vectors[ring.later(steps, self._offsets(ring, steps, generator) + 1), achieved]
        goals = np.repeat(goals[:, None], frames.shape[1], axis=1)
        reached = ring.vectors[ring.later(frames, 1), achieved]
        if self.ends_at_goal:
            old = values.seen[chosen, :, desired]
            others = values.terminals[chosen] & ~self._at_goal(reached, old)
            values.terminals[chosen] = others | self._at_goal(reached, goals)
        values.rewards[chosen] = self._rewards(reached, goals)
        values.seen[chosen, :, desired] = goals
        values.following[chosen, :, desired] = goals

    def _offsets(self, ring: StepRing, steps: Array, generator: np.random.Generator) -> Array:
        """Draw (R,) offsets to the later steps whose outcomes become the goals."""
        last = ring.steps_after(steps)
        if self.strategy == "final":
            return last
        first: Any = 0 if self.strategy == "future" else -ring.steps_before(steps)
        return generator.integers(first, last, endpoint=True)

    def _rewards(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Compute rewards (R, F) of achieved and desired goals (R, F, G)."""
        size = achieved.shape[-1]
        rewards = self.rewards(achieved.reshape(-1, size), desired.reshape(-1, size))
        shaped: NDArray[np.float32] = np.asarray(rewards, np.float32).reshape(achieved.shape[:-1])
        return shaped

    def _at_goal(self, achieved: Array, desired: Array) -> NDArray[np.bool_]:
        """Return (R, F) true if the reward equals that of achieving the desired goal exactly."""
        there: NDArray[np.bool_] = self._rewards(achieved, desired) >= self._rewards(
            desired, desired
        )
        return there


SETTING = "train.online.hindsight.enabled"


def stored_keys(config: Config) -> tuple[str, ...]:
    """Return the observations that a replay buffer keeps: the policy's and, for hindsight, the goals."""
    goals = GOALS if config.train.online.hindsight.enabled else ()
    return tuple(sorted({*config.all_obs_keys, *goals}))


def subgoals(config: Config, key: str | None, files: DataFiles | None) -> list[list[float]]:
    """Return states of the demonstrations that become goals: up to ten per demo, evenly spaced, the last one included.

    Args:
        config: resolved configuration.
        key: the observation that is a goal.
        files: its data files; None to open them here and close them at the end.

    Raises:
        ConfigError: there are no demonstrations.
    """
    if not config.train.data or key is None:
        raise ConfigError(
            "train.online.wrappers goals: states of demonstrations are goals, but there is no train.data: name some, "
            "or give low and high"
        )
    points: list[list[float]] = []
    with data_files(config, files) as files:
        for entry in config.train.data:
            file = files.open(entry.path)
            for demo in file.demos(training_filter_key(entry, config, files)):
                states = np.asarray(file.read(demo, f"obs/{key}"))
                rows = np.linspace(0, len(states) - 1, min(11, len(states))).round()[1:]
                points += states[rows.astype(int)].astype(float).tolist()
                if len(points) >= MOST_SUBGOALS:
                    return points[:MOST_SUBGOALS]
    return points


def goals_alike(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the key that provides each observation's statistics: desired goals use those of achieved goals."""
    return dict.fromkeys(GOALS, GOALS) if config.train.online.hindsight.enabled else {}


def check_hindsight(config: Config) -> None:
    """Refuse hindsight relabelling if the configuration does not support it.

    Raises:
        ConfigError: the algorithm does not replay single steps, or does not observe the goals.
    """
    if not config.train.online.hindsight.enabled:
        return
    name = config.algo_name
    needs = config.algo.data_needs(config)
    wanted = needs.transitions
    if wanted is None:
        raise ConfigError(
            f"{SETTING}: {name} has no replay buffer: set it to false, or choose sac, td3, ddpg or dqn"
        )
    if wanted.n_step != 1:
        raise ConfigError(
            f"{SETTING}: the rewards of {wanted.n_step} steps in a row were earned on the way to another goal: "
            "set algo.n_step to 1"
        )
    if not needs.environment_rewards or wanted.infinite_horizon:
        raise ConfigError(
            f"{SETTING}: {name} does not learn from the environment's rewards: set it to false"
        )
    if needs.returns is not None:
        raise ConfigError(
            f"{SETTING}: {name} needs returns of whole episodes, which have one goal: set it to false"
        )
    modality = config.observation.modality_of("obs").get(DESIRED)
    if modality != "low_dim":
        seen = "does not observe it" if modality is None else f"has it under {modality}"
        raise ConfigError(
            f"{SETTING}: the policy must observe '{DESIRED}', a vector, but {seen}: name it "
            "in observation.modalities.obs.low_dim"
        )


def make_hindsight(config: Config, env: Env, shapes: Mapping[str, tuple[int, ...]]) -> Hindsight:
    """Build hindsight relabelling for an environment, which computes the rewards of new goals.

    Args:
        config: configuration accepted by :func:`check_hindsight`.
        env: the environment; it is kept and never stepped again.
        shapes: shape of one step of each stored observation.

    Raises:
        EnvError: the environment's rewards differ from ``compute_reward``, or ``compute_reward`` gives other rewards
            for several goals at once.
    """
    online = config.train.online
    if shapes[ACHIEVED] != shapes[DESIRED] or len(shapes[DESIRED]) != 1:
        raise EnvError(
            f"{env.name}: goals must be vectors of one size, but '{ACHIEVED}' has shape "
            f"{shapes[ACHIEVED]} and '{DESIRED}' {shapes[DESIRED]}: set {SETTING} to false"
        )
    ends = online.hindsight.ends_at_goal
    return Hindsight(
        _rewards_of(env),
        online.hindsight.share,
        online.hindsight.strategy,
        online.end_at_success if ends is None else ends,
    )


def _rewards_of(env: Env) -> GoalRewards:
    """Return the reward function, after a comparison with the rewards of two steps and all their goals."""
    rewards: GoalRewards | None = getattr(env, "goal_rewards", None)
    if rewards is None:
        raise EnvError(
            f"{env.name}: hindsight needs gymnasium's goal environments, which have compute_reward: set {SETTING} to "
            "false"
        )
    env.reset(seed=0)
    middle = np.clip(np.zeros(env.action_dim), env.action_low, env.action_high)
    seen, earned = [], []
    for _ in range(2):
        obs, reward, *_ = env.step(middle)
        seen.append(obs)
        earned.append(reward)
    achieved = np.stack([obs[ACHIEVED] for obs in (*seen, *seen)]).astype(np.float32)
    desired = np.stack([obs[DESIRED] for obs in seen] + [obs[ACHIEVED] for obs in seen[::-1]])
    desired = desired.astype(np.float32)
    many = np.asarray(rewards(achieved, desired))
    if many.shape != (4,):
        raise EnvError(
            f"{env.name}: compute_reward gives an array of shape {many.shape} for 4 goals, "
            "expected (4,): it must accept arrays (B, G)"
        )
    one = np.array([float(rewards(achieved[i : i + 1], desired[i : i + 1])[0]) for i in range(4)])
    if not np.allclose(many, one, atol=1e-5):
        raise EnvError(
            f"{env.name}: compute_reward gives {many.tolist()} for 4 goals, but {one.tolist()} for one after another: "
            "it must compute each row by itself"
        )
    if not np.allclose(many[:2], earned, atol=1e-4):
        raise EnvError(
            f"{env.name}: steps gave the rewards {earned}, but compute_reward gives "
            f"{many[:2].tolist()}: hindsight needs rewards that depend on goals alone; set "
            f"{SETTING} to false"
        )
    return rewards
