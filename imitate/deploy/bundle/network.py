"""Prediction of a bundle: from raw observations, memory and noise to actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.data.language import LANGUAGE_KEY, Instructions
from imitate.deploy.bundle.archive import Bundle
from imitate.deploy.bundle.graph import Graph
from imitate.deploy.bundle.noise import NoiseSource
from imitate.deploy.bundle.observations import Arrays, Observations
from imitate.deploy.bundle.playback import Actions
from imitate.deploy.bundle.spec import BundleSpec
from imitate.deploy.schema import Observed
from imitate.errors import BundleError, UserError

TOLERANCE = 1e-4
"""Largest difference from the recorded actions: absolute, and relative for actions beyond 1."""
FEWEST_CHECKS = 3
LONGEST_S = 300.0
"""Seconds after which the prediction of a recorded action is given up."""

Frames = tuple[Arrays, ...]
Memory = Mapping[str, NDArray[Any]]


class Network:
    """Prediction of a bundle.

    Args:
        bundle: content of the file.
        threads: number of threads per prediction.

    Attributes:
        spec: description of the policy.
        instructions: table of a policy that is conditioned on language.
        memory: recurrent state at the beginning of an episode.

    Raises:
        BundleError: description, network and arrays do not fit together.
    """

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self.spec = spec = BundleSpec.from_dict(bundle.description)
        self.memory: Memory = {name: bundle.array(place) for name, place in spec.memory.items()}
        self.instructions = _instructions(spec, bundle)
        self._graph = Graph(bundle.network, threads)
        wanted = {"actions", *(f"next/{name}" for name in self.memory)}
        if not wanted <= set(self._graph.outputs):
            raise BundleError(f"its networks give only {', '.join(self._graph.outputs)}")
        observed, told = dict(spec.schema.observations), None
        if self.instructions is not None:
            told = LANGUAGE_KEY
            observed[told] = Observed((self.instructions.size,))
        self._obs = Observations(observed, spec.stacks, spec.any_pixels, told)
        self._goal = Observations(spec.schema.goals, spec.stacks, spec.any_pixels)
        # For predictions of which only the memory is used.
        self.any_noise = NoiseSource(spec.noise, 0).draw()

    def observe(
        self, frames: Frames, ob: Mapping[str, Any], told: NDArray[np.float32] | None
    ) -> Frames:
        """Return the last F observations with this one; an episode's first one is repeated for those before it.

        Args:
            frames: oldest first; empty at the beginning of an episode.
            ob: raw observation.
            told: vector of the instruction, if any.

        Raises:
            UserError: the observation does not fit, or an instruction is missing.
        """
        if self.instructions is not None and LANGUAGE_KEY not in ob:
            if told is None:
                shown = "; ".join(f"'{name}'" for name in self.instructions.names[:10])
                raise UserError(
                    f"the policy was trained on several tasks: name one with start_episode(lang=...): {shown}"
                )
            ob = {**ob, LANGUAGE_KEY: told}
        newest, count = self._obs.prepare(ob), self.spec.frames
        return (*(frames or (newest,) * count), newest)[-count:]

    def goal(self, goal: Mapping[str, Any] | None) -> Arrays:
        """Return the prepared goal; empty for a policy without goals."""
        return self._goal.prepare(goal or {}) if self.spec.schema.goals else {}

    def predict(
        self, frames: Frames, goal: Arrays, memory: Memory, noise: Arrays
    ) -> tuple[Actions, Memory]:
        """Return the predicted actions (K, A) in the units of the data, not clipped, and the next memory.

        Args:
            frames: frames from :meth:`observe`.
            goal: goal from :meth:`goal`.
            memory: memory from the previous prediction, or :attr:`memory`.
            noise: noise from a :class:`NoiseSource`.
        """
        feed: dict[str, NDArray[Any]] = dict(noise)
        for key, value in frames[-1].items():
            several = self.spec.frames > 1
            feed[f"obs/{key}"] = (np.stack([x[key] for x in frames]) if several else value)[None]
        for key, value in goal.items():
            feed[f"goal/{key}"] = value[None]
        for name, value in memory.items():
            feed[f"memory/{name}"] = value
        given = self._graph.run(feed)
        actions: Actions = given["actions"][0].astype(np.float64)
        return actions, {name: given[f"next/{name}"] for name in memory}

    def replay(self, bundle: Bundle) -> None:
        """Compare the predictions with the ones recorded at export.

        Raises:
            BundleError: they differ, or too few were recorded.
        """
        checks = bundle.description.get("checks")
        if not isinstance(checks, list) or len(checks) < FEWEST_CHECKS:
            raise BundleError(f"has fewer than {FEWEST_CHECKS} recorded actions to compare with")
        frames: Frames = ()
        memory, execution = self.memory, self.spec.execution
        shape = (1 if execution is None else execution.size, self.spec.schema.action_dim)
        for number, check in enumerate(checks):
            try:
                obs, goal = (
                    {str(key): bundle.array(value) for key, value in check[group].items()}
                    for group in ("obs", "goal")
                )
                kinds = [kind for kind, count in asdict(self.spec.noise).items() if count]
                noise = {f"noise/{kind}": bundle.array(check[kind]) for kind in kinds}
                expected = bundle.array(check["actions"])
            except (KeyError, TypeError, AttributeError) as error:
                raise BundleError(f"recorded action {number} lacks {error}") from error
            frames = self.observe(frames, obs, None)
            with self._graph.limited(LONGEST_S):
                actions, memory = self.predict(frames, self.goal(goal), memory, noise)
            if not actions.shape == expected.shape == shape:
                raise BundleError(f"it predicts actions {actions.shape}; expected {shape}")
            error_size = np.abs(actions - expected) / np.maximum(np.abs(expected), 1.0)
            if not (error_size <= TOLERANCE).all():
                raise BundleError(
                    f"its networks do not give the recorded actions here (check {number}: "
                    f"{float(error_size.max()):.2g} away, at most {TOLERANCE:g} allowed): it "
                    "was changed, or onnxruntime computes differently on this machine"
                )


def _instructions(spec: BundleSpec, bundle: Bundle) -> Instructions | None:
    """Return the table of instructions if the policy uses one."""
    saved = spec.languages
    if saved is None:
        return None
    names = spec.schema.languages
    vectors = bundle.array(saved.get("vectors") or {})
    if vectors.ndim != 2 or len(vectors) != len(names) or not np.isfinite(vectors).all():
        raise BundleError(f"its instructions are {len(names)} names with vectors {vectors.shape}")
    return Instructions(names, vectors.astype(np.float32), are_texts=saved.get("are_texts") is True)
