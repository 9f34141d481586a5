"""Export of a policy to a bundle, whose actions are compared with those of the policy. Needs torch and onnxruntime.

The observations of the comparison are random, or taken from demonstrations.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from torch import Tensor

from imitate import __version__
from imitate.algo.base.algo import Algo
from imitate.algo.base.denoising import DOMAIN, OPERATOR, OPSETS, looped_denoising
from imitate.algo.base.policy_state import PolicyState
from imitate.data.dataset_file import DatasetFile
from imitate.deploy.bundle.archive import ArrayStore, Bundle, write_bundle
from imitate.deploy.bundle.network import FEWEST_CHECKS, TOLERANCE, NoiseSource
from imitate.deploy.bundle.policy import BundlePolicy
from imitate.deploy.bundle.spec import BundleSpec, Execution, Noise
from imitate.deploy.bundle.tracing import OPSET, Draws, Flat, Numbers, Predictor, exported
from imitate.deploy.server.served import schema_of
from imitate.errors import BundleError, DatasetError
from imitate.policy.renaming import rename_words
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.system.images import IMAGE_MODALITIES, image_divisor, image_type
from imitate.system.instructions import LANGUAGE_KEY
from imitate.system.plain_files import give_name


@dataclass(frozen=True)
class Exported:
    """Outcome of an export.

    Attributes:
        path: path of the bundle.
        size_mb: size of the file.
        spec: description of the policy.
        steps: number of control steps compared with the policy.
        difference: largest difference between actions of bundle and policy (relative for actions larger than 1).
    """

    path: Path
    size_mb: float
    spec: BundleSpec
    steps: int
    difference: float


def export_policy(
    policy: RolloutPolicy,
    path: str | Path,
    *,
    environment: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dataset: str | Path | None = None,
) -> Exported:
    """Write a policy as a bundle; the file appears only if its actions equal the policy's.

    Args:
        policy: policy on the CPU; the memory of its episode stays unchanged.
        path: path of the bundle.
        environment: env_args of the demonstrations, for ``--robot sim``.
        overwrite: true to replace a file.
        dataset: demonstrations from which the observations for the test at loading are taken, or None for random ones.

    Raises:
        BundleError: the file exists or cannot be written, or the policy cannot be exported; the message contains the
            reason.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise BundleError(f"{path}: exists already; add --overwrite, or choose another name")
    name = policy.algo.global_config.algo_name
    checking = path.with_name(f".{path.name}.{os.getpid()}.unchecked")
    try:
        bundle, spec = _bundled(policy, dict(environment or {}), dataset)
        write_bundle(bundle, checking)
        # Compare actions before clipping, because all large actions are equal after it.
        own = RolloutPolicy(policy.algo, instructions=policy.instructions)
        steps, difference = compare(own, BundlePolicy(checking, clip=False), spec)
        give_name(checking, path)
    except BundleError as error:
        if isinstance(error.__cause__, OSError):
            raise BundleError(str(error).replace(str(checking), str(path))) from error
        words = str(error).removeprefix(f"{checking}: ")
        raise BundleError(f"{name} cannot be exported: {words}") from error
    except OSError as error:
        raise BundleError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            checking.unlink()
    return Exported(path, path.stat().st_size / 1e6, spec, steps, difference)


# ---- the bundle --------------------------------------------------------------------------------------


