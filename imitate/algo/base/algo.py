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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Literal, cast

import torch
from torch import Tensor, nn
from typing_extensions import NamedTuple, TypeVar

from imitate.algo.base.action_mask import ActionMask
from imitate.algo.base.encoding import Encoding, prepared_batch
from imitate.algo.base.execution import ChunkExecution
from imitate.algo.base.optimization import Optimization, Rule, sections_of, updates_per_epoch
from imitate.algo.base.overrides import (
    check_networks,
    checked_batch,
    checked_loss,
    with_validation,
    wrong_step,
)
from imitate.algo.base.policy_state import (
    InnerState,
    Observed,
    OwnState,
    PolicyState,
    no_plan,
    where_state,
    without_plan,
)
from imitate.algo.base.relative import no_memory, recalled
from imitate.algo.slots.auxiliary.auxiliary import Auxiliary
from imitate.algo.slots.auxiliary.auxiliary import built as auxiliaries_of
from imitate.config import Config, Section
from imitate.functional.kernels import with_fast_linears
from imitate.models.actor import GroupEncoder, Obs
from imitate.models.ema import EMA, averaging
from imitate.models.mode import set_mode
from imitate.models.precision import autocast, compile_networks
from imitate.system.ranks import ALONE, Ranks

Batch = dict[str, Any]
"""Nested dict of tensors ``(B, T, ...)``, or ``(B, ...)`` where an algorithm looks at one step."""

Info = dict[str, Tensor]
"""Detached scalar tensors by the name under which they are logged."""

ConfigT = TypeVar("ConfigT", bound=Section, default=Any)
"""Type of an algorithm's section of the configuration."""


StateT = TypeVar("StateT", default=PolicyState)


class PolicyStep(NamedTuple, Generic[StateT]):
    """One decision: ``action (B, A)``, normalized; the next ``state``; ``extras`` such as log_prob, value or chunk."""

    action: Tensor
    state: StateT
    extras: dict[str, Tensor]


