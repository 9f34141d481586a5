"""What a policy has lived through, to be sampled from.

The rows of N environments lie one step after another: row = position * N + lane, and a lane's next step is N rows
further, in a ring. A row holds an observation and what followed it (action, reward, ends). Each observation is stored
once: the row after an episode's last step holds the observation that it ended with, and nothing else. All vectors and
scalars are columns of one float32 tensor; images lie apart, as uint8.

Samples have the form of :class:`~imitate.data.SequenceDataset`'s with ``transitions``, so that any algorithm that
learns from demonstrations learns from this.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imitate.config.transitions import Returns, Transitions
from imitate.data.episode import Episode
from imitate.data.rewards import RewardTransform
from imitate.errors import CheckpointError, EnvError
from imitate.online.steps import Array, Step

_SCALARS = ("rewards", "terminals", "timeouts")
_ONE_STEP = Transitions()
_AS_GIVEN = RewardTransform()


class ReplayBuffer:
    """The last ``capacity`` steps of several environments.

    Args:
        obs_shapes: shape of one step of each observation, as the environment gives it.
        action_dim: A.
        capacity: rows, rounded up to a multiple of ``num_envs``. An episode takes one more than it has steps.
        num_envs: N.
        images: the keys among ``obs_shapes`` that are stored as uint8.
        transitions: what samples say of the future.
        returns: whether they say what the rest of their episode brought, and how that is counted.
        frame_stack: observations in a sample, the last one the step's own; before an episode's start its first one.
        reward: rewards as samples have them; stored are those of the environment.
        seed: of the sampling.
    """

    def __init__(
        self,
        obs_shapes: Mapping[str, tuple[int, ...]],
        action_dim: int,
        capacity: int,
        *,
        num_envs: int = 1,
        images: tuple[str, ...] = (),
        transitions: Transitions = _ONE_STEP,
        returns: Returns | None = None,
        frame_stack: int = 1,
        reward: RewardTransform = _AS_GIVEN,
        seed: int = 0,
    ) -> None:
        self.num_envs, self.transitions, self.frame_stack = num_envs, transitions, frame_stack
        self.reward, self.returns = reward, returns
        self.obs_shapes = {key: tuple(obs_shapes[key]) for key in sorted(obs_shapes)}
        self.image_keys = tuple(key for key in self.obs_shapes if key in images)
        self.length = max(math.ceil(capacity / num_envs), transitions.n_step + 2)
        rows = self.length * num_envs
        self._columns: dict[str, slice] = {}
        width = 0
        sizes = {f"obs/{k}": math.prod(s) for k, s in self.obs_shapes.items() if k not in images}
        self._vector_width = sum(sizes.values())
        for name, size in {**sizes, "actions": action_dim, **dict.fromkeys(_SCALARS, 1)}.items():
            self._columns[name] = slice(width, width + size)
            width += size
        # Zeros of numpy take memory only when they are written.
        self._values = np.zeros((rows, width), dtype=np.float32)
        self._images = {
            key: np.zeros((rows, *self.obs_shapes[key]), dtype=np.uint8) for key in self.image_keys
        }
        self._live = np.zeros(rows, dtype=np.bool_)
        self._number = np.zeros(rows, dtype=np.int32)
        self._position = np.zeros(num_envs, dtype=np.int64)
        self._running = np.zeros(num_envs, dtype=np.int64)
        self._wrapped = np.zeros(num_envs, dtype=np.bool_)
        self._lanes = np.arange(num_envs)
        self._outcome = np.empty((num_envs, action_dim + len(_SCALARS)), dtype=np.float32)
        self._generator = np.random.default_rng(seed)
        self._size = 0

    def __len__(self) -> int:
        """Steps that can be sampled."""
        return self._size

    @property
    def nbytes(self) -> int:
        """Memory of everything stored, when full."""
        arrays = [self._values, self._live, self._number, *self._images.values()]
        return sum(array.nbytes for array in arrays)

    # ---- writing ---------------------------------------------------------------------------------

    def add(self, step: Step, lanes: NDArray[np.int64] | None = None) -> None:
        """Remember a step of the environments ``lanes``, by default of all.

        An environment that was ``lost`` takes its running episode with it.
        """
        if step.lost is not None and step.lost.any():
            lanes = self._lanes if lanes is None else lanes
            self.drop_episodes(lanes[step.lost])
            kept = np.flatnonzero(~step.lost)
            if len(kept):
                self.add(_part(step, kept), lanes[kept])
            return
        chosen: Any = slice(None)
        if lanes is not None and not np.array_equal(lanes, self._lanes):
            chosen = lanes
        position, running = self._position[chosen], self._running[chosen]
        row, next_row = self._rows(position, chosen)
        begins = running == 0
        if begins.any():
            first = np.flatnonzero(begins)
            where = row.start + first if isinstance(row, slice) else row[first]
            self._write_obs(where, {key: step.obs[key][first] for key in self.obs_shapes})
        outcome = self._outcome[: len(running)]
        outcome[:, :-3] = step.actions
        outcome[:, -3], outcome[:, -2] = step.rewards, step.terminals
        outcome[:, -1] = step.timeouts
        self._values[row, self._vector_width :] = outcome
        self._number[row] = running
        self._remember(row)
        self._forget(next_row)
        self._write_obs(next_row, step.next_obs)
        self._advance(chosen, position, step.terminals | step.timeouts)

    def _rows(self, position: Array, chosen: Any) -> tuple[Any, Any]:
        """Rows of these positions and of the next ones: slices where all environments are at one."""
        first = int(position[0])
        if isinstance(chosen, slice) and first + 1 < self.length and (position == first).all():
            start, count = first * self.num_envs, self.num_envs
            return slice(start, start + count), slice(start + count, start + 2 * count)
        lanes = self._lanes[chosen]
        after = (position + 1) % self.length
        return position * self.num_envs + lanes, after * self.num_envs + lanes

    def _advance(self, chosen: Any, position: Array, ends: NDArray[np.bool_]) -> None:
        """Move on; an episode that ended leaves its last observation behind."""
        after = position + 1
        self._running[chosen] += 1
        if ends.any():
            after = after + ends
            self._running[chosen] *= ~ends
        over = after >= self.length
        if over.any():
            self._wrapped[chosen] |= over
            after = after % self.length
        self._position[chosen] = after

    def add_episode(self, episode: Episode, lane: int = 0) -> None:
        """Remember a whole episode; its last step is left out where nobody knows what it led to."""
        rewards = np.asarray(episode.rewards, dtype=np.float32).reshape(-1)
        terminals = np.asarray(episode.terminals).reshape(-1) > 0
        length = len(rewards)
        if episode.next_obs is None and not terminals[-1]:
            length -= 1
        if not 0 < length < self.length or self._running[lane]:
            raise ValueError(f"an episode of {length} steps does not fit here")
        position = self._position[lane]
        rows = (position + np.arange(length + 1)) % self.length * self.num_envs + lane
        self._forget(rows)
        shown = {key: np.asarray(value) for key, value in episode.obs.items()}
        self._write_obs(rows[:-1], {key: value[:length] for key, value in shown.items()})
        if episode.next_obs is not None:
            end = {k: np.asarray(v)[length - 1 : length] for k, v in episode.next_obs.items()}
        else:
            end = {key: value[len(rewards) - 1 :] for key, value in shown.items()}
        self._write_obs(rows[-1:], end)
        timeouts = np.zeros(length)
        timeouts[-1] = not terminals[length - 1]
        outcome = (np.asarray(episode.actions)[:length], rewards[:length], terminals[:length])
        self._values[rows[:-1], self._vector_width :] = np.column_stack([*outcome, timeouts])
        self._number[rows[:-1]] = np.arange(length)
        self._remember(rows[:-1])
        self._position[lane] = (position + length + 1) % self.length
        self._wrapped[lane] |= position + length + 1 >= self.length

    def _write_obs(self, rows: Any, obs: Mapping[str, Array]) -> None:
        for key, shape in self.obs_shapes.items():
            value = obs[key]
            if value.shape[1:] != shape:
                raise EnvError(
                    f"observation '{key}' has shape {value.shape[1:]}, but {shape} before: it must stay the same"
                )
            if key in self._images:
                self._images[key][rows] = value
            else:
                self._values[rows, self._columns[f"obs/{key}"]] = value.reshape(len(value), -1)

    def _remember(self, rows: Any) -> None:
        """These rows, none twice, hold a step each."""
        live = self._live[rows]
        self._size += len(live) - int(np.count_nonzero(live))
        self._live[rows] = True

    def _forget(self, rows: Any) -> None:
        """These rows hold no step any more."""
        self._size -= int(np.count_nonzero(self._live[rows]))
        self._live[rows] = False

    def drop_episodes(self, lanes: NDArray[np.int64]) -> None:
        """Forget the running episodes of these environments, as if they had not begun."""
        for lane in lanes:
            steps = min(int(self._running[lane]), self.length - 1)
            positions = (self._position[lane] - 1 - np.arange(steps)) % self.length
            self._forget(positions * self.num_envs + lane)
            self._position[lane] = (self._position[lane] - steps) % self.length
            self._running[lane] = 0

    def cut_episodes(self) -> None:
        """End all running episodes by the clock, because their environments are gone."""
        for lane in np.flatnonzero(self._running):
            last = (self._position[lane] - 1) % self.length
            self._values[last * self.num_envs + lane, self._columns["timeouts"]] = 1.0
            self._position[lane] = (self._position[lane] + 1) % self.length
            self._wrapped[lane] |= self._position[lane] == 0
            self._running[lane] = 0

    # ---- sampling --------------------------------------------------------------------------------

    def sample(self, batch_size: int) -> dict[str, Any]:
        """A batch of transitions, drawn uniformly with replacement: see :meth:`at`."""
        return self.at(self._draw(batch_size))

    def _draw(self, size: int) -> NDArray[np.int64]:
        """Rows of steps."""
        if not self._size:
            raise ValueError("nothing to sample: the memory is empty")
        end = self._filled() * self.num_envs
        rows = self._generator.integers(end, size=size)
        while True:
            # What is no step, such as an episode's last observation, is drawn again.
            hits = self._live.take(rows)
            if hits.all():
                return rows
            misses = np.flatnonzero(~hits)
            rows[misses] = self._generator.integers(end, size=len(misses))

    def _filled(self) -> int:
        """Positions that some environment has written."""
        return self.length if self._wrapped.any() else int(self._position.max())

    def at(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """The transitions that begin at these rows.

        Returns:
            raw values as tensors: ``obs``, ``next_obs`` {key: (B, F, ...)} of F frames, ``actions`` (B, F, A),
            ``rewards``, ``dones`` (B, F), ``n_step_rewards``, ``discounts`` (B,), ``index`` (B,) the rows, and with
            ``next_actions`` these (B, A) and ``weight`` (B, F), 0 where they are unknown; with ``returns`` these
            (B, F), -inf while an episode runs.
        """
        wanted = self.transitions
        simple = wanted.n_step == 1 and not wanted.infinite_horizon
        last, sums, factors = (rows, None, None) if simple else self._n_step(rows)
        following = (last + self.num_envs) % len(self._live)
        windows, next_windows = self._frames(rows, rows), self._frames(following, last, 1)
        now = torch.from_numpy(self._values.take(windows, axis=0))
        after = torch.from_numpy(self._values.take(next_windows, axis=0))
        rewards = self.reward(now[..., self._columns["rewards"].start])
        terminals = now[..., self._columns["terminals"].start]
        batch: dict[str, Any] = {
            "obs": self._obs(now, windows),
            "next_obs": self._obs(after, next_windows),
            "actions": now[..., self._columns["actions"]],
            "rewards": rewards,
            "dones": terminals,
            "index": torch.from_numpy(rows),
        }
        if sums is None or factors is None:
            batch["n_step_rewards"] = rewards[:, -1]
            batch["discounts"] = wanted.discount - wanted.discount * terminals[:, -1]
        else:
            batch["n_step_rewards"] = torch.from_numpy(sums)
            batch["discounts"] = torch.from_numpy(factors)
        if self.returns is not None:
            returns = torch.from_numpy(self._rest(rows, self.returns))
            batch["returns"] = returns.unsqueeze(-1).expand(-1, self.frame_stack)
        if wanted.next_actions:
            batch["next_actions"] = after[:, -1, self._columns["actions"]]
            known = torch.from_numpy(self._live[following]) | (batch["discounts"] == 0)
            batch["weight"] = known.float().unsqueeze(-1).expand(-1, self.frame_stack)
        return batch

    def _obs(self, values: Tensor, windows: Array) -> dict[str, Tensor]:
        """Observations of gathered rows (B, F, W), images by their numbers."""
        obs: dict[str, Tensor] = {}
        for key, shape in self.obs_shapes.items():
            if key in self._images:
                obs[key] = torch.from_numpy(self._images[key][windows])
            else:
                part = values[..., self._columns[f"obs/{key}"]]
                obs[key] = part if len(shape) == 1 else part.reshape(*part.shape[:-1], *shape)
        return obs

    def _frames(self, rows: Array, steps: Array, later: int = 0) -> NDArray[np.int64]:
        """(B, F) rows of the frames up to ``rows``, the first one repeated before the episode's start.

        Args:
            rows: (B,) of observations.
            steps: (B,) rows of steps of the same episodes, ``later`` steps before.
            later: 0 or 1.
        """
        if self.frame_stack == 1:
            return rows[:, None]
        lane, position = rows % self.num_envs, rows // self.num_envs
        # Older frames of the oldest episode may be overwritten.
        kept = (position - self._position[lane] - (self._running[lane] > 0)) % self.length
        back = np.minimum(self._number[steps] + later, kept)[:, None]
        offsets = np.minimum(np.arange(self.frame_stack - 1, -1, -1), back)
        windows: NDArray[np.int64] = (rows[:, None] - self.num_envs * offsets) % len(self._live)
        return windows

    def _n_step(self, rows: Array) -> tuple[Array, Array, Array]:
        """Rows of the last steps that are summed, sums of rewards, discounts of what follows: (B,) each."""
        wanted = self.transitions
        offsets = np.arange(wanted.n_step)
        steps = (rows[:, None] + self.num_envs * offsets) % len(self._live)
        # The row after an episode's end is no step, nor is the newest one.
        counts = np.cumprod(self._live[steps], axis=1)
        number = counts.sum(1)
        last = steps[np.arange(len(rows)), number - 1]
        rewards = self.reward(self._values[steps, self._columns["rewards"].start])
        if wanted.infinite_horizon:
            terminals = self._values[steps, self._columns["terminals"].start]
            rewards = np.where(terminals > 0, rewards / (1.0 - wanted.discount), rewards)
        sums = (rewards * wanted.discount**offsets * counts).sum(1).astype(np.float32)
        terminal = self._values[last, self._columns["terminals"].start]
        return last, sums, (wanted.discount**number * (1.0 - terminal)).astype(np.float32)

    def _rest(self, rows: Array, wanted: Returns) -> NDArray[np.float32]:
        """(B,) discounted rewards from these rows to the ends of their episodes; -inf where there is none yet."""
        total, factor = np.zeros(len(rows)), 1.0
        now, going = rows, np.arange(len(rows))
        after_end = wanted.discount / (1.0 - wanted.discount) if wanted.continue_truncated else 0.0
        while len(going):
            values = self._values[now]
            raw = values[:, self._columns["rewards"].start]
            rewards = self.reward(raw) if wanted.scaled else raw
            terminal = values[:, self._columns["terminals"].start] > 0
            cut = (values[:, self._columns["timeouts"].start] > 0) & ~terminal
            total[going] += factor * rewards * (1.0 + after_end * cut)
            following = (now + self.num_envs) % len(self._live)
            over = terminal | cut
            unknown = ~over & ~self._live[following]
            total[going[unknown]] = -np.inf
            kept = ~(over | unknown)
            now, going, factor = following[kept], going[kept], factor * wanted.discount
        return total.astype(np.float32)

    # ---- saving ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything stored and the state of the sampling, as tensors and numbers; rows are views, not copies."""
        filled = min(self._filled() + 1, self.length) * self.num_envs
        arrays = {"values": self._values, "live": self._live, "number": self._number}
        arrays |= {f"images/{key}": value for key, value in self._images.items()}
        counters = {
            "position": self._position,
            "running": self._running,
            "wrapped": self._wrapped,
        }
        return {
            "rows": {name: torch.from_numpy(x[:filled]) for name, x in arrays.items()},
            "counters": {name: torch.from_numpy(x.copy()) for name, x in counters.items()},
            "generator": self.draws,
            "layout": self._layout(),
        }

    @property
    def draws(self) -> str:
        """State of the sampling, for a memory that is made anew from files."""
        return json.dumps(self._generator.bit_generator.state)

    @draws.setter
    def draws(self, state: str) -> None:
        self._generator.bit_generator.state = json.loads(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`.

        Raises:
            CheckpointError: it is of other observations, actions, environments or capacity.
        """
        if state["layout"] != self._layout():
            raise CheckpointError(
                f"the saved steps have the layout {state['layout']}, wanted {self._layout()}: "
                "take the configuration that they were collected with"
            )
        arrays = {"values": self._values, "live": self._live, "number": self._number}
        arrays |= {f"images/{key}": value for key, value in self._images.items()}
        for name, value in state["rows"].items():
            arrays[name][: len(value)] = value.numpy()
        self._position[:] = state["counters"]["position"].numpy()
        self._running[:] = state["counters"]["running"].numpy()
        self._wrapped[:] = state["counters"]["wrapped"].numpy()
        self.draws = state["generator"]
        self._size = int(self._live.sum())

    def _layout(self) -> dict[str, Any]:
        columns = {name: [part.start, part.stop] for name, part in self._columns.items()}
        images = {key: list(self.obs_shapes[key]) for key in self.image_keys}
        return {"columns": columns, "images": images, "envs": self.num_envs, "length": self.length}

    # ---- episodes --------------------------------------------------------------------------------

    def episodes(self) -> Iterator[Episode]:
        """What is stored, episode by episode; of an episode that is partly overwritten, what is left."""
        for lane in range(self.num_envs):
            oldest = int(self._position[lane]) if self._wrapped[lane] else 0
            order = (oldest + np.arange(self.length)) % self.length
            rows = order * self.num_envs + lane
            edges = np.flatnonzero(np.diff(self._live[rows].astype(np.int8), prepend=0, append=0))
            for start, stop in zip(edges[::2], edges[1::2], strict=True):
                yield self._episode(rows[start:stop])

    def _episode(self, rows: Array) -> Episode:
        following = (rows + self.num_envs) % len(self._live)
        values = self._values[rows]
        return Episode(
            obs=self._stored_obs(rows),
            actions=values[:, self._columns["actions"]],
            rewards=values[:, self._columns["rewards"].start],
            terminals=values[:, self._columns["terminals"].start],
            timeouts=values[:, self._columns["timeouts"].start],
            next_obs=self._stored_obs(following),
        )

    def _stored_obs(self, rows: Array) -> dict[str, Array]:
        return {
            key: self._images[key][rows]
            if key in self._images
            else self._values[rows, self._columns[f"obs/{key}"]].reshape(len(rows), *shape)
            for key, shape in self.obs_shapes.items()
        }


def _part(step: Step, kept: Array) -> Step:
    """The step of some of its environments."""
    return Step(
        {key: value[kept] for key, value in step.obs.items()},
        step.actions[kept],
        step.rewards[kept],
        step.terminals[kept],
        step.timeouts[kept],
        {key: value[kept] for key, value in step.next_obs.items()},
    )
