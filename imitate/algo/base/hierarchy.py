"""Base of hierarchical policies: a planner names a subgoal every few steps, an actor that sees it acts towards it.

Each part is an algorithm of its own, with its networks, optimizers, schedules and average of weights; this one holds
them together. A subclass says in :meth:`Hierarchy._create_parts` which parts there are beside the actor, in
:meth:`Hierarchy._plan` how a subgoal is chosen.

What a client carries from step to step is a state with leading dimension B: the subgoal, the steps since it was named,
the planner's frames and the actor's memory. A new subgoal is computed for those rows only whose time has come.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypeVar

from imitate.algo.base.algo import Algo, Batch, Info, PolicyStep
from imitate.algo.base.execution import take_rows
from imitate.algo.base.optimization import Optimization
from imitate.algo.base.policy_state import InnerState, PolicyState, remembered
from imitate.algo.base.sections import GLConfig, RNNConfig
from imitate.algo.bc import BCConfig
from imitate.config import AlgoSection, BaseConfig, DataNeeds, ObservationConfig, Section, Subgoals
from imitate.config import algorithms as registry
from imitate.config.observation import ROBOT_STATE, Observations
from imitate.errors import DatasetError
from imitate.functional.transfer import to_device

LATENT_KEY = "latent_subgoal"
"""The actor's goal where subgoals are not decoded."""


class PriorCorrectionConfig(Section):
    """How the actor's goals are drawn in training."""

    enabled: bool = Field(
        False, description="learn with the prior's sample nearest to the posterior's, as in acting"
    )
    num_samples: int = Field(100, ge=1, description="samples of the prior")


class LatentSubgoalConfig(Section):
    """Subgoals that are not decoded."""

    enabled: bool = Field(False, description="the actor sees the planner's latent as its goal")
    prior_correction: PriorCorrectionConfig = Field(PriorCorrectionConfig())