class Algo(ABC, Generic[ConfigT]):
    """The contract between an algorithm and training, evaluation and deployment.

    ``class BC(Algo[BCConfig])`` gives :attr:`config` the type of the algorithm's section. A subclass fills
    ``self.nets`` in :meth:`_create_networks`, picks in :meth:`_select_batch` the part of a prepared batch that it
    learns from, returns a loss in :meth:`_loss` and an action in :meth:`_act`. One with several losses overrides
    :meth:`train_on_batch` and calls :meth:`_gradient_step` for each in its order. The public method may be
    overridden in place of the hook that it calls; :mod:`imitate.algo.base.overrides` checks that all is there.

    Attributes:
        config: the algorithm's section of the configuration; :attr:`algo_config` is another name of it.
        nets: every network that has weights, targets too.
        preprocess: from raw values to network inputs, and back for actions. Saved apart from the networks.
        autocast: makes a context for the wide layers of a network: bf16 where ``train.precision`` says so. Heads and
            losses stay outside: a likelihood in bf16 is worth nothing.
        encoding: the observations' shapes, and new encoders of them.
        action_mask: choices of a discrete action that the environment allows.
        ema: moving average of the networks, where ``algo.ema.enabled``; it follows each update of :attr:`main_net`.
        ranks: the processes that train together; this one alone, unless a training says otherwise.
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
    frozen: ClassVar[str | None] = None
    """Name of the network that is a frozen policy, brought by ``algo.base.checkpoint``; None if there is none."""
    ranks: Ranks = ALONE
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
        self.config = self.algo_config = algo_config
        self.obs_config, self.global_config = obs_config, global_config
        self.ac_dim, self.device = ac_dim, torch.device(device)
        shapes = self.obs_key_shapes = {k: tuple(v) for k, v in obs_key_shapes.items()}
        self.frame_stack: int = global_config.train.frame_stack
        ema = averaging(algo_config)
        norm = "batch" if ema is None else "group"
        self.encoding = Encoding(obs_config, shapes, self.frame_stack, norm, load_pretrained)
        self.obs_shapes, self.goal_shapes, self.subgoal_shapes = self.encoding.shapes_of_groups()
        self.preprocess = self.encoding.layout(ac_dim).to(self.device)
        self.action_mask = ActionMask(obs_config.mask_key())
        self.autocast = autocast(global_config.train.precision, self.device)
        self._own_state = OwnState()
        self._compiled = False
        self.ema: EMA | None = None
        self.counters: dict[str, int] = {}
        self._create_networks()
        check_networks(self)
        self._add_slots()
        self.nets = with_fast_linears(self.nets.float().to(self.device))
        if ema is not None:
            self.ema = EMA(self.nets, power=ema.power, max_decay=ema.max_decay)

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
        make_encoder = partial(self.encoding.encoder, goals=False)
        configs: Any = self.config.get("auxiliary", None) or {}
        self.nets.update(auxiliaries_of(configs, make_encoder, self.ac_dim))

    @property
    def auxiliaries(self) -> dict[str, Auxiliary]:
        """Auxiliary losses and rewards by the names of their networks."""
        return {name: net for name, net in self.nets.items() if isinstance(net, Auxiliary)}

    def _create_encoder(self, frames: int | None = None) -> GroupEncoder:
        """A new encoder of observation and goal, as ``observation.encoder`` says.

        It joins the features of ``frames`` observations, by default the ``train.frame_stack`` last ones.
        """
        return self.encoding.encoder(frames)

    # ---- optimization --------------------------------------------------------------------------------------------

    @cached_property
    def optimization(self) -> Optimization:
        """Optimizers, schedules and gradient steps.

        They are made when training first asks: a policy that only acts has none, and does not wait seconds for their
        import.
        """
        rules = {
            name: Rule(config, self._epochs_of(name), self._max_grad_norm(name))
            for name, config in self._optim_params().items()
        }
        steps = updates_per_epoch(self.global_config, rollouts=self.experience == "rollout")
        parts = self.global_config.train.gradient_accumulation
        return Optimization(self.nets, rules, self.device, steps, parts, self.ema, self.main_net)

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """One for each network named under ``algo.optim_params``."""
        return self.optimization.optimizers

    @property
    def schedulers(self) -> dict[str, torch.optim.lr_scheduler.LRScheduler]:
        """Learning-rate schedules, stepped after every update, by the name of the network."""
        return self.optimization.schedulers

    @property
    def _gradient_step(self) -> Callable[[str, Tensor], Tensor]:
        """``(name, loss)``: backward, clip, step one network's optimizer and schedule; the gradient's norm."""
        return self.optimization.step

    def _optim_params(self) -> dict[str, Any]:
        """Optimizer sections of the networks that there are."""
        return sections_of(self.config, self.nets)

    def _epochs_of(self, name: str) -> int:
        """Epochs in which a network learns: so many does its learning-rate schedule have."""
        return self.global_config.train.num_epochs or 1  # null: built without data, to be looked at

    def _max_grad_norm(self, name: str) -> float | None:
        """Norm to which a network's gradients are scaled down; None: never."""
        return self.global_config.train.max_grad_norm

    # ---- training ------------------------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Batch) -> Batch:
        """Prepare a batch of :class:`~imitate.data.SequenceDataset` and pick what this algorithm learns from.

        Args:
            batch: raw values: ``obs`` (B, T, ...), ``actions`` (B, T, A), ...

        Returns:
            tensors on the device; observations float, images CHW, normalized as ``self.preprocess`` says.
        """
        ready = prepared_batch(batch, self.preprocess, self.encoding, self.device, self.execution)
        return checked_batch(self, self._select_batch(ready))

    def _select_batch(self, batch: Batch) -> Batch:
        """From a prepared batch, the steps and keys that the losses use."""
        raise NotImplementedError

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        """Loss of network ``policy`` and what to log. Changes nothing."""
        raise NotImplementedError

    def _validation_info(self, batch: Batch) -> Info:
        """Further measurements on held-out data, such as the error of the actions that the policy would take."""
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
            loss, info = checked_loss(self, self._loss(batch))
            if validate:
                info |= self._validation_info(batch)
        if not validate:
            info["Policy_Grad_Norms"] = self._gradient_step("policy", loss)
        return {name: torch.as_tensor(value).detach() for name, value in info.items()}

    def log_info(self, info: Mapping[str, Tensor]) -> dict[str, float]:
        """The scalars of :meth:`train_on_batch` (or their mean over an epoch) as floats, with learning rates."""
        log = {name: float(value) for name, value in info.items()}
        return log | self.optimization.learning_rates()

    def on_epoch_end(self, epoch: int) -> None:  # noqa: B027 - a hook, empty by default
        """Called by the trainer after each epoch, counted from 1."""

    def set_progress(self, progress: float) -> None:  # noqa: B027 - a hook, empty by default
        """Called before each collection in an environment: which part of the training is over, in [0, 1]."""

    def set_train(self) -> None:
        """Training mode: dropout, random crops and learned noise are on; compiles if ``train.compile`` says so."""
        set_mode(self.nets, training=True)
        if self.global_config.train.compile and not self._compiled:
            self._compiled = True
            compile_networks(self.nets.values(), self.device)

    def set_eval(self) -> None:
        """Evaluation mode."""
        set_mode(self.nets, training=False)

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """Everything an exact resume needs, as tensors, numbers, strings, lists and dicts.

        The tensors are the live ones, not copies.
        """
        state = {"nets": self.nets.state_dict(), **self.optimization.state_dict(), **self.counters}
        return state if self.ema is None else {**state, "ema": self.ema.state_dict()}

    def deserialize(self, model_dict: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """Load what :meth:`serialize` gave. Raises RuntimeError where names or shapes of weights differ."""
        self.nets.load_state_dict(model_dict["nets"])
        if self.ema is not None:
            self.ema.load_state_dict(model_dict["ema"])
        if load_optimizers:
            self.counters = {name: int(model_dict[name]) for name in self.counters}
            self.optimization.load_state_dict(model_dict)

    # ---- test time -----------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> PolicyState:
        """State of B policies that have seen nothing yet."""
        own = self._initial_policy_state(batch_size)
        return {"policy": own, **no_memory(self, batch_size)}

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
        return state if self.execution is None else without_plan(state, self.execution)

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
        kept: Observed = {}
        if len(state) > 1:  # observations are remembered beside the own part
            obs, state, kept = recalled(self, obs, state)
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
        """:meth:`act` with observations (B, ...), or (B, frame_stack, ...) if frames are stacked, and own state."""
        raise NotImplementedError

    def _initial_policy_state(self, batch_size: int) -> InnerState:
        """The part of the state that belongs to the subclass; ``chunk`` belongs to :attr:`execution`."""
        return no_plan(self.execution, batch_size, self.ac_dim, self.device)

    def get_action(self, obs_dict: Obs, goal_dict: Obs | None = None) -> Tensor:
        """:meth:`act` on the algorithm's own state: prepared observations (B, ...) to normalized actions (B, A)."""
        return self._own_state.act(self, obs_dict, goal_dict)

    def reset(self) -> None:
        """Forget the own state: a new episode begins."""
        self._own_state.reset()