def _bundled(
    policy: RolloutPolicy, environment: Mapping[str, Any], dataset: str | Path | None
) -> tuple[Bundle, BundleSpec]:
    """Return the content of the bundle, and the description of its policy."""
    algo, store = policy.algo, ArrayStore()
    if algo.device.type != "cpu":
        raise BundleError(f"the policy is on {algo.device}: load it with device='cpu'")
    if not algo.config.acts:
        raise BundleError("the algorithm has no actions")
    if policy.rename:
        raise BundleError(
            f"the checkpoint takes {rename_words(policy.rename)}, but a bundle has only the names of the data: export "
            "the checkpoint from which imitate convert-checkpoint made it, or deploy this one itself, such as by "
            "imitate serve"
        )
    if algo.action_mask.key is not None:
        raise BundleError(
            f"observation '{algo.action_mask.key}' masks the actions, which a bundle does not support: deploy the "
            "checkpoint itself, such as by imitate serve"
        )
    if type(algo).act is not Algo.act:
        raise BundleError(
            "the levels of its hierarchy act at different rates, which one network cannot represent: "
            "deploy the checkpoint itself, such as by imitate serve"
        )
    if "plan" in algo.initial_state(1)["policy"]:
        raise BundleError(
            "the policy plans each action by a search (algo.planner), which a bundle does not support: deploy the "
            "checkpoint itself, such as by imitate serve"
        )
    execution = _execution(algo)
    predictor = Predictor(algo)
    observations = (
        random_observations(policy, FEWEST_CHECKS, seed=1)
        if dataset is None
        else demonstrated_observations(policy, dataset, FEWEST_CHECKS)
    )
    with looped_denoising(algo) as loops:
        noise = _noise_of(predictor, _inputs(algo, observations[0]))
        checks = list(_checks(predictor, policy, observations, noise))
        network = _traced(predictor, _inputs(algo, observations[0]), noise, OPSETS if loops else {})
    for loop in loops:
        names = ["chunk", *(f"row{number}" for number in range(1, len(loop.inputs)))]
        body = exported(loop.step, dict(zip(names, loop.inputs, strict=True)), ["after"])
        network = _with_loop(network, body, loop.num_steps)
    known = policy.instructions
    vectors = None if known is None else store.add(known.vectors)
    train = algo.global_config.train
    spec = BundleSpec(
        schema=replace(schema_of(policy), max_prefix=0),  # a bundle cannot be guided
        frames=algo.frame_stack,
        stacks=tuple(sorted({1, algo.frame_stack, train.seq_length})),
        any_pixels=tuple(sorted(algo.preprocess.beyond_unit_range)),
        execution=execution,
        memory={name: store.add(value.numpy()) for name, value in predictor.memory.items()},
        cut=cut_inputs(algo, predictor),
        noise=noise,
        languages=None if known is None else {"vectors": vectors, "are_texts": known.are_texts},
        statistics=statistics_of(algo),
        environment=environment,
    )
    description = {
        "imitate_version": __version__,
        "opset": OPSET,
        **spec.to_dict(),
        "checks": [
            {
                group: {key: store.add(value) for key, value in content.items()}
                if isinstance(content, dict)
                else store.add(content)
                for group, content in check.items()
            }
            for check in checks
        ],
    }
    return Bundle(description, network, store.to_bytes()), spec


def _execution(algo: Algo) -> Execution | None:
    """Return the settings for executing chunks; None for a policy of single actions.

    Raises:
        BundleError: chunks are averaged in a representation that differs from the robot's.
    """
    chunks = algo.execution
    if chunks is None:
        return None
    execution = Execution(**asdict(chunks))
    if execution.temporal_ensemble is not None and not _is_affine(algo):
        raise BundleError(
            "temporal ensembling averages rotations and binary actions in their learned representation, but a bundle "
            "only sees the robot's representation: set temporal_ensemble to null"
        )
    return execution


def _is_affine(algo: Algo) -> bool:
    """Return True if averaging network outputs gives the same as averaging the robot's actions."""
    generator = torch.Generator().manual_seed(0)
    preprocess = algo.preprocess
    first, second = torch.rand(2, 64, 1, preprocess.action_dim, generator=generator) * 2 - 1
    obs = {
        key: torch.rand(64, *preprocess.obs_shapes[key], generator=generator)
        for key in preprocess.reference_keys
    }
    ends = [preprocess.unnormalize_actions(x, obs) for x in (first, second)]
    middle = preprocess.unnormalize_actions((first + second) / 2, obs)
    return torch.allclose(middle, (ends[0] + ends[1]) / 2, rtol=1e-3, atol=1e-4)


