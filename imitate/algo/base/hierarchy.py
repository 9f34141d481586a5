"""Base class of hierarchical policies: a planner chooses a subgoal every few steps, and an actor acts towards it.

Each part is an algorithm with its own networks, optimizers, schedules and weight average; this class combines them. A
subclass creates the parts beside the actor in :meth:`Hierarchy._create_parts` and chooses a subgoal in
:meth:`Hierarchy._plan`.

The state has leading dimension B and contains the subgoal, the number of steps since it was chosen, the planner's
frames and the actor's memory. A new subgoal is computed only for rows whose subgoal has expired.
"""

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
from imitate.config.auxiliary import joint_following
from imitate.config.data_needs import FollowingSteps
from imitate.config.observation import ROBOT_STATE, Observations
from imitate.errors import DatasetError
from imitate.functional.transfer import to_device

LATENT_KEY = "latent_subgoal"
"""Key of the actor's goal if the goal is the planner's latent instead of a decoded subgoal."""


class PriorCorrectionConfig(Section):
    """Choice of the latent that is the actor's goal in training: the posterior's, or the nearest prior sample."""

    enabled: bool = Field(
        False,
        description="in training, replace the posterior's latent by the nearest of several samples of the prior, "
        "because acting uses prior samples",
    )
    num_samples: int = Field(
        100, ge=1, description="number of prior samples, of which the nearest is used"
    )


class LatentSubgoalConfig(Section):
    """Latents of the planner as goals of the actor, in place of decoded subgoals."""

    enabled: bool = Field(
        False,
        description="the goal that the actor sees is the planner's latent instead of a decoded subgoal",
    )
    prior_correction: PriorCorrectionConfig = Field(PriorCorrectionConfig())


class HierarchyConfig(AlgoSection):
    """Base class of the sections of hierarchical policies."""

    tree_defaults: ClassVar[Mapping[str, Any]] = {"train": {"seq_length": 10}, "observation": {}}

    mode: Literal["separate", "cascade"] = Field(
        "separate",
        description="train the actor with the data's subgoals (separate), or with the planner's (cascade)",
    )
    actor_use_random_subgoals: bool = Field(
        False,
        description="in training, draw the actor's subgoals at random 1 to planner.subgoal_horizon steps ahead; "
        "false: always at that horizon",
    )
    actor_sees_subgoal: bool = Field(
        True,
        description="the actor sees the subgoal; false: it does not, as in robomimic",
    )
    subgoal_update_interval: int = Field(
        10, ge=1, description="number of steps for which a subgoal is kept"
    )
    latent_subgoal: LatentSubgoalConfig = Field(LatentSubgoalConfig())
    actor: BCConfig = Field(BCConfig(rnn=RNNConfig(enabled=True)))

    @property
    @abstractmethod
    def goal_planner(self) -> GLConfig:
        """Options of the planner, which predicts subgoals."""

    @property
    def parts(self) -> dict[str, AlgoSection]:
        """Sections of planner, actor and other parts by their dotted keys."""
        return {"algo.planner": self.goal_planner, "algo.actor": self.actor}

    def data_needs(self, config: BaseConfig) -> DataNeeds:
        """Request the planner's subgoals; for random subgoals of the actor, also all observations up to the subgoal.

        Images are read for the actor's steps, which include those that the planner sees.
        """
        keys = tuple(config.observation.modality_of("subgoal"))
        horizon = self.goal_planner.subgoal_horizon
        return replace(
            self.actor.data_needs(config),
            subgoals=Subgoals(keys, horizon, self.actor_use_random_subgoals),
        )

    def following(self, config: BaseConfig) -> FollowingSteps | None:
        """Return the following steps that the auxiliaries of planner, actor and other parts need together."""
        return joint_following([part.following(config) for part in self.parts.values()])

    def auxiliary_conflicts(self, config: BaseConfig) -> list[str]:
        """Return messages about ``auxiliary`` sections: the hierarchy itself cannot have any, only its parts."""
        problems = [
            text.replace("algo.", f"{path}.")
            for path, part in self.parts.items()
            for text in part.auxiliary_conflicts(config)
        ]
        if self.auxiliary:
            problems.append(
                f"algo.auxiliary: a hierarchy has networks only in its parts: move it to {' or '.join(self.parts)}"
            )
        return problems

    def conflicts(self, config: BaseConfig) -> list[str]:
        """Return a message for each combination of settings with which the policy cannot be trained or cannot act."""
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

    The methods for latents are called only if ``latent_subgoal`` is enabled.
    """

    def with_subgoals(self, batch: Batch) -> Batch:
        """Add ``subgoals`` {key: (B, horizon, ...)} to a raw batch that lacks them."""

    def sample_subgoals(
        self, obs: Batch, goal: Batch | None, number: int, generator: torch.Generator | None
    ) -> Batch:
        """Sample possible subgoals {key: (B, N, ...)}."""

    @property
    def latent_size(self) -> int:
        """Size Z of the latent."""

    def sample_latents(
        self, obs: Batch, goal: Batch | None, number: int, generator: torch.Generator | None
    ) -> Tensor:
        """Sample latents (B, N, Z) from the prior."""

    def latents_of(
        self, subgoals: Batch, obs: Batch, goal: Batch | None, prior_samples: int
    ) -> Tensor:
        """Return latents (B, Z) of subgoals: the posterior's, or the nearest of ``prior_samples`` prior samples."""


