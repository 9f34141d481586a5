"""Adapter that gives an algorithm of this package the modes and functions of a DI-engine policy.

Source: ``Policy`` and ``CommandModePolicy`` in ``ding/policy/base_policy.py`` of https://github.com/opendilab/DI-engine
(d0b21d06). The modes, the functions and the keys of samples have DI-engine's names; each function calls the algorithm:

    learn.forward(samples)           Algo.process_batch_for_training, train_on_batch, log_info: one update
    collect.forward({id: obs})       Algo.act(explore=True), with a state for each id
    eval.forward({id: obs})          Algo.act(explore=False)
    reset(ids)                       drops the states of these ids
    collect.get_train_sample(steps)  n-step sums, windows of frames, or advantages: ``experience.py``
    learn.state_dict                 Algo.serialize, with the optimizers' moments
    command.get_setting_collect      the finished part of the training, for Algo.set_progress

Departures:

* A ``done`` at a time limit (``info["TimeLimit.truncated"]``) is not a terminal, so TD targets bootstrap from the
  state that the step reaches.
* ``learn.forward`` makes one update, also for ``ppo`` and ``a2c``; the calling loop makes epochs and minibatches.
* Actions are in the environment's units, and discrete actions are one-hot; observations are raw. The algorithm's
  preprocessing converts both.
* ``import_names`` is refused, because a configuration must not choose the code that runs.
* Rewards are used as they are given; ``train.reward`` has no effect here.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from imitate.algo.base.algo import Algo
from imitate.algo.base.factory import algo_class_of, algo_factory
from imitate.algo.base.policy_state import PolicyState, joined_states, state_row
from imitate.config import Config, load_config
from imitate.config.section import merged
from imitate.errors import ConfigError, UserError
from imitate.interop.experience import Experience, decided

FIELDS = ("learn", "collect", "eval", "command")
OBSERVATION = "flat"
"""Key of a policy's only observation, as for gymnasium environments with vectors."""
_OF_TRANSITIONS = ("obs", "next_obs", "action", "reward", "done", "timeout")

Sample = Mapping[str, Any]


class LearnFunction(NamedTuple):
    """Functions of ``learn_mode``."""

    forward: Any
    reset: Any
    info: Any
    monitor_vars: Any
    get_attribute: Any
    set_attribute: Any
    state_dict: Any
    load_state_dict: Any


class CollectFunction(NamedTuple):
    """Functions of ``collect_mode``."""

    forward: Any
    process_transition: Any
    get_train_sample: Any
    reset: Any
    get_attribute: Any
    set_attribute: Any
    state_dict: Any
    load_state_dict: Any


class EvalFunction(NamedTuple):
    """Functions of ``eval_mode``."""

    forward: Any
    reset: Any
    get_attribute: Any
    set_attribute: Any
    state_dict: Any
    load_state_dict: Any


class CommandFunction(NamedTuple):
    """Functions of ``command_mode``."""

    get_setting_learn: Any
    get_setting_collect: Any
    get_setting_eval: Any


class Timestep(Protocol):
    """Result of an environment's step: DI-engine's ``BaseEnvTimestep``."""

    obs: Any
    reward: Any
    done: Any
    info: Mapping[str, Any]


class _Acting:
    """Acts in several environments, and keeps the policy's state of each by the environment's id."""

    def __init__(self, algo: Algo, *, explore: bool) -> None:
        self._algo, self._explore = algo, explore
        self._states: dict[int, PolicyState] = {}

    def forward(
        self, data: Mapping[int, Any], progress: float | None = None
    ) -> dict[int, dict[str, Tensor]]:
        """Return ``action`` and further outputs of the policy for the raw observation of each environment id."""
        algo = self._algo
        if progress is not None:
            algo.set_progress(progress)
        rows = [by_key(algo, value) for value in data.values()]
        obs = {key: np.stack([np.asarray(row[key]) for row in rows]) for key in algo.obs_shapes}
        states = [self._states.get(each) or algo.initial_state(1) for each in data]
        action, step = decided(algo, obs, joined_states(states), explore=self._explore)
        self._states |= {each: state_row(step.state, row) for row, each in enumerate(data)}
        named = {"action": action.cpu(), **{key: x.cpu() for key, x in step.extras.items()}}
        return {each: {k: x[row] for k, x in named.items()} for row, each in enumerate(data)}

    def reset(self, data_id: Collection[int] | None = None) -> None:
        """Reset the policy's state for new episodes in these environments, by default in all."""
        for each in list(self._states) if data_id is None else data_id:
            self._states.pop(each, None)