def cut_inputs(algo: Algo, predictor: Predictor) -> tuple[str, ...]:
    """Return the names of the recurrent memories that are reset when a plan is discarded."""
    marked = {
        name: torch.ones_like(value) if value.dtype != torch.bool else ~value
        for name, value in predictor.memory.items()
    }
    state: PolicyState = {"policy": predictor.state_of(marked)}
    after = predictor.memory_of(algo.cut_plan(state)["policy"])
    changed = tuple(name for name, value in marked.items() if not torch.equal(after[name], value))
    for name in changed:
        if not torch.equal(after[name], predictor.memory[name]):
            raise BundleError(
                f"discarding a plan sets the policy's memory '{name}' to other values than at the beginning of an "
                "episode, which a bundle does not support: deploy the checkpoint itself, such as by imitate serve"
            )
    return changed


def statistics_of(algo: Algo) -> dict[str, Any]:
    """Return the normalization (offset and scale) of actions and of the observations that acting needs."""
    saved, unused = algo.preprocess.to_dict(), algo.encoding.shapes("critic")
    return {
        group: {
            key: {name: entry[name].tolist() for name in ("offset", "scale")}
            for key, entry in saved[group].items()
            if group == "actions" or key not in unused
        }
        for group in ("obs", "actions")
    }


# ---- the network -------------------------------------------------------------------------------------


def _inputs(algo: Algo, observation: Mapping[str, Raw]) -> dict[str, dict[str, Tensor]]:
    """Return the network's inputs, observations and goals, for the first prediction of an episode."""
    prepared = {
        group: {key: _floats(algo, key, value)[None] for key, value in observation[group].items()}
        for group in ("obs", "goal")
    }
    frames = algo.frame_stack
    if frames > 1:
        prepared["obs"] = {
            key: value.unsqueeze(1).repeat_interleave(frames, dim=1)
            for key, value in prepared["obs"].items()
        }
    return prepared


def _floats(algo: Algo, key: str, value: NDArray[Any]) -> Tensor:
    prepare, divisor = algo.preprocess, 1.0
    if prepare.modalities[key] in IMAGE_MODALITIES:
        recorded, given = prepare.image_types.get(key), image_type(value.dtype)
        divisor = image_divisor(prepare.modalities[key], recorded, given, key)
    return torch.from_numpy(value.astype(np.float32) / divisor)


def _noise_of(predictor: Predictor, inputs: Mapping[str, dict[str, Tensor]]) -> Noise:
    """Count the random numbers that a prediction draws."""
    counts = {"normal": 0, "exponential": 0}

    def give(kind: str, shape: tuple[int, ...]) -> Tensor:
        counts[kind] += torch.Size(shape).numel()
        return torch.ones(shape)

    predictor.predict(inputs["obs"], inputs["goal"], predictor.memory, give)
    return Noise(**counts)


def _checks(
    predictor: Predictor, policy: RolloutPolicy, observations: list[dict[str, Raw]], noise: Noise
) -> Iterator[dict[str, Any]]:
    """Yield observations with the noise and the actions of their predictions, for the test at loading."""
    algo, source, memory = policy.algo, NoiseSource(noise, 0), predictor.memory
    frames: list[dict[str, Tensor]] = []
    for observation in observations:
        newest = {k: _floats(algo, k, v)[None] for k, v in observation["obs"].items()}
        frames = [*(frames or [newest] * algo.frame_stack), newest][-algo.frame_stack :]
        obs = newest
        if algo.frame_stack > 1:
            obs = {key: torch.stack([frame[key] for frame in frames], 1) for key in newest}
        goal = {k: _floats(algo, k, v)[None] for k, v in observation["goal"].items()}
        numbers = {k.removeprefix("noise/"): v for k, v in source.draw().items()}
        give = Numbers({kind: torch.from_numpy(value) for kind, value in numbers.items()})
        actions, memory = predictor.predict(obs, goal, memory, give)
        yield {**observation, **numbers, "actions": actions[0].numpy()}


def _traced(
    predictor: Predictor,
    inputs: Mapping[str, dict[str, Tensor]],
    noise: Noise,
    opsets: dict[str, int],
) -> bytes:
    """Return the ONNX model of a prediction."""
    numbers = {kind: torch.rand(count) for kind, count in asdict(noise).items() if count}
    values = {
        f"{group}/{key}": value
        for group, content in {**inputs, "memory": predictor.memory, "noise": numbers}.items()
        for key, value in content.items()
    }
    outputs = ["actions", *(f"next/{name}" for name in predictor.memory)]
    return exported(Flat(predictor, tuple(values)), values, outputs, opsets)


