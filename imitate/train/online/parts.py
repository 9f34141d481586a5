"""Construction of learner, replay buffer and collector of online RL from a setup."""

from typing import Any, cast

import numpy as np

from imitate.algo.base.actor_critic import ActorCritic
from imitate.algo.base.on_policy import OnPolicy
from imitate.algo.slots.reward_weights import sources_of
from imitate.config.data_needs import Transitions
from imitate.config.online import OnlineConfig
from imitate.config.schedule import schedule_of
from imitate.crew.places import open_backend
from imitate.data.batches.build import training_sources
from imitate.data.batches.rewards import RewardTransform
from imitate.data.shards.data_files import data_files
from imitate.errors import ConfigError, MissingPackageError
from imitate.system.extras import missing
from imitate.system.processes import LOCAL
from imitate.train.online.collector import Collector
from imitate.train.online.demonstrations import demonstrations_of, load_demonstrations
from imitate.train.online.goals import goals_alike, make_hindsight
from imitate.train.online.learners import (
    Corrected,
    Learner,
    MixedBuffer,
    ReplayLearner,
    RolloutLearner,
)
from imitate.train.online.normalization import ObsNormalizer, RewardScaler, fixed_rewards
from imitate.train.online.replay import (
    PrioritizedReplay,
    PrioritizedSequences,
    ReplayBuffer,
    SampleSource,
    SequenceReplay,
)
from imitate.train.online.setup import OnlineSetup
from imitate.train.online.workers import Blueprint, ProcessCollector


def make_learner(setup: OnlineSetup) -> Learner:
    """Build the learner of the algorithm."""
    config, algo = setup.config, setup.algo
    train, online, ranks = config.train, config.train.online, algo.ranks
    batch_size = ranks.share_of(train.batch_size, "train.batch_size")
    num_lanes = ranks.share_of(online.num_envs, "train.online.num_envs") * setup.env.num_agents
    normalizer = None
    # Networks that begin with a checkpoint's weights keep its normalization.
    if train.obs_normalization == "mean_std" and config.experiment.ckpt_path is None:
        left_out = {*setup.env.image_keys, config.observation.mask_key()}
        vectors = {k: v for k, v in setup.env.obs_shapes.items() if k not in left_out}
        is_running = online.obs_statistics == "running"
        normalizer = ObsNormalizer(vectors, goals_alike(config), is_running=is_running, ranks=ranks)
    if algo.experience == "rollout":
        reward = train.reward
        running = config.algo["discount"] if reward.normalization == "running" else None
        return RolloutLearner(
            cast(OnPolicy, algo),
            rollout_steps=online.collect_steps,
            batch_size=batch_size,
            reward_scaler=RewardScaler(
                RewardTransform(reward.scale, reward.shift, clip=reward.clip),
                num_lanes,
                running,
                ranks,
            ),
            obs_normalizer=normalizer,
            demos=expert_steps(setup) if cast(OnPolicy, algo).expert_passes else None,
        )
    memory = make_memory(setup)
    source: SampleSource = memory
    demos = None
    if train.data and (online.demo_ratio > 0 or online.pretrain_updates > 0):
        demos = demonstrations_of(config, memory, setup.env.action_dim, ranks)
        corrected = Corrected(demos, memory)
        source = MixedBuffer([(memory, 1.0 - online.demo_ratio), (corrected, online.demo_ratio)])
        if normalizer is not None:
            normalizer.add_all(
                {key: np.asarray(x) for key, x in episode.obs.items()}
                for episode in demos.episodes()
            )
            normalizer.apply(algo.preprocess)
            normalizer = None
    return ReplayLearner(
        algo,
        memory,
        source,
        demos=demos,
        batch_size=batch_size,
        update_ratio=online.update_ratio,
        warmup_steps=online.warmup_steps,
        obs_normalizer=normalizer,
    )


def expert_steps(setup: OnlineSetup) -> ReplayBuffer:
    """Return the demonstrations with which a policy's steps are compared.

    Raises:
        ConfigError: there are no demonstrations.
    """
    config, env = setup.config, setup.env
    if not config.train.data:
        raise ConfigError(
            f"algo_name: {config.algo_name} learns from demonstrations: name them in train.data or by --dataset"
        )
    with data_files(config) as files:
        return load_demonstrations(
            training_sources(config, files),
            env.obs_shapes,
            env.action_dim,
            files,
            action_keys=config.train.action_keys,
            images=env.image_keys,
            transitions=Transitions(config.algo["discount"]),
            reward=RewardTransform(),
            reward_free=True,
            seed=setup.algo.ranks.seed(config.train.seed + 1),
            ranks=setup.algo.ranks,
        )