HierarchyT = TypeVar("HierarchyT", bound=HierarchyConfig, default=Any)
"""Type of the section of a hierarchical policy."""


class Hierarchy(Algo[HierarchyT]):
    """Hierarchical policy of a planner and an actor.

    Attributes:
        parts: the algorithms by name, in the order in which they are trained; ``planner`` and ``actor`` are among them.
    """

    parts: dict[str, Algo]
    main_net = "actor"

    # ---- parts ---------------------------------------------------------------------------------------------------

    @property
    def planner(self) -> SubgoalPlanner:
        """The planner, which predicts subgoals."""
        return cast(SubgoalPlanner, self.parts["planner"])

    @property
    def actor(self) -> Algo:
        """The actor, which acts towards a subgoal."""
        return self.parts["actor"]

    @property
    def learners(self) -> tuple[Algo, ...]:
        """The algorithms of planner, actor and further parts."""
        return tuple(self.parts.values())

    @property
    def active_nets(self) -> nn.ModuleDict:
        """The networks in use of each part, by its name."""
        return nn.ModuleDict({name: part.active_nets for name, part in self.parts.items()})

    @cached_property
    def optimization(self) -> Optimization:
        """Optimizers and schedules of the parts, named ``part/network``; each part makes its own gradient steps."""
        joint = Optimization(self.nets, {}, self.device)
        for name, part in self.parts.items():
            joint.optimizers |= {f"{name}/{net}": o for net, o in part.optimizers.items()}
            joint.schedulers |= {f"{name}/{net}": s for net, s in part.schedulers.items()}
        return joint

    @abstractmethod
    def _create_parts(self) -> dict[str, Algo]:
        """Create the planner and any further parts except the actor, by name."""

    def _create_networks(self) -> None:
        self.parts = self._create_parts()
        self.parts["actor"] = self._create_actor()
        self.nets = nn.ModuleDict({name: part.nets for name, part in self.parts.items()})
        self.acting_nets = tuple(self.parts)

    def _part(
        self,
        algo_name: str,
        algo_config: Section,
        obs_config: Observations,
        **more_shapes: tuple[int, ...],
    ) -> Algo:
        """Create one part: the algorithm ``algo_name`` with its own sections of the configuration."""
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
        """Create the actor, whose goal is the planner's subgoal."""
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
        """Prepare a batch; missing ``subgoals`` are taken from its window of ``next_obs``."""
        return super().process_batch_for_training(self.planner.with_subgoals(batch))

    def _select_batch(self, batch: Batch) -> Batch:
        """Select a batch for each part; the actor's batch also has ``subgoals``, among them the actor's goal."""
        selected = {}
        for name, part in self.parts.items():
            own: Batch = {
                group: {key: batch[group][key] for key in part.obs_shapes}
                for group in ("obs", "next_obs")
                if group in batch
            }
            if name != "actor" and part.goal_shapes:
                own["goal_obs"] = {key: batch["goal_obs"][key] for key in part.goal_shapes}
            selected[name] = part.selected({**batch, "goal_obs": None, **own})
        selected["actor"]["subgoals"] = batch["subgoals"]
        return selected

    def train_on_batch(self, batch: Batch, epoch: int, validate: bool = False) -> Info:
        """Update each part once, the actor last: in mode ``cascade`` its goals come from the updated planner."""
        infos = {}
        for name, part in self.parts.items():
            own = batch[name]
            if name == "actor":
                own = {**own, "goal_obs": self.goals_of_actor(batch)}
            infos[name] = part.train_on_batch(own, epoch, validate)
        return _joined(infos)

    def _loss(self, batch: Batch) -> tuple[Tensor, Info]:
        own = {**batch, "actor": {**batch["actor"], "goal_obs": self.goals_of_actor(batch)}}
        info = _joined({name: part._loss(own[name])[1] for name, part in self.parts.items()})
        return info["Loss"], info

    @torch.no_grad()
    def goals_of_actor(self, batch: Batch) -> Batch:
        """Return the actor's goals {key: (B, ...)}."""
        planned = batch["planner"]
        if self.config.mode == "cascade":
            return self._plan(planned["obs"], planned["goal_obs"])
        return self._goals_in_data(planned, self._subgoals_of_actor(batch))

    def _subgoals_of_actor(self, batch: Batch) -> Batch:
        """Return the data's subgoals for the actor: the planner's, or observations at random steps up to them."""
        if not self.config.actor_use_random_subgoals:
            return cast(Batch, batch["planner"]["subgoals"])
        every = batch["actor"]["subgoals"]
        first = next(iter(every.values()))
        if first.shape == batch["planner"]["subgoals"][next(iter(every))].shape:
            raise DatasetError(
                "algo.actor_use_random_subgoals needs all observations up to the subgoal, but the batches have only "
                "the last observation: make the dataset with SequenceDataset(..., "
                "subgoals=config.algo.data_needs(config).subgoals)"
            )
        step = torch.randint(first.shape[1], (len(first),), device=first.device)
        rows = torch.arange(len(first), device=first.device)
        return {key: value[rows, step] for key, value in every.items()}

    def _goals_in_data(self, planned: Batch, subgoals: Batch) -> Batch:
        """Convert subgoals of the data to the actor's goals; a subclass may encode them as latents."""
        return subgoals

    def on_epoch_end(self, epoch: int) -> None:
        """Call ``on_epoch_end`` of planner, actor and further parts."""
        for part in self.parts.values():
            part.on_epoch_end(epoch)

    def set_progress(self, progress: float) -> None:
        """Put the current values of schedules into the sections of the hierarchy and of its parts."""
        super().set_progress(progress)
        for part in self.parts.values():
            part.set_progress(progress)

    def set_train(self) -> None:
        """Switch each part to training mode."""
        self.nets.train()
        for part in self.parts.values():
            part.set_train()

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def serialize(self) -> dict[str, Any]:
        """Return everything that an exact resume needs; ``emas`` are the weight averages by part."""
        emas = {n: part.ema.state_dict() for n, part in self.parts.items() if part.ema is not None}
        return {**super().serialize(), "emas": emas}

    def deserialize(self, model_dict: Mapping[str, Any], load_optimizers: bool = True) -> None:
        """Load the result of :meth:`serialize`."""
        super().deserialize(model_dict, load_optimizers)
        self.set_progress(self.schedules.progress)
        for name, part in self.parts.items():
            if part.ema is not None:
                part.ema.load_state_dict(model_dict["emas"][name])

    # ---- test time -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _plan(
        self, obs: Batch, goal: Batch | None, generator: torch.Generator | None = None
    ) -> Batch:
        """Return the actor's goals {key: (B, ...)} for the planner's observations."""

    def initial_state(self, batch_size: int) -> PolicyState:
        """Return the states of B policies at the start of an episode."""
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
        """Return the next actions of B policies, and plan new subgoals where they are due.

        Extras contain ``subgoal/<key>``, the current normalized subgoal.
        """
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
        """Remove planned actions and the subgoal from a state, so that the next step chooses a new subgoal."""
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
        """Return the current subgoals; plan new subgoals in rows whose subgoal has expired.

        One of the caller's random numbers is used per step, even if no row plans, so that planning in some rows does
        not change the actor's random numbers in other rows.
        """
        if not state["subgoal"]:
            return {}
        seed = torch.randint(2**62, (), generator=generator, device=self.device)
        due = (state["step"] == 0).cpu()  # copied to the CPU once, for all following checks
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
    """Merge the logged values of the parts, prefixed by part name; ``Loss`` is the sum of the parts' losses."""
    info = {
        f"{name.title()}/{key}": value for name, own in infos.items() for key, value in own.items()
    }
    losses = torch.stack([own["Loss"] for own in infos.values()])
    return {**info, "Loss": losses.sum()}