class DingPolicy:
    """An algorithm with the modes of a DI-engine policy, see :func:`as_policy`."""

    def __init__(self, algo: Algo, enable_field: Collection[str]) -> None:
        unknown = set(enable_field) - set(FIELDS)
        if unknown:
            raise UserError(
                f"enable_field: unknown {', '.join(sorted(unknown))}; expected some of {', '.join(FIELDS)}"
            )
        self.algo = algo
        self._fields = set(enable_field)
        self._attributes: dict[str, Any] = {}
        self._collect, self._eval = _Acting(algo, explore=True), _Acting(algo, explore=False)
        self._updates = 0
        self._logged: list[str] = []
        if algo.gives_errors:
            algo.keeps_errors = True  # type: ignore[attr-defined]

    @property
    def cfg(self) -> dict[str, Any]:
        """The whole configuration as plain values."""
        return self.algo.global_config.to_dict()

    @property
    def learn_mode(self) -> LearnFunction:
        """Functions that train."""
        self._need("learn")
        return LearnFunction(
            self._learn, self._reset_learn, self._info, self._monitor_vars,
            self._get_attribute, self._set_attribute, self._learn_state, self._load_learn_state,
        )  # fmt: skip

    @property
    def collect_mode(self) -> CollectFunction:
        """Functions that act with exploration and make training samples of the collected steps."""
        self._need("collect")
        return CollectFunction(
            self._collect.forward, process_transition, self._get_train_sample, self._collect.reset,
            self._get_attribute, self._set_attribute, self._acting_state, self._load_acting_state,
        )  # fmt: skip

    @property
    def eval_mode(self) -> EvalFunction:
        """Functions that act as in evaluation."""
        self._need("eval")
        return EvalFunction(
            self._eval.forward, self._eval.reset, self._get_attribute, self._set_attribute,
            self._acting_state, self._load_acting_state,
        )  # fmt: skip

    @property
    def command_mode(self) -> CommandFunction:
        """Functions that return settings for the progress of the training."""
        self._need("command")
        return CommandFunction(lambda info: {}, self._setting_collect, lambda info: {})

    def _need(self, name: str) -> None:
        if name not in self._fields:
            raise UserError(
                f"{name}_mode is not enabled: create the policy with '{name}' in enable_field, which has "
                f"only {', '.join(sorted(self._fields))}"
            )

    # ---- learn ---------------------------------------------------------------------------------------------------

    def _learn(self, data: Sequence[Sample]) -> dict[str, Any]:
        """Make one update; return metrics as floats, and with critics the ``priority`` (TD error) of each sample."""
        algo = self.algo
        if "action" in data[0]:
            self._need_single_steps()
            keys = [{key: each[key] for key in ("IS",) if key in each} for each in data]
            data = [
                {**self._get_train_sample([each])[0], **more}
                for each, more in zip(data, keys, strict=True)
            ]
        batch = _stacked(data)
        weight = batch.pop("IS", None)  # importance-sampling weights of a prioritized buffer
        if weight is not None:
            weight = weight.reshape(-1, 1).float().expand(batch["actions"].shape[:2])
            batch["weight"] = weight * batch.get("weight", 1.0)
        algo.set_train()
        if algo.experience == "replay":
            batch = algo.process_batch_for_training(batch)
        every = algo.global_config.experiment.epoch_every_n_steps or 1
        info = algo.log_info(algo.train_on_batch(batch, 1 + self._updates // every))
        self._updates += 1
        if self._updates % every == 0:
            algo.on_epoch_end(self._updates // every)
        out: dict[str, Any] = {**info, "total_loss": info["Loss"]}
        out["cur_lr"] = next(iter(algo.optimization.learning_rates().values()))
        self._logged = list(out)
        errors = getattr(algo, "sample_errors", None)
        return out if errors is None else {**out, "priority": errors.tolist()}

    def _need_single_steps(self) -> None:
        """Refuse transitions for an algorithm whose samples consist of several steps."""
        algo, train = self.algo, self.algo.global_config.train
        longest = max(train.frame_stack, train.seq_length, algo.config.get("n_step", 1))
        if algo.experience == "rollout" or longest > 1:
            raise UserError(
                f"{algo.global_config.algo_name} learns from several steps in a row: give the trajectories to "
                "collect.get_train_sample, and its samples to learn.forward"
            )

    def _reset_learn(self, data_id: Collection[int] | None = None) -> None:
        """Do nothing, because learning has no state of an episode."""

    def _info(self) -> str:
        return f"{type(self.algo).__name__} of imitate\n{self.algo.nets}"

    def _monitor_vars(self) -> list[str]:
        return self._logged or ["cur_lr", "total_loss"]

    def _learn_state(self) -> dict[str, Any]:
        return {**self.algo.serialize(), "ding_updates": self._updates}

    def _load_learn_state(self, state_dict: Mapping[str, Any]) -> None:
        self.algo.deserialize(state_dict)
        self._updates = int(state_dict["ding_updates"])

    # ---- collect -------------------------------------------------------------------------------------------------

    def _get_train_sample(self, transitions: Sequence[Sample]) -> list[dict[str, Any]]:
        """Make training samples of successive steps of one environment, which :func:`process_transition` returned."""
        algo = self.algo
        rows = _stacked(
            [
                {
                    **each,
                    "obs": by_key(algo, each["obs"]),
                    "next_obs": by_key(algo, each["next_obs"]),
                }
                for each in transitions
            ]
        )
        arrays = {key: _of_one_env(value) for key, value in rows.items()}
        timeouts = arrays.get("timeout", np.zeros_like(arrays["done"])) > 0
        steps = Experience(
            arrays["obs"],
            arrays["next_obs"],
            arrays["action"],
            arrays["reward"].reshape(-1, 1),
            ((arrays["done"] > 0) & ~timeouts).reshape(-1, 1),
            timeouts.reshape(-1, 1),
            {key: value for key, value in arrays.items() if key not in _OF_TRANSITIONS},
        )
        batch = steps.samples(algo)
        return [_row(batch, row) for row in range(len(transitions))]

    # ---- state, attributes, settings -----------------------------------------------------------------------------

    def _acting_state(self) -> dict[str, Any]:
        """Return the weights of the networks that act; their moving average if the algorithm has one."""
        algo = self.algo
        nets = algo.nets if algo.ema is None else algo.ema.module
        names = (algo.main_net, *algo.acting_nets)
        return {"model": {name: nets.get_submodule(name).state_dict() for name in names}}

    def _load_acting_state(self, state_dict: Mapping[str, Any]) -> None:
        nets = self.algo.nets if self.algo.ema is None else self.algo.ema.module
        for name, weights in state_dict["model"].items():
            nets.get_submodule(name).load_state_dict(weights)

    def _get_attribute(self, name: str) -> Any:
        if name in self._attributes:
            return self._attributes[name]
        owner = self if name == "cfg" else self.algo
        if name.startswith("_") or not hasattr(owner, name):
            raise NotImplementedError(f"{type(self.algo).__name__} has no attribute '{name}'")
        return getattr(owner, name)

    def _set_attribute(self, name: str, value: Any) -> None:
        """Store a value for ``get_attribute``, without giving it to the algorithm."""
        self._attributes[name] = value

    def _setting_collect(self, command_info: Mapping[str, Any]) -> dict[str, float]:
        """Return the finished fraction of the training, in [0, 1], from the number of updates or environment steps."""
        config = self.algo.global_config
        every = config.experiment.epoch_every_n_steps or 1
        total = every * (config.train.num_epochs or 1)
        done = command_info["envstep" if config.train.online.enabled else "train_iter"]
        return {"progress": min(1.0, done / total)}


def as_policy(algo: Algo, enable_field: Collection[str] = FIELDS) -> DingPolicy:
    """Give an algorithm the modes of a DI-engine policy.

    Args:
        algo: the algorithm; the policy uses and trains its networks, not copies of them.
        enable_field: modes that may be used.

    Example:
        policy = as_policy(algo)
        outputs = policy.collect_mode.forward({0: obs, 3: other_obs})
        transition = policy.collect_mode.process_transition(obs, outputs[0], timestep)
        samples = policy.collect_mode.get_train_sample([transition, ...])
        info = policy.learn_mode.forward(samples)
    """
    return DingPolicy(algo, enable_field)


def default_config(algo_name: str) -> dict[str, Any]:
    """Return the default configuration of an algorithm, with its name as ``type``."""
    return {"type": algo_name, **load_config({"algo_name": algo_name}).to_dict()}


def create_policy(
    cfg: Mapping[str, Any], enable_field: Collection[str] = FIELDS, device: str = "cpu"
) -> DingPolicy:
    """Create an algorithm with the modes of a DI-engine policy.

    Args:
        cfg: ``type``, the name of the algorithm; ``model`` with ``obs_shape``, a number, a shape (C, H, W) or a dict of
            these, and ``action_shape``, the number of action dimensions; all other keys are a configuration of this
            package.
        enable_field: modes that may be used.
        device: device of the networks.
    """
    shapes, config = _read(cfg)
    action = int(np.prod(cfg["model"]["action_shape"]))
    return as_policy(algo_factory(config.algo_name, config, shapes, action, device), enable_field)


def get_policy_cls(cfg: Mapping[str, Any]) -> type[Algo]:
    """Return the class of the algorithm that :func:`create_policy` creates."""
    return algo_class_of(_read({"model": {"obs_shape": 1}, **cfg})[1])[0]


def process_transition(obs: Any, policy_output: Sample, timestep: Timestep) -> dict[str, Any]:
    """Return one environment step as a dict, including the further outputs of the policy."""
    limit = bool(timestep.info.get("TimeLimit.truncated", False))
    transition = {"obs": obs, "next_obs": timestep.obs, "reward": timestep.reward}
    return {**transition, "done": bool(timestep.done) or limit, "timeout": limit, **policy_output}


def by_key(algo: Algo, obs: Any) -> Mapping[str, Any]:
    """Return an observation as a dict; an array is taken as the policy's only observation."""
    if isinstance(obs, Mapping):
        return obs
    if len(algo.obs_shapes) != 1:
        raise UserError(f"obs: give a dict of {', '.join(algo.obs_shapes)}, not one array")
    return {next(iter(algo.obs_shapes)): obs}


def _read(cfg: Mapping[str, Any]) -> tuple[dict[str, tuple[int, ...]], Config]:
    """Return the shapes of the observations and the configuration from DI-engine's ``cfg``."""
    tree = {key: value for key, value in cfg.items() if key not in ("type", "model", "cfg_type")}
    if tree.pop("import_names", None):
        raise ConfigError(
            "import_names: import these modules in your program; a configuration may not name code that runs"
        )
    shape = cfg["model"]["obs_shape"]
    found = shape if isinstance(shape, Mapping) else {OBSERVATION: shape}
    shapes = {key: tuple(np.atleast_1d(value).tolist()) for key, value in found.items()}
    images = [key for key, value in shapes.items() if len(value) == 3]
    vectors = [key for key in shapes if key not in images]
    seen = {"obs": {"low_dim": vectors, "rgb": images}}
    named = {"algo_name": cfg["type"], "observation": {"modalities": seen}}
    return shapes, load_config(merged(tree, named))


def _stacked(rows: Sequence[Sample]) -> dict[str, Any]:
    """Stack samples along a new first axis; keys that are None in the first sample are left out."""
    first = {key: value for key, value in rows[0].items() if value is not None}
    return {
        key: _stacked([row[key] for row in rows])
        if isinstance(value, Mapping)
        else torch.stack([torch.as_tensor(row[key]) for row in rows])
        for key, value in first.items()
    }


def _row(batch: Sample, row: int) -> dict[str, Any]:
    return {
        key: _row(value, row) if isinstance(value, Mapping) else value[row]
        for key, value in batch.items()
    }


def _of_one_env(value: Any) -> Any:
    """Return tensors (T, ...) as arrays (T, 1, ...)."""
    if isinstance(value, Mapping):
        return {key: _of_one_env(each) for key, each in value.items()}
    return value.cpu().numpy()[:, None]