def make_memory(setup: OnlineSetup) -> ReplayBuffer:
    """Build the replay buffer or rollout buffer of the algorithm.

    Raises:
        ConfigError: the algorithm does not learn from transitions.
    """
    config = setup.config
    needs = config.algo.data_needs(config)
    if needs.transitions is None:
        raise ConfigError(
            f"algo_name: '{config.algo_name}' is offline-only; for online training choose an RL algorithm (sac, td3, "
            "ppo, ...)"
        )
    online, ranks = config.train.online, setup.algo.ranks
    num_envs = ranks.share_of(online.num_envs, "train.online.num_envs")
    capacity = max(1, online.buffer_size // ranks.world)
    shape = (setup.env.stored_shapes, setup.env.action_dim, capacity)
    settings: dict[str, Any] = {
        "num_envs": num_envs * setup.env.num_agents,
        "images": setup.env.image_keys,
        "transitions": needs.transitions,
        "returns": needs.returns,
        "frame_stack": config.train.frame_stack,
        "reward": fixed_rewards(config),
        "seed": ranks.seed(config.train.seed),
        "following": config.algo.following(config),
    }
    if config.train.online.hindsight.enabled:
        settings["hindsight"] = make_hindsight(config, setup.make(), setup.env.stored_shapes)
    states = setup.algo.state_shapes
    in_sequences = needs.sequences is not None and states is not None
    if needs.sequences is not None and states is not None:
        settings["state_shapes"] = states
        settings["seq_length"] = needs.sequences.length
        settings["burn_in"] = needs.sequences.burn_in
    prioritized = config.train.online.prioritized
    if not prioritized.enabled:
        return (SequenceReplay if in_sequences else ReplayBuffer)(*shape, **settings)
    if not setup.algo.gives_errors:
        raise ConfigError(
            f"train.online.prioritized.enabled: {config.algo_name} has no critics whose TD "
            "errors could be priorities: set it to false"
        )
    cast(ActorCritic, setup.algo).keeps_errors = True
    kind = PrioritizedSequences if in_sequences else PrioritizedReplay
    alpha, beta = schedule_of(prioritized, "alpha"), schedule_of(prioritized, "beta")
    return kind(*shape, alpha=alpha, beta=beta, ranks=ranks, **settings)


def make_collector(setup: OnlineSetup) -> Collector:
    """Build the collector, in this process or with ``num_workers`` workers on the machines of ``cluster.on``.

    Raises:
        ConfigError: the environments cannot be divided among the workers, or weights would be too old for the
            algorithm.
        MissingPackageError: central acting without its packages.
    """
    online = setup.config.train.online
    _check_workers(setup)
    blueprints = make_blueprints(setup)
    if not online.num_workers:
        return blueprints[0].collector(setup.algo)
    cluster = setup.config.cluster
    place = open_backend(
        cluster.on,
        cpus=cluster.cpus_per_worker,
        gpus=cluster.gpus_per_worker,
        start_timeout_s=cluster.start_timeout_s,
        spread=cluster.spread,
        name="imitate-collector",
    )
    if online.acting == "central":
        try:
            from imitate.train.online.central.collector import CentralCollector
        except ImportError as error:  # msgpack is missing if an earlier version was installed
            words = f"train.online.acting: 'central': {missing('deploy', error)}"
            raise MissingPackageError(words) from error
        return CentralCollector(
            blueprints,
            setup.algo,
            policy_workers=min(online.policy_workers, len(blueprints)),
            ring=online.ring,
            num_agents=setup.env.num_agents,
            step_timeout_s=online.step_timeout_s,
            max_staleness=online.max_staleness,
            push_every_s=online.push_every_s,
            place=place,
        )
    return ProcessCollector(
        blueprints,
        setup.algo,
        step_timeout_s=online.step_timeout_s,
        max_staleness=online.max_staleness,
        push_every_s=online.push_every_s,
        place=place,
    )


def make_blueprints(setup: OnlineSetup) -> list[Blueprint]:
    """Divide the environments among the workers; without workers, return one blueprint with all of them.

    With several ranks, rank r has the environments r, r + world, r + 2 world ..., and its part of the workers.

    Raises:
        ConfigError: the ranks cannot share environments or workers equally.
    """
    config, env, algo = setup.config, setup.env, setup.algo
    online, ranks = config.train.online, algo.ranks
    ranks.share_of(online.num_envs, "train.online.num_envs")
    num_workers = ranks.share_of(online.num_workers, "train.online.num_workers")
    group = {
        "seed": config.train.seed,
        "horizon": online.horizon or config.experiment.rollout.horizon,
        "discount": config.algo.get("discount", 1.0),
        "end_at_success": online.end_at_success,
        "signals": sources_of(config.algo),
    }
    lanes = np.arange(setup.num_lanes).reshape(online.num_envs, -1)
    parts = np.array_split(lanes[ranks.rank :: ranks.world], max(1, num_workers))
    return [
        Blueprint(
            setup.make,
            part.reshape(-1),
            group,
            (config.algo_name, config.to_json(), algo.obs_key_shapes, algo.ac_dim),
            env.low,
            env.high,
            env.num_choices,
            config.train.seed + 1 + ranks.rank + ranks.world * number,
            _warmup(setup),
        )
        for number, part in enumerate(parts)
    ]


def _warmup(setup: OnlineSetup) -> tuple[str, str, dict[str, tuple[int, ...]]] | None:
    """Return the arguments of ``WarmUp`` (name, environment, observation shapes), or None if no program acts."""
    name = setup.config.train.online.warmup_policy
    if name in ("random", "policy"):
        return None
    if setup.config.train.online.acting == "central":
        raise ConfigError(
            f"train.online.warmup_policy: '{name}' acts beside the environments, but train.online.acting is 'central': "
            "set it to 'collector'"
        )
    return name, str(setup.env_metas[0].get("env_name")), dict(setup.env.obs_shapes)


def _check_workers(setup: OnlineSetup) -> None:
    """Refuse impossible numbers of workers and maximum ages of weights.

    Raises:
        ConfigError: the settings do not fit each other; the message names key, value and remedy.
    """
    online = setup.config.train.online
    rollouts = cast(OnPolicy, setup.algo) if setup.algo.experience == "rollout" else None
    takes_old = rollouts is None or rollouts.takes_old
    if online.max_staleness is not None and not (takes_old and online.num_workers):
        raise ConfigError(
            "train.online.max_staleness: needs num_workers of 1 or more and an algorithm "
            "with a replay buffer, or a2c: set it to null"
        )
    if online.max_staleness == 0:
        raise ConfigError(
            "train.online.max_staleness: 0 allows no update, since workers always act while others learn: set it to 1 "
            "or more, or to null, so that learning and collecting alternate"
        )
    if rollouts is not None and online.max_staleness is not None:
        most = rollouts.config.rollout_epochs * max(
            online.num_workers,
            round(setup.num_lanes * online.collect_steps / setup.config.train.batch_size),
        )
        if online.max_staleness < most:
            raise ConfigError(
                f"train.online.max_staleness: {online.max_staleness}, but rollouts of all workers give {most} updates: "
                f"set it to {most} or more"
            )
    if online.push_every_s and online.max_staleness is None:
        raise ConfigError(
            f"train.online.push_every_s: {online.push_every_s:g}, but max_staleness is null, "
            "so steps are collected with the newest weights: set max_staleness, or "
            "push_every_s to 0"
        )
    if online.num_workers > online.num_envs:
        raise ConfigError(
            f"train.online.num_workers: {online.num_workers} processes for {online.num_envs} environments: raise "
            "train.online.num_envs"
        )
    on = setup.config.cluster.on
    if on != LOCAL and not online.num_workers:
        raise ConfigError(
            f"cluster.on: '{on}', but train.online.num_workers is 0, so the training process itself collects: set "
            "train.online.num_workers and num_envs, or omit --on"
        )
    _check_acting(online)


def _check_acting(online: OnlineConfig) -> None:
    """Refuse policy workers and rings that no environment worker would use.

    Raises:
        ConfigError: the settings do not fit each other; the message names key, value and remedy.
    """
    if online.acting == "collector":
        for key, value in (("policy_workers", online.policy_workers), ("ring", online.ring)):
            if value != 1:
                raise ConfigError(
                    f"train.online.{key}: {value} needs train.online.acting 'central', got 'collector'"
                )
        return
    if not online.num_workers:
        raise ConfigError(
            "train.online.acting: 'central' needs environment workers: set train.online.num_workers to 1 or more"
        )
    if online.policy_workers > online.num_workers:
        raise ConfigError(
            f"train.online.policy_workers: {online.policy_workers} for {online.num_workers} "
            f"environment workers: at most {online.num_workers} can be used"
        )
    if online.num_workers * online.ring > online.num_envs:
        raise ConfigError(
            f"train.online.ring: {online.num_workers} workers with {online.ring} groups each need "
            f"{online.num_workers * online.ring} environments, got train.online.num_envs {online.num_envs}"
        )
