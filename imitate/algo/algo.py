"""The contract of an algorithm.

Life of an algorithm:

    algo = algo_factory("bc", config, obs_key_shapes, ac_dim, device)
    algo.preprocess = Preprocess.from_statistics(...)          # optional; layout only by default
    batch = algo.process_batch_for_training(batch)             # raw batch -> prepared tensors on the device
    info = algo.train_on_batch(batch, epoch)                   # one update
    log = algo.log_info(info)                                  # floats for the logger
    step = algo.act(obs, state)                                # batched, stateless
    action = algo.get_action(obs); algo.reset()                # the same on the algorithm's own state

An algorithm is one file here, named as its ``algo_name``: its typed section, its networks, its losses, and a function
under ``@register_algo_factory_func(algo_name, section=...)`` (``factory.py``) that picks the class.
"""

from __future__ import annotations

import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from imitate.algo.execution import ChunkExecution
from imitate.algo.overrides import with_validation
from imitate.algo.policy_state import PolicyState, no_frames, where_state, with_frame
from imitate.auxiliary.auxiliary import Auxiliary
from imitate.auxiliary.auxiliary import built as auxiliaries_of
from imitate.config import Config, Section
from imitate.errors import ConfigError
from imitate.models.actor import GroupEncoder
from imitate.models.ema import EMA
from imitate.models.observation import ObservationEncoder
from imitate.models.optim import apply_gradients, make_optimizer, make_scheduler
from imitate.models.precision import autocast_dtype
from imitate.models.preprocess import Preprocess

Batch = dict[str, Any]
"""Nested dict of tensors ``(B, T, ...)``, or ``(B, ...)`` where an algorithm looks at one step."""

Info = dict[str, Tensor]
"""Detached scalar tensors by the name under which they are logged."""

ConfigT = TypeVar("ConfigT", bound=Section, default=Any)
"""Type of an algorithm's section of the configuration."""


class PolicyStep(NamedTuple):
    """One decision: ``action (B, A)``, normalized; the next ``state``; ``extras`` such as log_prob, value or chunk."""

    action: Tensor
    state: PolicyState
    extras: dict[str, Tensor]