def _with_loop(model: bytes, body: bytes, num_steps: int) -> bytes:
    """Replace the custom operator of repeated steps by a loop of ONNX.

    Args:
        model: ONNX model with the custom operator.
        body: ONNX model of one step.
        num_steps: number of steps of the loop.
    """
    outer, step = onnx.load_from_string(model), onnx.load_from_string(body)
    nodes = outer.graph.node
    place = next(i for i, node in enumerate(nodes) if node.domain == DOMAIN)
    operator = nodes[place]
    counter = helper.make_tensor(f"{OPERATOR}/steps", TensorProto.INT64, [], [num_steps])
    always = helper.make_tensor(f"{OPERATOR}/always", TensorProto.BOOL, [], [True])
    graph = _body(step.graph, list(operator.input[1:]))
    loop = helper.make_node(
        "Loop", [counter.name, always.name, operator.input[0]], list(operator.output), body=graph
    )
    nodes.remove(operator)
    nodes.insert(place, loop)
    outer.graph.initializer.extend([counter, always])
    kept = [entry for entry in outer.opset_import if entry.domain != DOMAIN]
    del outer.opset_import[:]
    outer.opset_import.extend(kept)
    data: bytes = outer.SerializeToString()
    return data


def _body(step: Any, per_step: list[str]) -> Any:
    """Return the graph of one iteration, which selects its rows from tensors of the outer graph and runs the step."""
    renamed = {name: f"{OPERATOR}/{name}" for node in step.node for name in node.output if name}
    renamed |= {x.name: f"{OPERATOR}/{x.name}" for x in (*step.initializer, *step.input)}
    for node in step.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    for weight in step.initializer:
        weight.name = renamed[weight.name]
    turn = helper.make_tensor_value_info("turn", TensorProto.INT64, [])
    running = helper.make_tensor_value_info("running", TensorProto.BOOL, [])
    goes_on = helper.make_tensor_value_info("goes_on", TensorProto.BOOL, [])
    chunk, *rows = step.input
    picks = [
        helper.make_node("Gather", [outside, turn.name], [renamed[row.name]], axis=0)
        for outside, row in zip(per_step, rows, strict=True)
    ]
    (after,) = step.output
    chunk.name, after.name = renamed[chunk.name], renamed[after.name]
    same = helper.make_node("Identity", [running.name], [goes_on.name])
    return helper.make_graph(
        [*picks, *step.node, same],
        "step",
        [turn, running, chunk],
        [goes_on, after],
        list(step.initializer),
    )


Raw = dict[str, NDArray[Any]]
_COMPARED_STEPS = 24


def random_observations(policy: RolloutPolicy, count: int, seed: int) -> list[dict[str, Raw]]:
    """Draw random observations and goals with the mean and spread of the training data."""
    preprocess, generator = policy.algo.preprocess, np.random.default_rng(seed)
    statistics = preprocess.to_dict()["obs"]
    vector = None if policy.instructions is None else policy.instructions.vectors[0]

    def value(key: str) -> NDArray[Any]:
        shape = preprocess.raw_shapes[key]
        if key == LANGUAGE_KEY and vector is not None:
            return np.asarray(vector)
        if preprocess.modalities[key] == "rgb":
            return generator.integers(0, 256, shape, dtype=np.uint8)
        if preprocess.modalities[key] != "low_dim":
            return generator.random(shape, dtype=np.float32)
        numbers = generator.standard_normal(shape)
        offset, scale = (np.asarray(statistics[key][name]) for name in ("offset", "scale"))
        fits = offset.shape == shape
        return np.asarray(offset + scale * numbers if fits else numbers, dtype=np.float32)

    algo = policy.algo
    return [
        {
            "obs": {key: value(key) for key in algo.obs_shapes},
            "goal": {key: value(key) for key in algo.goal_shapes},
        }
        for _ in range(count)
    ]


