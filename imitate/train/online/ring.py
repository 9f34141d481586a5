"""Ring buffer of steps: it keeps the latest rows of several environments, written in turn.

The rows of N environments are interleaved: row = position * N + lane, and a lane's next step is N rows further, in a
ring. A row contains an observation, its action, the reward and the flags of an end. Each observation is stored
once: the row after an episode's last step contains only the final observation. Vectors and scalars are concatenated;
images are stored separately, as uint8.

The module saves and restores the state of a ring, and sums the rewards that follow its steps.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imitate.config.data_needs import Returns, Transitions
from imitate.data.batches.rewards import RewardTransform
from imitate.data.file.episode import Episode
from imitate.errors import CheckpointError, EnvError
from imitate.train.online.steps import Array, Step


class StepRing:
    """The last ``capacity`` steps of several environments.

    A subclass may read all attributes, and may override :meth:`_remember` and :meth:`_forget` to follow writes.

    Args:
        obs_shapes: shape of one step of each observation, as returned by the environment.
        action_dim: size A of an action.
        capacity: number of rows, rounded up to a multiple of ``num_envs``. An episode of T steps takes T + 1 rows.
        num_envs: number N of environments.
        images: the keys among ``obs_shapes`` that are stored as uint8.
        least: smallest number of positions.
        signal_keys: arrays of a demo with the S named rewards.

    Attributes:
        length: number L of positions; there are L * N rows.
        columns: place of each observation in a row of ``vectors``.
        vectors: (L * N, D) float32.
        images: (L * N, H, W, C) uint8 by key.
        actions: (L * N, A) float32.
        rewards: (L * N,) float32.
        signals: (L * N, S) float32, named rewards.
        terminals, timeouts: (L * N,) bool.
        live: (L * N,) true if a row contains a step.
        intervened: (L * N,) true if a person acted in the step.
        number: (L * N,) index of a step within its episode, from 0.
        position: (N,) position of each environment's next write, which already contains its newest observation.
        running: (N,) number of steps of the running episodes.
        wrapped: (N,) true if an environment has wrapped around the ring.
    """

    def __init__(
        self,
        obs_shapes: Mapping[str, tuple[int, ...]],
        action_dim: int,
        capacity: int,
        *,
        num_envs: int = 1,
        images: tuple[str, ...] = (),
        least: int = 3,
        signal_keys: tuple[str, ...] = (),
    ) -> None:
        self.num_envs = num_envs
        self.obs_shapes = {key: tuple(obs_shapes[key]) for key in sorted(obs_shapes)}
        self.image_keys = tuple(key for key in self.obs_shapes if key in images)
        self.length = max(math.ceil(capacity / num_envs), least)
        rows = self.length * num_envs
        self.columns: dict[str, slice] = {}
        width = 0
        for key, shape in self.obs_shapes.items():
            if key not in images:
                self.columns[key] = slice(width, width + math.prod(shape))
                width += math.prod(shape)
        # Zeros of numpy use memory only after they are written.
        self.vectors = np.zeros((rows, width), dtype=np.float32)
        self.images = {
            key: np.zeros((rows, *self.obs_shapes[key]), dtype=np.uint8) for key in self.image_keys
        }
        self.actions = np.zeros((rows, action_dim), dtype=np.float32)
        self.rewards = np.zeros(rows, dtype=np.float32)
        self._signal_keys = signal_keys
        self.signals = np.zeros((rows, len(signal_keys)), dtype=np.float32)
        self._marks = np.zeros((4, rows), dtype=np.bool_)
        self.terminals, self.timeouts, self.live, self.intervened = self._marks
        self.number = np.zeros(rows, dtype=np.int32)
        self._counters = np.zeros((2, num_envs), dtype=np.int64)
        self.position, self.running = self._counters
        self.wrapped = np.zeros(num_envs, dtype=np.bool_)
        self._lanes = np.arange(num_envs)
        self._ones = np.ones((2, num_envs), dtype=np.int64)
        self._size, self._longest = 0, 0
        # Cache from one step to the next: the common write position of all environments (None if unknown), whether an
        # episode begins in any, and the environments' numbers.
        self._common: int | None = None
        self._some_begin = True
        self._in_order = self._lanes

    def __len__(self) -> int:
        """Number of steps that can be sampled."""
        return self._size

    @property
    def nbytes(self) -> int:
        """Memory in bytes of all arrays when full."""
        return sum(array.nbytes for array in self.stored.values())

    @property
    def stored(self) -> dict[str, Array]:
        """Arrays that have one value per row, by name."""
        steps = ("vectors", "actions", "rewards", "terminals", "timeouts", "number")
        names = (*steps, "live", "intervened", *(("signals",) if self.signals.size else ()))
        arrays: dict[str, Array] = {name: getattr(self, name) for name in names}
        return arrays | {f"images/{key}": images for key, images in self.images.items()}

    @property
    def filled(self) -> int:
        """Number of positions that some environment has written."""
        return self.length if self.wrapped.any() else int(self.position.max())

    # ---- writing ---------------------------------------------------------------------------------

    def add(self, step: Step, lanes: NDArray[np.int64] | None = None) -> None:
        """Store a step of the environments ``lanes``, by default of all.

        If an environment was ``lost``, its running episode is removed.
        """
        if step.lost is not None and step.lost.any():
            lanes = self._lanes if lanes is None else lanes
            self.drop_episodes(lanes[step.lost])
            kept = np.flatnonzero(~step.lost)
            if len(kept):
                self.add(_part(step, kept), lanes[kept])
            return
        chosen: Any = slice(None)
        if lanes is not None and lanes is not self._in_order:
            if np.array_equal(lanes, self._lanes):
                self._in_order = lanes
            else:
                chosen = lanes
        row, next_row = self._rows(chosen)
        running = self.running[chosen]
        if self._some_begin:
            self._begin(row, np.flatnonzero(running == 0), step.obs)
        self.actions[row], self.rewards[row], self.number[row] = step.actions, step.rewards, running
        self._remember(row, len(running))
        if step.intervened is not None:
            self.intervened[row] = step.intervened
        if step.signals is not None:
            self.signals[row] = step.signals
        ended = np.count_nonzero(step.terminals) or np.count_nonzero(step.timeouts)
        if ended:
            self.terminals[row], self.timeouts[row] = step.terminals, step.timeouts
        self._forget(next_row)
        self._write_obs(next_row, step.next_obs)
        if ended or self._common is None or not isinstance(next_row, slice):
            self._advance(chosen, step.terminals | step.timeouts)
        else:
            # Adding an array takes a fifth of the time of adding a number.
            np.add(self._counters, self._ones, out=self._counters)
            self._common += 1
            self._some_begin = False

    def _begin(self, row: Any, first: NDArray[np.int64], obs: Mapping[str, Array]) -> None:
        """Write the first observations of the environments whose episodes begin (``first``)."""
        if len(first):
            where = row.start + first if isinstance(row, slice) else row[first]
            self._forget(where)
            self._write_obs(where, {key: obs[key][first] for key in self.obs_shapes})

    def _unsettle(self) -> None:
        """Invalidate the write-position cache (call after any change made outside :meth:`add`)."""
        self._common = None
        self._some_begin = True

    def _rows(self, chosen: Any) -> tuple[Any, Any]:
        """Return the rows to write and the next ones, as slices if all environments are at one position."""
        if isinstance(chosen, slice):
            if self._common is None and (self.position == self.position[0]).all():
                self._common = int(self.position[0])
            if self._common is not None and self._common + 1 < self.length:
                start, count = self._common * self.num_envs, self.num_envs
                return slice(start, start + count), slice(start + count, start + 2 * count)
        position, lanes = self.position[chosen], self._lanes[chosen]
        after = (position + 1) % self.length
        return position * self.num_envs + lanes, after * self.num_envs + lanes

    def _advance(self, chosen: Any, ends: NDArray[np.bool_]) -> None:
        """Advance the write positions; a finished episode keeps its final observation."""
        self._longest = max(self._longest, int(self.running[chosen].max()) + 1)
        after = self.position[chosen] + 1 + ends
        self.wrapped[chosen] |= after >= self.length
        self.position[chosen] = after % self.length
        self.running[chosen] = np.where(ends, 0, self.running[chosen] + 1)
        self._unsettle()

    def add_episode(self, episode: Episode, lane: int = 0) -> None:
        """Store a whole episode; its last step is left out if its next observation is unknown."""
        rewards = np.asarray(episode.rewards, dtype=np.float32).reshape(-1)
        terminals = np.asarray(episode.terminals).reshape(-1) > 0
        length = len(rewards)
        if episode.next_obs is None and not terminals[-1]:
            length -= 1
        if not 0 < length < self.length or self.running[lane]:
            raise ValueError(
                f"an episode of {length} steps does not fit: the ring has {self.length} positions per lane, and the "
                "lane must have no running episode"
            )
        position = self.position[lane]
        rows = (position + np.arange(length + 1)) % self.length * self.num_envs + lane
        self._forget(rows)
        shown = {key: np.asarray(value) for key, value in episode.obs.items()}
        self._write_obs(rows[:-1], {key: value[:length] for key, value in shown.items()})
        if episode.next_obs is not None:
            end = {k: np.asarray(v)[length - 1 : length] for k, v in episode.next_obs.items()}
        else:
            end = {key: value[len(rewards) - 1 :] for key, value in shown.items()}
        self._write_obs(rows[-1:], end)
        steps = rows[:-1]
        self.actions[steps] = np.asarray(episode.actions)[:length]
        self.rewards[steps], self.terminals[steps] = rewards[:length], terminals[:length]
        self.timeouts[steps[-1]] = not terminals[length - 1]
        for column, key in enumerate(self._signal_keys):
            values = rewards if key == "rewards" else np.asarray(episode.steps[key]).reshape(-1)
            self.signals[steps, column] = values[:length]
        self.number[steps] = np.arange(length)
        self._longest = max(self._longest, length)
        self._remember(steps, length)
        self.position[lane] = (position + length + 1) % self.length
        self.wrapped[lane] |= position + length + 1 >= self.length
        self._unsettle()

    def _write_obs(self, rows: Any, obs: Mapping[str, Array]) -> None:
        for key, shape in self.obs_shapes.items():
            value = obs[key]
            if value.shape[1:] != shape:
                raise EnvError(
                    f"observation '{key}' has shape {value.shape[1:]}, but {shape} before: it must stay the same"
                )
            if key in self.images:
                self.images[key][rows] = value
            else:
                flat = value if value.ndim == 2 else value.reshape(len(value), -1)
                self.vectors[rows, self.columns[key]] = flat

    def _remember(self, rows: Any, count: int) -> None:
        """Mark these ``count`` rows as steps; they must be distinct and cleared before."""
        self._size += count
        self.live[rows] = True

    def _forget(self, rows: Any) -> None:
        """Mark these rows as no longer containing a step or an episode's end."""
        self._size -= int(np.count_nonzero(self.live[rows]))
        self._marks[:, rows] = False

    def count_steps(self) -> None:
        """Count the steps again, after arrays were changed from outside."""
        self._size = int(np.count_nonzero(self.live))
        self._longest = int(self.number.max()) + 1
        self._unsettle()

    def drop_episodes(self, lanes: NDArray[np.int64]) -> None:
        """Remove the unfinished episodes of these environments."""
        for lane in lanes:
            steps = min(int(self.running[lane]), self.length - 1)
            positions = (self.position[lane] - 1 - np.arange(steps)) % self.length
            self._forget(positions * self.num_envs + lane)
            self.position[lane] = (self.position[lane] - steps) % self.length
            self.running[lane] = 0
        self._unsettle()

    def cut_episodes(self) -> None:
        """End all running episodes by a timeout, because their environments are gone."""
        self._longest = max(self._longest, int(self.running.max()))
        for lane in np.flatnonzero(self.running):
            last = (self.position[lane] - 1) % self.length
            self.timeouts[last * self.num_envs + lane] = True
            self.position[lane] = (self.position[lane] + 1) % self.length
            self.wrapped[lane] |= self.position[lane] == 0
            self.running[lane] = 0
        self._unsettle()

    # ---- reading ---------------------------------------------------------------------------------

    def later(self, rows: NDArray[np.int64], steps: Array | int) -> NDArray[np.int64]:
        """Return the rows of the same environments ``steps`` later (or earlier if negative)."""
        return (rows + self.num_envs * steps) % len(self.live)

    def steps_before(self, rows: NDArray[np.int64], most: int | None = None) -> NDArray[np.int64]:
        """Return (B,) the number of earlier steps in the same episodes, at most ``most``, that are still stored."""
        position, lane = np.divmod(rows, self.num_envs)
        kept = (position - self.position[lane] - (self.running[lane] > 0)) % self.length
        number = self.number[rows]
        return self._reach(
            rows, np.minimum(number, kept if most is None else kept.clip(max=most)), -1
        )

    def steps_after(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (B,) the number of later steps in the same episodes, so far."""
        position, lane = np.divmod(rows, self.num_envs)
        longest = max(self._longest, int(self.running.max()))
        ahead = (self.position[lane] - position - 1) % self.length
        return self._reach(rows, np.minimum(ahead, longest - 1 - self.number[rows]), 1)

    def _reach(self, rows: NDArray[np.int64], most: Array, direction: int) -> NDArray[np.int64]:
        """Return (B,) the number of steps of the same episodes in one direction up to the first gap or ``most``.

        Rows of one episode are consecutive, so the last one is found by bisection.
        """
        number = self.number[rows]
        low, high = np.zeros_like(rows), most
        while np.count_nonzero(low < high):
            middle = (low + high + 1) >> 1
            away = direction * middle
            there = rows + self.num_envs * away
            same = self.number.take(there, mode="wrap") == number + away
            same &= self.live.take(there, mode="wrap")
            low, high = np.where(same, middle, low), np.where(same, high, middle - 1)
        return low

    def episodes(self) -> Iterator[Episode]:
        """Yield the stored steps, episode by episode; of a partly overwritten episode, the rest."""
        for lane in range(self.num_envs):
            oldest = int(self.position[lane]) if self.wrapped[lane] else 0
            order = (oldest + np.arange(self.length)) % self.length
            rows = order * self.num_envs + lane
            edges = np.flatnonzero(np.diff(self.live[rows].astype(np.int8), prepend=0, append=0))
            for start, stop in zip(edges[::2], edges[1::2], strict=True):
                yield self._episode(rows[start:stop])

    def _episode(self, rows: Array) -> Episode:
        return Episode(
            obs=self._stored_obs(rows),
            actions=self.actions[rows],
            rewards=self.rewards[rows],
            terminals=self.terminals[rows],
            timeouts=self.timeouts[rows],
            next_obs=self._stored_obs(self.later(rows, 1)),
            steps={
                key: self.signals[rows, column]
                for column, key in enumerate(self._signal_keys)
                if key != "rewards"
            },
        )

    def _stored_obs(self, rows: Array) -> dict[str, Array]:
        return {
            key: self.images[key][rows]
            if key in self.images
            else self.vectors[rows, self.columns[key]].reshape(len(rows), *shape)
            for key, shape in self.obs_shapes.items()
        }


def _part(step: Step, kept: Array) -> Step:
    """Return the step of only the environments ``kept``."""
    return Step(
        {key: value[kept] for key, value in step.obs.items()},
        step.actions[kept],
        step.rewards[kept],
        step.terminals[kept],
        step.timeouts[kept],
        {key: value[kept] for key, value in step.next_obs.items()},
        extras={key: value[kept] for key, value in step.extras.items()},
        intervened=None if step.intervened is None else step.intervened[kept],
        signals=None if step.signals is None else step.signals[kept],
    )


def ring_state(ring: StepRing) -> dict[str, Any]:
    """Return all stored values as tensors and scalars; rows are views, not copies."""
    filled = min(ring.filled + 1, ring.length) * ring.num_envs
    counters = {"position": ring.position, "running": ring.running, "wrapped": ring.wrapped}
    return {
        "rows": {name: torch.from_numpy(x[:filled]) for name, x in ring.stored.items()},
        "counters": {name: torch.from_numpy(x.copy()) for name, x in counters.items()},
        "layout": _layout(ring),
    }


def restore_ring(ring: StepRing, state: Mapping[str, Any]) -> None:
    """Restore the values from :func:`ring_state`.

    Raises:
        CheckpointError: the state is from a ring with other observations, actions, environments or capacity.
    """
    if state["layout"] != _layout(ring):
        raise CheckpointError(
            f"the saved steps have the layout {state['layout']}, wanted {_layout(ring)}: use "
            "the configuration with which they were collected"
        )
    for name, value in state["rows"].items():
        ring.stored[name][: len(value)] = value.numpy()
    ring.position[:] = state["counters"]["position"].numpy()
    ring.running[:] = state["counters"]["running"].numpy()
    ring.wrapped[:] = state["counters"]["wrapped"].numpy()
    ring.count_steps()


def _layout(ring: StepRing) -> dict[str, Any]:
    columns = {name: [part.start, part.stop] for name, part in ring.columns.items()}
    images = {key: list(ring.obs_shapes[key]) for key in ring.image_keys}
    sizes = {"actions": ring.actions.shape[1], "envs": ring.num_envs, "length": ring.length}
    return {"columns": columns, "images": images, **sizes}


def n_step_sums(
    ring: StepRing, rows: Array, wanted: Transitions, reward: RewardTransform
) -> tuple[Array, Array, Array]:
    """Return (B,) rows of the last summed steps, sums of rewards, and discounts of the bootstrap values."""
    offsets = np.arange(wanted.n_step)
    steps, counts, number, last = _summed(ring, rows, offsets)
    rewards = reward(ring.rewards[steps])
    if wanted.infinite_horizon:
        rewards = np.where(ring.terminals[steps], rewards / (1.0 - wanted.discount), rewards)
    sums = (rewards * wanted.discount**offsets * counts).sum(1).astype(np.float32)
    return last, sums, (wanted.discount**number * ~ring.terminals[last]).astype(np.float32)


def _summed(ring: StepRing, rows: Array, offsets: Array) -> tuple[Array, Array, Array, Array]:
    """Return the n rows from each row on (B, n), which of them are summed (B, n), and their number and last row (B,).

    A terminal is the last, also in a demonstration that continues after it.
    """
    steps = ring.later(rows[:, None], offsets)
    # The row after an episode's end contains no step, nor does the newest one.
    summed = ring.live[steps]
    summed[:, 1:] &= ~ring.terminals[steps[:, :-1]]
    counts = np.cumprod(summed, axis=1)
    number = counts.sum(1)
    return steps, counts, number, steps[np.arange(len(rows)), number - 1]


def n_step_signals(
    ring: StepRing, rows: Array, wanted: Transitions
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return sums of the named rewards over the steps of :func:`n_step_sums`, and discounts after them, (B, S)."""
    discounts = np.array(wanted.signal_discounts)
    offsets = np.arange(wanted.n_step)
    steps, counts, number, last = _summed(ring, rows, offsets)
    signals = ring.signals[steps]
    if wanted.infinite_horizon:
        at_end = ring.terminals[steps][..., None]
        signals = np.where(at_end, signals / (1.0 - discounts), signals)
    weights = discounts ** offsets[:, None]
    sums = np.einsum("bn,ns,bns->bs", counts, weights, signals)
    after = discounts ** number[:, None] * ~ring.terminals[last][:, None]
    return sums.astype(np.float32), after.astype(np.float32)


def returns_to_go(
    ring: StepRing, rows: Array, wanted: Returns, reward: RewardTransform
) -> NDArray[np.float32]:
    """Return (B,) discounted rewards from these rows to their episodes' ends; -inf if the end is not known yet."""
    total, factor = np.zeros(len(rows)), 1.0
    now, going = rows, np.arange(len(rows))
    after_end = wanted.discount / (1.0 - wanted.discount) if wanted.continue_truncated else 0.0
    while len(going):
        rewards = reward(ring.rewards[now]) if wanted.scaled else ring.rewards[now]
        terminal = ring.terminals[now]
        cut = ring.timeouts[now] & ~terminal
        total[going] += factor * rewards * (1.0 + after_end * cut)
        following = ring.later(now, 1)
        over = terminal | cut
        unknown = ~over & ~ring.live[following]
        total[going[unknown]] = -np.inf
        kept = ~(over | unknown)
        now, going, factor = following[kept], going[kept], factor * wanted.discount
    return total.astype(np.float32)