class Algo(ABC, Generic[ConfigT]):
    """The contract between an algorithm and training, evaluation and deployment.

    ``class BC(Algo[BCConfig])`` gives :attr:`config` the type of the algorithm's section. A subclass fills
    ``self.nets`` in :meth:`_create_networks`, picks in :meth:`_select_batch` the part of a prepared batch that it
    learns from, returns a loss in :meth:`_loss` and an action in :meth:`_act`. One with several losses overrides
    :meth:`train_on_batch` and calls :meth:`_gradient_step` for each in its order. The public method may be
    overridden in place of the hook that it calls; :mod:`imitate.algo.overrides` checks that all is there.

    Attributes:
        config: the algorithm's section of the configuration; :attr:`algo_config` is another name of it.
        nets: every network that has weights, targets too.
        preprocess: from raw values to network inputs, and back for actions. Saved apart from the networks.
        share_gradients: averages gradients over the processes that train together, where there are several.
        share_weights: gives these processes the weights and buffers of the first.
        ema: moving average of the networks, where ``algo.ema.enabled``; it follows each update of :attr:`main_net`.
        counters: numbers of events, such as updates, on which later updates depend; saved for an exact resume.
    """

    nets: nn.ModuleDict
    main_net: ClassVar[str] = "policy"
    """Name of the network that acts."""
    experience: ClassVar[Literal["replay", "rollout"]] = "replay"
    """Source of batches in online RL: samples of a replay buffer, or whole rollouts of the present policy."""
    targets: ClassVar[dict[str, str]] = {}
    """Target network -> the network that it follows."""
    gives_errors: ClassVar[bool] = False
    """True where critics can say how far each sample was from its TD target, as prioritized replay wants."""
    acting_nets: tuple[str, ...] = ()
    """Names of further networks that acting needs."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        with_validation(cls)

    def __init__(
        self,
        algo_config: ConfigT,
        obs_config: Any,
        global_config: Config,
        obs_key_shapes: Mapping[str, tuple[int, ...]],
        ac_dim: int,
        device: torch.device | str,
        load_pretrained: bool = True,
    ) -> None:
        self._load_pretrained = load_pretrained
        self.config = algo_config
        self.obs_config = obs_config
        self.global_config = global_config
        self.ac_dim = ac_dim
        self.device = torch.device(device)
        self.obs_key_shapes = {k: tuple(v) for k, v in obs_key_shapes.items()}
        self.frame_stack: int = global_config.train.frame_stack
        self.obs_shapes = self._group_shapes("obs")
        self.goal_shapes = self._group_shapes("goal")
        self.subgoal_shapes = self._group_shapes("subgoal")
        self.preprocess = Preprocess.layout_only_from_processed(
            {**self.obs_shapes, **self.goal_shapes, **self.subgoal_shapes},
            obs_config.modalities_of_all(),
            {"actions": ac_dim},
        ).to(self.device)
        self._autocast_dtype = autocast_dtype(global_config.train.precision, self.device)
        self._state: PolicyState | None = None
        self._compiled = False
        self.ema: EMA | None = None
        self.share_gradients: Callable[[Sequence[Tensor]], None] | None = None
        self.share_weights: Callable[[nn.Module], None] | None = None
        self._parts: dict[str, int] = {}
        self.counters: dict[str, int] = {}
        self._create_networks()
        if not isinstance(getattr(self, "nets", None), nn.ModuleDict):
            raise ConfigError(
                f"{type(self).__name__}._create_networks() set no self.nets: set it to an nn.ModuleDict of networks"
            )
        self._add_slots()
        self.nets = self.nets.float().to(self.device)
        if self._averages_weights:
            ema = algo_config["ema"]
            self.ema = EMA(self.nets, power=ema.power, max_decay=ema.max_decay)

    @property
    def algo_config(self) -> ConfigT:
        """The algorithm's section of the configuration: :attr:`config` under robomimic's name."""
        return self.config

    @property
    def _averages_weights(self) -> bool:
        """True if a moving average of the weights is kept."""
        ema = self.config.get("ema", None)
        return ema is not None and bool(ema.enabled)

    @property
    def learners(self) -> tuple[Algo, ...]:
        """The algorithms whose networks learn: this one, or those that it consists of."""
        return (self,)

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Shapes of the recurrent state stored with each step, where the algorithm learns from replayed sequences."""
        return None

    @property
    def active_nets(self) -> nn.ModuleDict:
        """The networks in use: in evaluation mode, the averaged ones where there are such."""
        if self.ema is None or self.nets.training:
            return self.nets
        return cast(nn.ModuleDict, self.ema.module)

    # ---- initialization ------------------------------------------------------------------------------------------

    @abstractmethod
    def _create_networks(self) -> None:
        """Fill ``self.nets``."""

    def _add_slots(self) -> None:
        """Add the networks of the slots that the section fills, after :meth:`_create_networks`."""
        configs = self.config.get("auxiliary", None)
        if configs:
            self.nets.update(auxiliaries_of(configs, self._create_obs_encoder, self.ac_dim))

    @property
    def auxiliaries(self) -> dict[str, Auxiliary]:
        """Auxiliary losses and rewards by the names of their networks."""
        return {name: net for name, net in self.nets.items() if isinstance(net, Auxiliary)}

    def _create_obs_encoder(self) -> GroupEncoder:
        """A new encoder of the ``train.frame_stack`` last observations, without goals."""
        return GroupEncoder(self._encoder_of("obs"), None, self.frame_stack)

    def _group_shapes(self, group: str) -> dict[str, tuple[int, ...]]:
        """Shapes of the keys of an observation group, in alphabetical order."""
        keys = sorted(self.obs_config.modality_of(group))
        missing = [k for k in keys if k not in self.obs_key_shapes]
        if missing:
            raise ConfigError(
                f"observation.modalities.{group}: no shape was given for {', '.join(missing)}; "
                f"the data have {', '.join(sorted(self.obs_key_shapes))}"
            )
        return {k: self.obs_key_shapes[k] for k in keys}

    def _create_encoder(self, frames: int | None = None) -> GroupEncoder:
        """A new encoder of observation and goal, as ``observation.encoder`` says.

        It joins the features of ``frames`` observations, by default the ``train.frame_stack`` last ones.
        """
        goal = self._encoder_of("goal") if self.goal_shapes else None
        return GroupEncoder(self._encoder_of("obs"), goal, frames or self.frame_stack)

    def _encoder_of(self, group: str) -> ObservationEncoder:
        """A new encoder of one group of observations."""
        return ObservationEncoder(
            self._group_shapes(group),
            self.obs_config.modality_of(group),
            self.obs_config.encoder,
            default_norm="group" if self._averages_weights else "batch",
            load_pretrained=self._load_pretrained,
        )

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """One for each network named under ``algo.optim_params``."""
        return self._optimization[0]

    @property
    def schedulers(self) -> dict[str, torch.optim.lr_scheduler.LRScheduler]:
        """Learning-rate schedules, stepped after every update, by the name of the network."""
        return self._optimization[1]

    @cached_property
    def _optimization(
        self,
    ) -> tuple[dict[str, torch.optim.Optimizer], dict[str, torch.optim.lr_scheduler.LRScheduler]]:
        """Optimizers and schedulers, made together: a new scheduler sets the learning rate of its optimizer.

        They are made when training first asks: a policy that only acts has none, and does not wait seconds for their
        import.
        """
        steps_per_epoch = self.global_config.experiment.epoch_every_n_steps
        if steps_per_epoch is None:
            raise ConfigError(
                "experiment.epoch_every_n_steps is null (one pass over the data): outside of `imitate train`, which "
                "counts the batches, set the number of steps per epoch"
            )
        params = self._optim_params()
        optimizers = {
            name: make_optimizer(self.nets[name], optim_config, self.device)
            for name, optim_config in params.items()
        }
        schedulers: dict[str, torch.optim.lr_scheduler.LRScheduler] = {
            name: make_scheduler(
                optimizers[name],
                optim_config,
                steps_per_epoch=self._updates_per_epoch(steps_per_epoch),
                num_epochs=self._epochs_of(name),
            )
            for name, optim_config in params.items()
        }
        return optimizers, schedulers

    def _updates_per_epoch(self, steps_per_epoch: int) -> int:
        """Updates in an epoch of so many batches, or of so many environment steps."""
        train = self.global_config.train
        if train.online.enabled:
            return max(1, int(steps_per_epoch * train.online.update_ratio))
        return max(1, steps_per_epoch // train.gradient_accumulation)

    def _optim_params(self) -> dict[str, Any]:
        """Optimizer sections of the networks that there are."""
        section = self.config.get("optim_params", {})
        own = {name: section[name] for name in section if name in self.nets}
        return {**own, **{name: net.config.optimizer for name, net in self.auxiliaries.items()}}

    def _epochs_of(self, name: str) -> int:
        """Epochs in which a network learns: so many does its learning-rate schedule have."""
        return self.global_config.train.num_epochs or 1  # null: built without data, to be looked at

    def _compile(self) -> None:
        """Compile the networks in place; on CUDA with graphs, which pay for small networks."""
        if self.device.type == "cpu" and not any(
            map(shutil.which, ("c++", "g++", "clang++", "cl"))
        ):
            warnings.warn(
                "train.compile needs a C++ compiler on the CPU and none was found; going on without it",
                stacklevel=2,
            )
            return
        mode = "reduce-overhead" if self.device.type == "cuda" else "default"
        for net in self.nets.values():
            net.compile(mode=mode)

    # ---- training ------------------------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Batch) -> Batch:
        """Prepare a batch of :class:`~imitate.data.SequenceDataset` and pick what this algorithm learns from.

        Args:
            batch: raw values: ``obs`` (B, T, ...), ``actions`` (B, T, A), ...

        Returns:
            tensors on the device; observations float, images CHW, normalized as ``self.preprocess`` says.
        """
        prepared: Batch = {
            key: value.to(self.device, non_blocking=True)
            for key, value in batch.items()
            if isinstance(value, Tensor)
        }
        for key in ("actions", "next_actions"):
            if key in prepared:
                prepared[key] = self.preprocess.normalize_actions(prepared[key])
        wanted = {
            "obs": self.obs_shapes,
            "next_obs": self.obs_shapes,
            "goal_obs": self.goal_shapes,
            "subgoals": self.subgoal_shapes,
        }
        for group, keys in wanted.items():
            if batch.get(group):
                prepared[group] = self.preprocess.prepare_obs(batch[group], keys)
        selected = self._select_batch(prepared)
        if selected is None:
            raise ConfigError(f"{type(self).__name__}._select_batch() returned None: return a dict")
        return selected

    def _select_batch(self, batch: Batch) -> Batch:
        """From a prepared batch, the steps and keys that the losses use."""
        raise NotImplementedError

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Loss of network ``policy`` and what to log. Changes nothing."""
        raise NotImplementedError

    def _validation_info(self, batch: Batch) -> Info:
        """What else to measure on held-out data, such as the error of the actions that the policy would take."""
        return {}

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """One update, or with ``validate`` the same losses without it.

        Args:
            batch: from :meth:`process_batch_for_training`.
            epoch: counted from 1.
            validate: compute only; call :meth:`set_eval` before.

        Returns:
            detached scalars on the device, not yet synchronized; see :meth:`log_info`.
        """
        with torch.set_grad_enabled(not validate):
            outcome = self._loss(batch)
            if not isinstance(outcome, tuple) or len(outcome) != 2:
                raise ConfigError(
                    f"{type(self).__name__}._loss() returned {type(outcome).__name__}: return the loss and what to "
                    "log, as in: return loss, {'Loss': loss}"
                )
            loss, info = outcome
            if validate:
                info |= self._validation_info(batch)
        if not validate:
            info["Policy_Grad_Norms"] = self._gradient_step("policy", loss)
        return {name: torch.as_tensor(value).detach() for name, value in info.items()}

    def _gradient_step(self, name: str, loss: Tensor) -> Tensor:
        """Backward, clip to :meth:`_max_grad_norm`, step one network's optimizer and schedule; the gradient's norm.

        With ``train.gradient_accumulation`` n only each n-th call steps, by the mean of n gradients.
        """
        parts = self.global_config.train.gradient_accumulation
        number = self._parts.get(name, 0)
        self._parts[name] = (number + 1) % parts
        optimizer = self.optimizers[name]
        norm = apply_gradients(
            loss,
            (weight for group in optimizer.param_groups for weight in group["params"]),
            optimizer,
            self._max_grad_norm(name),
            self.share_gradients,
            (number, parts),
        )
        if self._parts[name] > 0:
            return norm
        self.schedulers[name].step()
        if self.ema is not None and name == self.main_net:
            self.ema.update(self.nets)
        return norm

    def _max_grad_norm(self, name: str) -> float | None:
        """Norm to which a network's gradients are scaled down; None: never."""
        norm: float | None = self.global_config.train.max_grad_norm
        return norm

    def autocast(self) -> AbstractContextManager[Any]:
        """Context for the wide layers of a network: bf16 where ``train.precision`` says so.

        Heads and losses stay outside: a likelihood in bf16 is worth nothing.
        """
        enabled = self._autocast_dtype is not torch.float32
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def log_info(self, info: Mapping[str, Tensor]) -> dict[str, float]:
        """The scalars of :meth:`train_on_batch` (or their mean over an epoch) as floats, with learning rates."""
        log = {name: float(value) for name, value in info.items()}
        for name, optimizer in self.optimizers.items():
            log[f"Optimizer/{name}_lr"] = float(optimizer.param_groups[0]["lr"])
        return log

    def on_epoch_end(self, epoch: int) -> None:  # noqa: B027 - a hook, empty by default
        """Called by the trainer after each epoch, counted from 1."""

    def set_progress(self, progress: float) -> None:  # noqa: B027 - a hook, empty by default
        """Called before each collection in an environment: which part of the training is over, in [0, 1]."""

    def set_train(self) -> None:
        """Training mode: dropout, random crops and learned noise are on; compiles if ``train.compile`` says so."""
        self.nets.train()
        if self.global_config.train.compile and not self._compiled:
            self._compiled = True
            self._compile()

    def set_eval(self) -> None:
        """Evaluation mode."""
        self.nets.eval()

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """Everything an exact resume needs, as tensors, numbers, strings, lists and dicts.

        The tensors are the live ones, not copies.
        """
        state = {
            "nets": self.nets.state_dict(),
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
            "schedulers": {name: s.state_dict() for name, s in self.schedulers.items()},
            **self.counters,
        }
        return state if self.ema is None else {**state, "ema": self.ema.state_dict()}

    def deserialize(self, model_dict: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """Load what :meth:`serialize` gave. Raises RuntimeError where names or shapes of weights differ."""
        self.nets.load_state_dict(model_dict["nets"])
        if self.ema is not None:
            self.ema.load_state_dict(model_dict["ema"])
        if not load_optimizers:
            return
        self.counters = {name: int(model_dict[name]) for name in self.counters}
        for name, optimizer in self.optimizers.items():
            # A copy: torch keeps the given tensors and would update them in place.
            optimizer.load_state_dict(deepcopy(model_dict["optimizers"][name]))
        for name, scheduler in self.schedulers.items():
            scheduler.load_state_dict(model_dict["schedulers"][name])

    # ---- test time -----------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> PolicyState:
        """State of B policies that have seen nothing yet."""
        state: PolicyState = {"policy": self._initial_policy_state(batch_size)}
        if self.frame_stack > 1:
            state |= no_frames(self.obs_shapes, self.frame_stack, batch_size, self.device)
        return state

    def reset_state(self, state: PolicyState, mask: Tensor) -> PolicyState:
        """A new state: fresh where ``mask`` (B,) is true, else as it was."""
        return where_state(mask, self.initial_state(mask.shape[0]), state)

    @property
    def execution(self) -> ChunkExecution | None:
        """How predicted chunks become actions, with its state under ``chunk``; None: actions come one at a time."""
        return None

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """The state without actions that are planned and not yet taken; what was observed stays.

        The next :meth:`act` then predicts anew. A policy that plans nothing gets its state back as it is.
        """
        if self.execution is None:
            return state
        policy = state["policy"]
        batch_size = len(next(iter(policy["chunk"].values())))
        return {**state, "policy": {**policy, "chunk": self._no_chunk(batch_size)}}

    def observe_reward(self, state: PolicyState, reward: Tensor) -> PolicyState:
        """The state after the rewards (B,) of the actions that it came with; most policies do not care.

        Nobody is obliged to tell a policy its rewards.
        """
        return state

    def act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None = None,
        *,
        explore: bool = False,
        generator: torch.Generator | None = None,
    ) -> PolicyStep:
        """One decision for each of B policies; changes nothing on self.

        Args:
            obs: prepared observations (B, ...).
            state: from :meth:`initial_state`, :meth:`reset_state` or the last step.
            goal: prepared goals (B, ...), where the policy has goals.
            explore: act with the learned noise rather than as in evaluation.
            generator: source of randomness; the default generator otherwise.
        """
        obs, frames = self._remembered(obs, state)
        step = self._act(obs, state["policy"], goal, explore=explore, generator=generator)
        if not isinstance(step, PolicyStep):
            raise ConfigError(
                f"{type(self).__name__}._act() returned {type(step).__name__}: return PolicyStep(action, state, {{}})"
            )
        return step._replace(state={"policy": step.state, **frames})

    def _remembered(
        self, obs: dict[str, Tensor], state: PolicyState
    ) -> tuple[dict[str, Tensor], PolicyState]:
        """The observation with those before it, where frames are stacked, and what to remember of it."""
        if self.frame_stack == 1:
            return obs, {}
        memory = with_frame(obs, state)
        return memory["frames"], memory

    def _act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep:
        """:meth:`act` with observations (B, ...), or (B, frame_stack, ...) if frames are stacked, and own state."""
        raise NotImplementedError

    def _initial_policy_state(self, batch_size: int) -> PolicyState:
        """The part of the state that belongs to the subclass; ``chunk`` belongs to :attr:`execution`."""
        return {} if self.execution is None else {"chunk": self._no_chunk(batch_size)}

    def _no_chunk(self, batch_size: int) -> PolicyState:
        """State of an execution that has no chunk yet."""
        assert self.execution is not None
        return self.execution.initial_state(batch_size, self.ac_dim, self.device)

    def get_action(
        self, obs_dict: dict[str, Tensor], goal_dict: dict[str, Tensor] | None = None
    ) -> Tensor:
        """:meth:`act` on the algorithm's own state: prepared observations (B, ...) to normalized actions (B, A)."""
        batch_size = next(iter(obs_dict.values())).shape[0]
        with torch.no_grad():
            if self._state is None:
                self._state = self.initial_state(batch_size)
            step = self.act(obs_dict, self._state, goal_dict)
        self._state = step.state
        return step.action

    def reset(self) -> None:
        """Forget the own state: a new episode begins."""
        self._state = None
