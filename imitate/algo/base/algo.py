"""The contract of an algorithm.

Life of an algorithm:

    algo = algo_factory("bc", config, obs_key_shapes, ac_dim, device)
    algo.preprocess = Preprocess.from_statistics(...)          # optional; by default nothing is normalized
    batch = algo.process_batch_for_training(batch)             # raw batch -> prepared tensors on the device
    info = algo.train_on_batch(batch, epoch)                   # one update
    log = algo.log_info(info)                                  # floats for the logger
    step = algo.act(obs, state)                                # batched, stateless
    action = algo.get_action(obs); algo.reset()                # the same; the algorithm keeps the state

Each algorithm is one file, named after its ``algo_name``. It has a typed section, networks, losses, and a function
decorated with ``@register_algo_factory_func(algo_name, section=...)`` (``factory.py``) that returns the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, cast

import torch
from torch import Tensor, nn
from typing_extensions import NamedTuple, TypeVar

from imitate.algo.base.auxiliaries import learn_auxiliaries, slot_networks, with_slots
from imitate.algo.base.encoding import encoding_of, prepared_batch
from imitate.algo.base.execution import ChunkExecution
from imitate.algo.base.optimization import Optimization, rules_of, sections_of, updates_per_epoch
from imitate.algo.base.overrides import (
    adapt,
    check_networks,
    checked_loss,
    selected_batch,
    wrong_step,
)
from imitate.algo.base.policy_state import (
    InnerState,
    OwnState,
    PolicyState,
    no_plan,
    where_state,
    without_plan,
)
from imitate.algo.base.recorded import detached, update_of
from imitate.algo.base.relative import no_memory, recalled
from imitate.algo.slots.advantage import conditioned
from imitate.algo.slots.auxiliary import Auxiliary
from imitate.config import Config, Schedules, Section
from imitate.functional.kernels import with_fast_linears
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.categorical import ActionMask
from imitate.models.optim import EMA, averaging
from imitate.models.precision import autocast, compile_networks, set_mode
from imitate.system.ranks import ALONE, Ranks

Batch = dict[str, Any]
"""Nested dict of tensors ``(B, T, ...)``, or ``(B, ...)`` if an algorithm uses a single step."""

Info = dict[str, Tensor]
"""Detached scalar tensors by the name under which they are logged."""

ConfigT = TypeVar("ConfigT", bound=Section, default=Any)
"""Type of an algorithm's section of the configuration."""


StateT = TypeVar("StateT", default=PolicyState)


class PolicyStep(NamedTuple, Generic[StateT]):
    """Decision of a policy: normalized ``action (B, A)``, next ``state``, and ``extras`` such as log_prob or chunk."""

    action: Tensor
    state: StateT
    extras: dict[str, Tensor]