class SameNoise:
    """Gives a torch policy the same random numbers that a bundle draws from a seed."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self._source, self._numbers = NoiseSource(noise, seed), Numbers({})

    def __call__(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        """Return the next random numbers as a tensor of ``shape``."""
        if not self._numbers.left:  # all numbers of a prediction are used: draw those of the next
            self._numbers = Numbers(
                {
                    name.removeprefix("noise/"): torch.from_numpy(value)
                    for name, value in self._source.draw().items()
                }
            )
        return self._numbers(kind, shape)


def compare(policy: RolloutPolicy, bundle: BundlePolicy, spec: BundleSpec) -> tuple[int, float]:
    """Compare policy and bundle over two episodes with one discarded plan; return steps and largest difference.

    Raises:
        BundleError: their actions differ by more than :data:`TOLERANCE`.
    """
    execution = spec.execution
    steps = max(_COMPARED_STEPS, 2 * (execution.execute if execution else 0) + 4)
    largest, names = 0.0, () if policy.instructions is None else policy.instructions.names
    bundle.seed(7)
    same = SameNoise(spec.noise, 7)
    for episode in range(2):
        lang = names[-1 - episode % len(names)] if names else None
        for actor in (policy, bundle):
            actor.start_episode(lang)
        for step, observation in enumerate(random_observations(policy, steps, seed=2 + episode)):
            obs = {k: v for k, v in observation["obs"].items() if k in policy.obs_keys}
            goal = observation["goal"] or None
            with Draws(same):
                expected = policy(obs, goal)
            error = np.abs(bundle(obs, goal) - expected) / np.maximum(np.abs(expected), 1.0)
            difference = float(error.max())
            if not difference <= TOLERANCE:  # true also for NaN
                raise BundleError(
                    f"the exported network acts differently from the policy in step {step} of an episode (difference "
                    f"{difference:.2g}): the policy's Python code branches on values, which the export does not "
                    "capture, or it chooses among nearly equal alternatives; deploy the checkpoint itself, such "
                    "as by imitate serve"
                )
            largest = max(largest, difference)
            if step == 2 * steps // 3:
                policy.cut_plan()
                bundle.cut_plan()
    return 2 * steps, largest


def demonstrated_observations(
    policy: RolloutPolicy, path: str | Path, count: int
) -> list[dict[str, Raw]]:
    """Return evenly spread observations of a file's first demo, together with the policy's first instruction.

    Args:
        policy: policy whose observations are read.
        path: file of demonstrations.
        count: number of observations.

    Raises:
        BundleError: the policy has goals, or an observation is missing in the file or has another shape.
        DatasetError: the file cannot be read, or has no steps.
    """
    if policy.goal_keys:
        raise BundleError(
            "the policy needs goals, which demonstrations do not contain: omit --dataset"
        )
    shapes, known = policy.algo.preprocess.raw_shapes, policy.instructions
    fixed = {} if known is None else {LANGUAGE_KEY: np.asarray(known.vectors[0])}
    with DatasetFile(path) as file:
        demo = next((name for name in file.demos() if file.length(name)), None)
        if demo is None:
            raise DatasetError(f"{path}: the demos have no steps; give a file with recorded steps")
        steps = np.linspace(0, file.length(demo) - 1, count).round().astype(int)
        read = {}
        for key in policy.obs_keys:
            if not file.has(demo, f"obs/{key}"):
                raise BundleError(
                    f"{path} lacks the policy's observation '{key}': name demonstrations that have it"
                )
            shape = file.shape(demo, f"obs/{key}")[1:]
            if tuple(shape) != tuple(shapes[key]):
                raise BundleError(
                    f"'{key}' has shape {tuple(shape)} in {path}, but the policy takes {tuple(shapes[key])}: name "
                    "other demonstrations"
                )
            read[key] = [_stored(file.read(demo, f"obs/{key}", s, s + 1)[0]) for s in steps]
    return [
        {"obs": {**{key: values[row] for key, values in read.items()}, **fixed}, "goal": {}}
        for row in range(count)
    ]


def _stored(value: NDArray[Any]) -> NDArray[Any]:
    """Convert an array to uint8, int64 or float32, the types that a bundle can contain."""
    if value.dtype.kind in "iub":
        return value if value.dtype == np.uint8 else value.astype(np.int64)
    return np.asarray(value, dtype=np.float32)