class HierarchyConfig(AlgoSection):
    """Base of the sections of hierarchical policies."""

    tree_defaults: ClassVar[Mapping[str, Any]] = {"train": {"seq_length": 10}, "observation": {}}

    mode: Literal["separate", "cascade"] = Field(
        "separate",
        description="the actor learns with the data's subgoals, or with those that the planner names",
    )
    actor_use_random_subgoals: bool = Field(
        False,
        description="the actor learns with subgoals 1 to planner.subgoal_horizon steps ahead, not with the last alone",
    )
    actor_sees_subgoal: bool = Field(
        True,
        description="false: the actor acts by itself, as in robomimic, whose actors never saw a subgoal",
    )
    subgoal_update_interval: int = Field(10, ge=1, description="steps for which a subgoal holds")
    latent_subgoal: LatentSubgoalConfig = Field(LatentSubgoalConfig())
    actor: BCConfig = Field(BCConfig(rnn=RNNConfig(enabled=True)))

    @property
    @abstractmethod
    def goal_planner(self) -> GLConfig:
        """Section of the part that predicts subgoals."""

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """The planner's subgoal, or all observations up to it; images as the actor, which sees no fewer steps."""
        keys = tuple(config.observation.modality_of("subgoal"))
        horizon = self.goal_planner.subgoal_horizon
        return replace(
            self.actor.data_needs(config),
            subgoals=Subgoals(keys, horizon, self.actor_use_random_subgoals),
        )

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Combinations that cannot be trained or cannot act."""
        problems = [text.replace("algo.", "algo.actor.") for text in self.actor.conflicts(config)]
        if not config.observation.modality_of("subgoal"):
            problems.append(
                "observation: the planner's modalities.subgoal lists nothing to predict: name at least one observation"
            )
        if config.observation["actor"].modality_of("goal"):
            problems.append(
                "observation.actor.modalities.goal: the actor's goal is the planner's subgoal: leave the list empty"
            )
        if config.observation["actor"].modality_of("subgoal"):
            problems.append(
                "observation.actor.modalities.subgoal: the actor predicts no subgoals: leave the list empty"
            )
        if self.latent_subgoal.enabled and not self.goal_planner.vae.enabled:
            problems.append(
                "algo.latent_subgoal.enabled: the planner has latents only with vae.enabled: set that to true"
            )
        return problems


PLANNER_OBSERVATIONS = ObservationConfig.model_validate(
    {"modalities": {"subgoal": {"low_dim": list(ROBOT_STATE)}}}
)
"""Default observations and subgoals of a planner."""


class SubgoalPlanner(Protocol):
    """Slot ``planner`` of a hierarchy: an algorithm that also predicts subgoals, such as ``gl``.

    Latents are asked for where ``latent_subgoal`` is enabled.
    """

    def with_subgoals(self, batch: Batch) -> Batch:
        """Add ``subgoals`` {key: (B, horizon, ...)} to a raw batch that lacks them."""

    def sample_subgoals(
        self, obs: Batch, goal: Batch | None, number: int, generator: torch.Generator | None
    ) -> Batch:
        """Subgoals {key: (B, N, ...)} that are possible."""

    @property
    def latent_size(self) -> int:
        """Z."""

    def sample_latents(
        self, obs: Batch, goal: Batch | None, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """Latents (B, N, Z) of the prior."""

    def latents_of(
        self, subgoals: Batch, obs: Batch, goal: Batch | None, prior_samples: int
    ) -> Tensor:
        """Latents (B, Z) that stand for given subgoals; of N samples of the prior the nearest, for N > 0."""


HierarchyT = TypeVar("HierarchyT", bound=HierarchyConfig, default=Any)
"""Type of the section of a hierarchical policy."""


class Hierarchy(Algo[HierarchyT]):
    """A planner and an actor.

    Attributes:
        parts: the algorithms, by name; in this order they learn. ``planner`` and ``actor`` are among them.
    """

    parts: dict[str, Algo]
    main_net = "actor"

    # ---- parts ---------------------------------------------------------------------------------------------------

    @property
    def planner(self) -> SubgoalPlanner:
        """The part that predicts subgoals."""
        return cast(SubgoalPlanner, self.parts["planner"])

    @property
    def actor(self) -> Algo:
        """The part that acts towards a subgoal."""
        return self.parts["actor"]

    @property
    def learners(self) -> tuple[Algo, ...]:
        """The parts."""
        return tuple(self.parts.values())

    @property
    def active_nets(self) -> nn.ModuleDict:
        """The learners of all parts."""
        return nn.ModuleDict({name: part.active_nets for name, part in self.parts.items()})

    @cached_property
    def optimization(self) -> Optimization:
        """Optimizers and schedules of the parts, as ``part/network``; the parts make the steps."""
        joint = Optimization(self.nets, {}, self.device)
        for name, part in self.parts.items():
            joint.optimizers |= {f"{name}/{net}": o for net, o in part.optimizers.items()}
            joint.schedulers |= {f"{name}/{net}": s for net, s in part.schedulers.items()}
        return joint

    @abstractmethod
    def _create_parts(self) -> dict[str, Algo]:
        """The parts beside the actor."""

    def _create_networks(self) -> None:
        self.parts = self._create_parts()
        self.parts["actor"] = self._create_actor()
        self.nets = nn.ModuleDict({name: part.nets for name, part in self.parts.items()})

    def _part(
        self,
        algo_name: str,
        algo_config: Section,
        obs_config: Observations,
        **more_shapes: tuple[int, ...],
    ) -> Algo:
        """A part: the algorithm of this name, with its sections of the configuration."""
        algo_class, kwargs = registry.find(algo_name).to_class(algo_config)
        part: Algo = algo_class(
            algo_config=algo_config,
            obs_config=obs_config,
            global_config=self.global_config,
            obs_key_shapes={**self.obs_key_shapes, **more_shapes},
            ac_dim=self.ac_dim,
            device=self.device,
            load_pretrained=self.encoding.load_pretrained,
            **kwargs,
        )
        return part

    def _create_actor(self) -> Algo:
        """The actor, its goal being what the planner names."""
        config, observed = self.config.actor, self.obs_config.actor
        goal: dict[str, list[str]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        if not self.config.actor_sees_subgoal:
            pass
        elif self.config.latent_subgoal.enabled:
            goal["low_dim"] = [LATENT_KEY]
            shapes[LATENT_KEY] = (self.planner.latent_size,)
        else:
            for key, modality in self.obs_config.modality_of("subgoal").items():
                goal.setdefault(modality, []).append(key)
        tree = observed.to_dict()
        tree["modalities"]["goal"] = goal
        wants = ObservationConfig.model_validate(tree)
        return self._part("bc", config, wants, **shapes)

    # ---- training ------------------------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Batch) -> Batch:
        """As in the base class; a batch that lacks ``subgoals`` may have them in its window of ``next_obs``."""
        return super().process_batch_for_training(self.planner.with_subgoals(batch))

    def _select_batch(self, batch: Batch) -> Batch:
        """Each part's selection of a batch; the actor's also has ``subgoals``, among them its goal."""
        selected = {}
        for name, part in self.parts.items():
            own: Batch = {
                group: {key: batch[group][key] for key in part.obs_shapes}
                for group in ("obs", "next_obs")
                if group in batch
            }
            if name != "actor" and part.goal_shapes:
                own["goal_obs"] = {key: batch["goal_obs"][key] for key in part.goal_shapes}
            selected[name] = part._select_batch({**batch, "goal_obs": None, **own})
        selected["actor"]["subgoals"] = batch["subgoals"]
        return selected

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """One update of each part; the actor's goals are those of the planner as it is after its own update."""
        infos = {}
        for name, part in self.parts.items():
            own = batch[name]
            if name == "actor":
                own = {**own, "goal_obs": self._goals_of_actor(batch)}
            infos[name] = part.train_on_batch(own, epoch, validate)
        return _joined(infos)

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        own = {**batch, "actor": {**batch["actor"], "goal_obs": self._goals_of_actor(batch)}}
        info = _joined({name: part._loss(own[name])[1] for name, part in self.parts.items()})
        return info["Loss"], info

    @torch.no_grad()
    def _goals_of_actor(self, batch: Batch) -> Batch:
        """{key: (B, ...)} what the actor is to act towards."""
        planned = batch["planner"]
        if self.config.mode == "cascade":
            return self._plan(planned["obs"], planned["goal_obs"])
        return self._goals_in_data(planned, self._subgoals_of_actor(batch))

    def _subgoals_of_actor(self, batch: Batch) -> Batch:
        """The data's subgoals: the planner's, or random ones on the way there."""
        if not self.config.actor_use_random_subgoals:
            return cast(Batch, batch["planner"]["subgoals"])
        every = batch["actor"]["subgoals"]
        first = next(iter(every.values()))
        if first.shape == batch["planner"]["subgoals"][next(iter(every))].shape:
            raise DatasetError(
                "algo.actor_use_random_subgoals wants all observations on the way to the subgoal, but the batches have "
                "the last alone: make the dataset with "
                "SequenceDataset(..., subgoals=config.algo.data_needs(config).subgoals)"
            )
        step = torch.randint(first.shape[1], (len(first),), device=first.device)
        rows = torch.arange(len(first), device=first.device)
        return {key: value[rows, step] for key, value in every.items()}

    def _goals_in_data(self, planned: Batch, subgoals: Batch) -> Batch:
        """The actor's observations of the data's subgoals."""
        return subgoals

    def on_epoch_end(self, epoch: int) -> None:
        """Tell the parts."""
        for part in self.parts.values():
            part.on_epoch_end(epoch)

    def set_train(self) -> None:
        """Training mode, of each part."""
        self.nets.train()
        for part in self.parts.values():
            part.set_train()

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """As in the base class; ``emas`` are the averages of the parts' weights, by part."""
        emas = {n: part.ema.state_dict() for n, part in self.parts.items() if part.ema is not None}
        return {**super().serialize(), "emas": emas}

    def deserialize(self, model_dict: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """Load what :meth:`serialize` gave."""
        super().deserialize(model_dict, load_optimizers)
        for name, part in self.parts.items():
            if part.ema is not None:
                part.ema.load_state_dict(model_dict["emas"][name])

    # ---- test time -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _plan(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None = None
    ) -> Batch:
        """{key: (B, ...)} the actor's goals, for what the planner sees."""

    def initial_state(self, batch_size: int) -> PolicyState:
        """State of B policies that have seen nothing yet."""
        own = {
            "planner": self.parts["planner"].initial_state(batch_size),
            "actor": self.actor.initial_state(batch_size),
            "subgoal": {
                key: torch.zeros(batch_size, *shape, device=self.device)
                for key, shape in self.actor.goal_shapes.items()
            },
            "step": torch.zeros(batch_size, dtype=torch.long, device=self.device),
        }
        return {"policy": own}

    def act(
        self,
        obs: dict[str, Tensor],
        state: PolicyState,
        goal: dict[str, Tensor] | None = None,
        *,
        explore: bool = False,
        generator: torch.Generator | None = None,
    ) -> PolicyStep:
        """One decision for each of B policies; extras have ``subgoal/<key>``, the present one, normalized."""
        own = state["policy"]
        seen, frames = remembered(
            {key: obs[key] for key in self.parts["planner"].obs_shapes},
            own["planner"],
            self.frame_stack,
        )
        subgoal = self._held(own, seen, goal, generator)
        step = self.actor.act(
            {key: obs[key] for key in self.actor.obs_shapes},
            own["actor"],
            subgoal,
            explore=explore,
            generator=generator,
        )
        next_state = {
            "planner": {**own["planner"], **frames},
            "actor": step.state,
            "subgoal": subgoal,
            "step": (own["step"] + 1) % self.config.subgoal_update_interval,
        }
        named = {f"subgoal/{key}": value for key, value in subgoal.items()}
        return PolicyStep(step.action, {"policy": next_state}, {**step.extras, **named})

    def cut_plan(self, state: PolicyState) -> PolicyState:
        """The state without the actor's planned actions and without the subgoal: the next step names a new one."""
        own = state["policy"]
        actor = self.actor.cut_plan(own["actor"])
        return {"policy": {**own, "actor": actor, "step": torch.zeros_like(own["step"])}}

    def _held(
        self,
        state: InnerState,
        obs: dict[str, Tensor],
        goal: dict[str, Tensor] | None,
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """The subgoals of this step: new ones where it is time.

        Of the caller's random numbers one is taken per step, whether or not anybody plans: so the rows that do leave
        what the actor draws for the others as it is.
        """
        if not state["subgoal"]:
            return {}
        seed = torch.randint(2**62, (), generator=generator, device=self.device)
        due = (state["step"] == 0).cpu()  # read once
        if not bool(due.any()):
            return cast(dict[str, Tensor], state["subgoal"])
        own = torch.Generator(self.device).manual_seed(int(seed))
        if bool(due.all()):
            return self._plan(obs, goal, own)
        rows = to_device(due.nonzero()[:, 0], self.device)
        chosen = take_rows({"obs": obs, "goal": goal}, rows)
        new = self._plan(chosen["obs"], chosen["goal"], own)
        return {key: old.index_copy(0, rows, new[key]) for key, old in state["subgoal"].items()}


def _joined(infos: Mapping[str, Info]) -> Info:
    """The parts' logged values under their names; ``Loss`` is the sum of their losses."""
    info = {
        f"{name.title()}/{key}": value for name, own in infos.items() for key, value in own.items()
    }
    losses = torch.stack([own["Loss"] for own in infos.values()])
    return {**info, "Loss": losses.sum()}