class Algo(ABC, Generic[ConfigT]):
    """The contract between an algorithm and training, evaluation and deployment.

    ``class BC(Algo[BCConfig])`` gives :attr:`config` the type of the algorithm's section. A subclass fills
    ``self.nets`` in :meth:`_create_networks`, selects in :meth:`_select_batch` the part of a prepared batch that it
    learns from, returns a loss in :meth:`_loss` and an action in :meth:`_act`. An algorithm with several losses
    overrides :meth:`train_on_batch` and calls :meth:`_gradient_step` for each loss. A public method may be overridden
    instead of the hook that it calls; :mod:`imitate.algo.base.overrides` checks that nothing is missing.

    Attributes:
        config: the algorithm's section of the configuration; :attr:`algo_config` is an alias.
        nets: all networks with weights, including target networks.
        preprocess: converts raw values to network inputs, and actions back. It is saved separately from the networks.
        autocast: makes a context in which the wide layers of a network compute in bf16, if ``train.precision`` requests
            bf16. Heads and losses are computed outside of this context, because likelihoods in bf16 are too inexact.
        encoding: shapes of the observations, and a factory of encoders for them.
        action_mask: choices of a discrete action that the environment allows.
        ema: moving average of the networks, updated after each update of :attr:`main_net`; None unless
            ``algo.ema.enabled``.
        ranks: the processes that train together; by default only this process.
        schedules: the numbers of :attr:`config` that change with the progress of the training.
        counters: numbers of events, such as updates, that later updates depend on; saved for an exact resume.
    """

    nets: nn.ModuleDict
    main_net: ClassVar[str] = "policy"
    """Name of the network that acts."""
    experience: ClassVar[Literal["replay", "rollout"]] = "replay"
    """Source of batches in online RL: samples of a replay buffer, or whole rollouts of the current policy."""
    targets: ClassVar[dict[str, str]] = {}
    """Map from each target network to the network that it follows, or to a part of one, such as ``model.critics``."""
    gives_uncertainty: bool = False
    """True if :meth:`act` returns ``uncertainty`` (B,) in its extras."""
    gives_errors: ClassVar[bool] = False
    """True if critics can return the TD error of each sample, as prioritized replay needs."""
    ranks: Ranks = ALONE
    acting_nets: tuple[str, ...] = ()
    """Names of further networks that acting needs."""
    recordable = False
    """True if an update can be recorded as a CUDA graph: its operations are the same for all batches of one shape.

    Such an update must not read Python numbers that change between updates, nor draw random numbers on the CPU. A
    subclass that overrides methods has to set this attribute again.
    """
    random_needs_act = True
    """True if :meth:`act` is called even at steps with random actions, because its state or extras are learned from."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        adapt(cls)

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
        self.schedules, algo_config = Schedules.of(algo_config)
        self.config = self.algo_config = algo_config
        self.obs_config, self.global_config = obs_config, global_config
        self.ac_dim, self.device = ac_dim, torch.device(device)
        shapes = self.obs_key_shapes = {k: tuple(v) for k, v in obs_key_shapes.items()}
        self.frame_stack: int = global_config.train.frame_stack
        ema = averaging(algo_config)
        self.encoding = encoding_of(self, shapes, load_pretrained)
        self.obs_shapes, self.goal_shapes, self.subgoal_shapes = self.encoding.shapes_of_groups()
        self.preprocess = self.encoding.layout(ac_dim).to(self.device)
        self.action_mask = ActionMask(obs_config.mask_key())
        self.autocast = autocast(global_config.train.precision, self.device)
        self._own_state = OwnState()
        self.ema: EMA | None = None
        self.counters: dict[str, int] = {}
        self._create_networks()
        check_networks(self)
        self._add_slots()
        self.nets = with_fast_linears(self.nets.float().to(self.device))
        self.ema = ema and EMA(self.nets, power=ema.power, max_decay=ema.max_decay)
        self.schedules.set(0.0)

    @property
    def learners(self) -> tuple[Algo, ...]:
        """The algorithms whose networks are trained: this algorithm, or the parts of a hierarchy."""
        return (self,)

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Shapes of the recurrent state stored with each step, if the algorithm learns from replayed sequences.

        The result is None for other algorithms.
        """
        return None

    @property
    def active_nets(self) -> nn.ModuleDict:
        """The networks in use: in evaluation mode the averaged networks, if ``algo.ema`` is enabled."""
        if self.ema is None or self.nets.training:
            return self.nets
        return cast(nn.ModuleDict, self.ema.module)

    # ---- initialization ------------------------------------------------------------------------------------------

    @abstractmethod
    def _create_networks(self) -> None:
        """Fill ``self.nets``."""

    def _add_slots(self) -> None:
        """Add the networks of the enabled slots (optional parts in ``algo``), after :meth:`_create_networks`."""
        self.nets.update(slot_networks(self))

    @property
    def auxiliaries(self) -> dict[str, Auxiliary]:
        """Auxiliary losses and rewards by the names of their networks."""
        return {name: net for name, net in self.nets.items() if isinstance(net, Auxiliary)}

    def _create_encoder(self, frames: int | None = None) -> GroupEncoder:
        """Create an encoder of observation and goal according to ``observation.encoder``.

        The encoder concatenates the features of ``frames`` observations, by default the last ``train.frame_stack``.
        """
        return self.encoding.encoder(frames)

    # ---- optimization --------------------------------------------------------------------------------------------

    @cached_property
    def optimization(self) -> Optimization:
        """Optimizers, learning-rate schedules and gradient steps.

        The optimizers are created on first use, because importing them takes seconds, and a policy that only acts needs
        none.
        """
        rules = rules_of(self)
        steps = updates_per_epoch(self.global_config, rollouts=self.experience == "rollout")
        parts = self.global_config.train.gradient_accumulation
        return Optimization(self.nets, rules, self.device, steps, parts, self.ema, self.main_net)

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """One optimizer per network named in ``algo.optim_params``."""
        return self.optimization.optimizers

    @property
    def schedulers(self) -> dict[str, torch.optim.lr_scheduler.LRScheduler]:
        """Learning-rate schedules, stepped after every update, by the name of the network."""
        return self.optimization.schedulers

    @property
    def _gradient_step(self) -> Callable[[str, Tensor], Tensor]:
        """Function of ``(name, loss)`` that makes a gradient step of a network: backward, clip, optimizer, schedule.

        The function returns the norm of the gradients before clipping.
        """
        return self.optimization.step

    def _optim_params(self) -> dict[str, Any]:
        """Return the optimizer sections of the existing networks."""
        return sections_of(self.config, self.nets)

    def _epochs_of(self, name: str) -> int:
        """Return the number of epochs in which a network is trained: the length of its learning-rate schedule."""
        # train.num_epochs is null if the algorithm is built without data, only for inspection
        return self.global_config.train.num_epochs or 1

    def _max_grad_norm(self, name: str) -> float | None:
        """Return the norm to which a network's gradients are clipped; None: no clipping."""
        return self.global_config.train.max_grad_norm

    # ---- training ------------------------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Batch) -> Batch:
        """Prepare a batch of :class:`~imitate.data.SequenceDataset` and select the parts that the losses use.

        Args:
            batch: raw values: ``obs`` (B, T, ...), ``actions`` (B, T, A), ...

        Returns:
            tensors on the device; observations float, images CHW, normalized by ``self.preprocess``.
        """
        ready = prepared_batch(batch, self.preprocess, self.encoding, self.device, self.execution)
        return self.selected(ready)

    def selected(self, batch: Batch) -> Batch:
        """Return the part of a prepared batch that the algorithm and its auxiliaries learn from."""
        return with_slots(selected_batch(self, batch), batch, self.frame_stack)

    def _select_batch(self, batch: Batch) -> Batch:
        """Select the steps and keys of a prepared batch that the losses use."""
        raise NotImplementedError

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Return the loss of network ``policy`` and scalars to log, without changing the algorithm."""
        raise NotImplementedError

    def _validation_info(self, batch: Batch) -> Info:
        """Return further measurements on held-out data, such as the error of the policy's actions."""
        return {}

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Make one update, or with ``validate`` only compute the losses of an update.

        Args:
            batch: from :meth:`process_batch_for_training`.
            epoch: counted from 1.
            validate: only compute the losses; call :meth:`set_eval` before.

        Returns:
            detached scalars on the device, not yet synchronized; see :meth:`log_info`.
        """
        batch, values = conditioned(self, batch, learn=not validate)
        if not validate:
            return self.recorded_update(self, batch) | values
        with torch.no_grad():
            _, info = checked_loss(self, self._loss(batch))
            more = learn_auxiliaries(self, batch, learn=False)
            return detached(info | self._validation_info(batch) | more | values)

    @cached_property
    def recorded_update(self) -> Callable[[Algo, Batch], Info]:
        """Function of this algorithm and a prepared batch that updates ``policy``, as one CUDA graph if possible."""
        return update_of(self)

    def log_info(self, info: Mapping[str, Tensor]) -> dict[str, float]:
        """Convert the scalars of :meth:`train_on_batch` (or their mean over an epoch) to floats; add learning rates."""
        return {k: float(v) for k, v in info.items()} | self.optimization.learning_rates()

    def on_epoch_end(self, epoch: int) -> None:  # noqa: B027 - a hook, empty by default
        """Update values that change once per epoch; the trainer calls this after each epoch, counted from 1."""

    def set_progress(self, progress: float) -> None:
        """Put the current values of schedules into :attr:`config`. A method that overrides this one must call it.

        Args:
            progress: finished fraction of the training, in [0, 1]. It is set before each update if the training reads
                files, and before each collection if it collects from an environment.
        """
        self.schedules.set(progress)

    def set_train(self) -> None:
        """Switch to training mode: dropout, random crops and learned noise are on.

        If ``train.compile`` is set, the networks are compiled first.
        """
        set_mode(self.nets, training=True)
        if self.global_config.train.compile:
            compile_networks(self.nets.values(), self.device)

    def set_eval(self) -> None:
        """Switch to evaluation mode."""
        set_mode(self.nets, training=False)

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """Return everything that an exact resume needs, as tensors, numbers, strings, lists and dicts.

        The tensors are those of the networks themselves, not copies.
        """
        state = {"nets": self.nets.state_dict(), **self.optimization.state_dict(), **self.counters}
        state |= self.schedules.state_dict()
        return state if self.ema is None else {**state, "ema": self.ema.state_dict()}

    def deserialize(self, model_dict: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """Load the result of :meth:`serialize`. Raises RuntimeError if names or shapes of weights differ."""
        self.nets.load_state_dict(model_dict["nets"])
        self.schedules.load_state_dict(model_dict)
        if self.ema is not None:
            self.ema.load_state_dict(model_dict["ema"])
        if load_optimizers:
            self.counters = {name: int(model_dict[name]) for name in self.counters}
            self.optimization.load_state_dict(model_dict)
            # discard the recorded CUDA graph, which contains the state of the optimizers before loading
            vars(self).pop("recorded_update", None)

    # ---- test time -----------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> PolicyState:
        """Return the states of B policies at the start of an episode."""
        own = self._initial_policy_state(batch_size)
        return {"policy": own, **no_memory(self, batch_size)}

    def reset_state(self, state: PolicyState, mask: Tensor) -> PolicyState:
        """Return the state, reset to the initial state where ``mask`` (B,) is true."""
        return where_state(mask, self.initial_state(mask.shape[0]), state)

    @property
    def execution(self) -> ChunkExecution | None:
        """How predicted chunks are executed, or None if the policy predicts single actions.

        The state of the execution is stored in the policy state under the key ``chunk``.
        """
        return None

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """Return the state without planned actions; remembered observations are kept.

        The next :meth:`act` then makes a new prediction. The state of a policy without plans is returned unchanged.
        """
        return state if self.execution is None else without_plan(state, self.execution)

    def observe_reward(self, state: PolicyState, reward: Tensor) -> PolicyState:
        """Add the rewards (B,) of the latest actions to the state and return it; most policies ignore rewards.

        Calling this method is optional.
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
        """Return the next actions of B policies, without changing the algorithm.

        Args:
            obs: prepared observations (B, ...).
            state: from :meth:`initial_state`, :meth:`reset_state` or the previous step.
            goal: prepared goals (B, ...), if the policy has goals.
            explore: act with the learned noise instead of as in evaluation.
            generator: source of randomness; None: the default generator.
        """
        # if a state has more entries than "policy", it contains earlier observations, to which `obs` is added
        obs, state, kept = recalled(self, obs, state) if len(state) > 1 else (obs, state, {})
        step = self._act(obs, state["policy"], goal, explore=explore, generator=generator)
        if not isinstance(step, PolicyStep):
            raise wrong_step(self, step)
        return PolicyStep(step.action, {"policy": step.state, **kept}, step.extras)

    def _act(
        self,
        obs: dict[str, Tensor],
        state: InnerState,
        goal: dict[str, Tensor] | None,
        *,
        explore: bool,
        generator: torch.Generator | None,
    ) -> PolicyStep[InnerState]:
        """Implement :meth:`act` for observations (B, ...), or (B, frame_stack, ...), and the state ``policy``."""
        raise NotImplementedError

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        """Return the subclass's part of the initial state; ``chunk`` belongs to :attr:`execution`."""
        return no_plan(self.execution, batch_size, self.ac_dim, self.device)

    def get_action(self, obs_dict: Obs, goal_dict: Obs | None = None) -> Tensor:
        """Return normalized actions (B, A) for prepared observations (B, ...); the algorithm keeps the state."""
        return self._own_state.act(self, obs_dict, goal_dict)

    def reset(self) -> None:
        """Reset the state that :meth:`get_action` keeps, for a new episode."""
        self._own_state.reset()
