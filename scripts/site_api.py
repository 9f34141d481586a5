"""Pages of the Python API, which the site's build makes from signatures and docstrings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imitate

INDEX = """\
# Python API

Generated from signatures and docstrings. Names that the package itself exports:

| import | page |
|---|---|
| `from imitate import Algo, algo_factory, register_algo_factory_func` | [algorithms](algo.md) |
| `from imitate import SequenceDataset` | [data](data.md) |
| `from imitate import load_config` | [configuration](../index.md#configuration-files) |
| `from imitate import policy_from_checkpoint, RolloutPolicy` | [policies and checkpoints](policy.md) |
| `from imitate.data import DatasetWriter, DatasetFile, ...` | [data](data.md) |
| `from imitate.train.trainer import train` | [training and evaluation](training.md) |
| `from imitate.evaluate.evaluate import EvalSettings, evaluate` | [training and evaluation](training.md) |
| `from imitate.envs import Env, make_env, make_vector_env` | [environments](envs.md) |
| `from imitate.deploy import Robot, ControlLoop, PolicyServer, ...` | [robots](deploy.md) |
| `from imitate.crew import Crew, open_backend, ...` | [workers](workers.md) |
| `imitate.train.online` | [online RL](online.md) |
| `imitate.functional` | [formulas](functional.md) |
| `imitate.errors` | [errors](errors.md) |

Names that begin with an underscore, and modules that are not listed here, may change without a line in the
[changes](../../changes.md).
"""
PAGES: dict[str, tuple[str, str, dict[str, str]]] = {
    "data": (
        "Data",
        "Demonstration files and batches. `from imitate.data import ...`; guide: [data files](../../data.md).",
        {
            "Writing": """
                data.file.writer.DatasetWriter
                data.file.episode.Episode
                data.file.writer.finish_partial
            """,
            "Reading": """
                data.dataset_file.DatasetFile
                data.dataset_file.check_dataset
            """,
            "Batches": """
                data.batches.sequence_dataset.SequenceDataset
                data.batches.sampling.ShuffledBatches
                data.batches.store.DataSource
                data.batches.statistics.KeyStats
                data.batches.build.build_datasets
                data.batches.build.dataset_metadata
            """,
        },
    ),
    "config": (
        "Configuration",
        "The typed configuration. `from imitate.config import ...`; keys: [configuration keys](../config_keys.md).",
        {
            "": """
                config.loading.load_config
                config.config.Config
                config.base_config.BaseConfig
                config.section.Section
            """,
            "For algorithms of your own": """
                config.algorithms.AlgoSection
                config.data_needs.DataNeeds
                config.data_needs.Transitions
                config.data_needs.Returns
                config.data_needs.Sequences
                config.data_needs.Subgoals
                config.data_needs.TrainingSet
            """,
        },
    ),
    "algo": (
        "Algorithms",
        "The contract of an algorithm and its base classes. Guide: [your own algorithm](../../own_algorithm.md).",
        {
            "": """
                algo.base.factory.algo_factory
                algo.base.factory.register_algo_factory_func
                algo.base.algo.Algo
                algo.base.algo.PolicyStep
            """,
            "Base classes": """
                algo.base.actor_critic.ActorCritic
                algo.base.actor_critic.Update
                algo.base.on_policy.OnPolicy
                algo.base.chunk_policy.ChunkPolicy
                algo.base.hierarchy.Hierarchy
            """,
            "Parts": """
                algo.base.optimization.Optimization
                algo.slots.reward_source.RewardSource
            """,
        },
    ),
    "policy": (
        "Policies and checkpoints",
        "Policies that act, and their files. Format: [checkpoints](../index.md#checkpoints).",
        {
            "": """
                policy.loading.policy_from_checkpoint
                policy.rollout_policy.RolloutPolicy
            """,
            "Checkpoints": """
                policy.checkpoint.checkpoint_dict
                policy.checkpoint.save_checkpoint
                policy.checkpoint.load_checkpoint
                policy.checkpoint.algo_from_checkpoint
            """,
            "Calls of other toolkits": """
                interop.ding.as_policy
                interop.ding.create_policy
                interop.ding.DingPolicy
                interop.srl.Policy
                interop.srl.Trainer
            """,
        },
    ),
    "training": (
        "Training and evaluation",
        "What `imitate train` and `imitate eval` call.",
        {
            "": """
                train.trainer.train
                train.trainer.RunResult
            """,
            "Evaluation": """
                evaluate.evaluate.evaluate
                evaluate.settings.EvalSettings
                evaluate.evaluate.evaluate_all
                evaluate.job.EvalJob
                evaluate.result.EvalResult
            """,
            "Without a simulator": """
                train.fqe.evaluate_checkpoint
                train.fqe.FQEPlan
                train.fqe.FQEResult
                train.fqe.ranked
            """,
            "Checks": """
                checks.algo.check_algo
                checks.env.check_env
                checks.contracts.CheckFinding
            """,
        },
    ),
    "envs": (
        "Environments",
        "Simulators behind one protocol, scripted experts, collection. Guide: [environments](../../environments.md).",
        {
            "": """
                envs.env.Env
                envs.make.make_env
                envs.vector.make_vector_env
            """,
            "Experts": """
                envs.experts.expert.EpisodeExpert
                envs.experts.expert.ExpertKind
            """,
            "Demonstrations": """
                collect.collect.collect
                collect.collect.CollectionReport
                collect.playback.playback
                collect.render.render
            """,
        },
    ),
    "deploy": (
        "Robots",
        "Robots, control loops, servers. `from imitate.deploy import ...`; guide: [deployment](../../deployment.md).",
        {
            "": """
                deploy.robot.robot.Robot
                deploy.robot.robot.Observation
                deploy.robot.robot.RobotError
                deploy.robot.robot.Teleoperator
                deploy.robot.robot.Guidance
            """,
            "The control loop": """
                deploy.robot.loop.ControlLoop
                deploy.robot.loop.Safety
                deploy.robot.limits.ActionLimits
                deploy.robot.report.Report
            """,
            "Servers and bundles": """
                deploy.server.server.PolicyServer
                deploy.server.client.RemotePolicy
                deploy.bundle.policy.BundlePolicy
            """,
        },
    ),
    "online": (
        "Online RL",
        "Parts of the online loop. Guide: [online RL](../../online_rl.md).",
        {
            "": """
                train.online.steps.Step
                train.online.steps.Collected
                train.online.steps.EpisodeRecord
            """,
            "Collectors": """
                train.online.collector.Collector
                train.online.env_group.EnvGroup
            """,
            "Replay": """
                train.online.replay.Memory
                train.online.replay.ReplayBuffer
                train.online.replay.PrioritizedReplay
                train.online.goals.Hindsight
            """,
            "Learners": """
                train.online.learners.Learner
                train.online.learners.ReplayLearner
                train.online.learners.RolloutLearner
                train.online.learners.MixedBuffer
            """,
        },
    ),
    "workers": (
        "Workers",
        "Several processes, or a Ray cluster. `from imitate.crew import ...`; guide: [clusters](../../cluster.md).",
        {
            "": """
                crew.crew.Crew
                crew.crew.Done
                crew.backend.Limits
                crew.backend.Lost
                crew.backend.Reports
                crew.backend.CancelledError
                crew.shared.Shared
                crew.places.open_backend
            """,
        },
    ),
}
"""Pages: title, first line, and the names below ``imitate`` by section."""
FUNCTIONAL = Path(imitate.__file__).parent / "functional"
FORMULAS = """\
# Formulas

Pure functions of tensors and arrays: losses, schedules, rotations, statistics. Shapes are in each docstring.
"""
ERRORS = """\
# Errors

Every error that a user can mend derives from `UserError`; the commands print it as one line and exit with code 2.
"""
WHOLE_MODULE = {"heading_level": 2, "show_root_full_path": True}
WITHOUT_HEADING = {
    "show_root_heading": False,
    "show_root_toc_entry": False,
    "show_root_docstring": False,
}


def api_pages() -> dict[str, str]:
    """Return the text of each page by its path below ``docs/``."""
    pages = {name: _page(*parts) for name, parts in PAGES.items()}
    modules = sorted(path.stem for path in FUNCTIONAL.glob("[!_]*.py"))
    formulas = (_member(f"functional.{module}", WHOLE_MODULE) for module in modules)
    pages["functional"] = "\n".join([FORMULAS, *formulas])
    pages["errors"] = f"{ERRORS}\n{_member('errors', WITHOUT_HEADING)}"
    pages["index"] = INDEX
    return {f"reference/api/{name}.md": text for name, text in pages.items()}


def _page(title: str, first: str, sections: dict[str, str]) -> str:
    parts = [f"# {title}\n\n{first}\n"]
    for heading, names in sections.items():
        if heading:
            parts.append(f"## {heading}\n")
        parts += [_member(name, {}) for name in names.split()]
    return "\n".join(parts)


def _member(name: str, options: dict[str, Any]) -> str:
    lines = [f"      {key}: {str(value).lower()}" for key, value in options.items()]
    return "\n".join([f"::: imitate.{name}", *(["    options:", *lines] if lines else [])]) + "\n"
