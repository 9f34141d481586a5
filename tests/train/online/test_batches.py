"""Batches of online RL with a learner and a collector of a few lines: counts, ranks, stages, files of the buffer."""

import io
from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.config.online import CurriculumConfig
from imitate.errors import ConfigError, RobotError, RobotStoppedError, UserError
from imitate.policy.checkpoint import save_checkpoint
from imitate.system.ranks import Ranks
from imitate.system.run_folder import create_run_folder
from imitate.train.console import Console
from imitate.train.online import batches as module
from imitate.train.online.batches import OnlineBatches, RankFiles, batch_source, read_whole
from imitate.train.online.steps import Collected, EpisodeRecord, Step
from imitate.train.state import TrainState
from tests.refusals import refused


class Memory:
    """A replay buffer that notes what becomes of it."""

    def __init__(self):
        self.annealed, self.cut, self.loaded = [], 0, None

    def anneal(self, progress):
        self.annealed.append(progress)

    def cut_episodes(self):
        self.cut += 1

    def state_dict(self):
        return {"rows": 3}

    def load_state_dict(self, state):
        if "wrong" in state:
            raise UserError("of another training")
        self.loaded = state["rows"]


class Learner:
    updates = 5

    def __init__(self, setup):
        self.memory = Memory() if setup.replays else None
        self.taken, self.infos, self.state = [], [], None

    def demonstrations(self, wanted):
        return iter(range(wanted))

    def take(self, collected, counted):
        self.taken.append((collected, counted))

    def batches_due(self, most):
        yield from ("batch", most)

    def learned(self, info):
        self.infos.append(info)

    def state_dict(self):
        return {"updates": self.updates, "warmup_left": 0.0}

    def load_state_dict(self, state):
        self.state = dict(state)


class Collector:
    def __init__(self, setup):
        self.setup, self.asked, self.closed, self.state = setup, [], 0, None
        self.error, self.most, self.moves, self.stages = None, None, True, []

    def collect(self, count, *, random):
        self.asked.append((count, random, self.progress, self.version))
        if self.error is not None:
            raise self.error
        zeros, never = np.zeros(2, np.float32), np.zeros(2, bool)
        step = Step({"s": zeros[:, None]}, zeros[:, None], zeros, never, never, {})
        episode = EpisodeRecord(2.0, 1.5, 4, True)
        lanes = np.array(self.setup.lanes)
        return Collected([step] * count, lanes, [episode], messages=("slow",), lost_lanes=lanes[1:])

    def updates_allowed(self):
        return self.most

    def begin_stage(self, make, kwargs):
        self.stages.append((make, kwargs))
        return self.moves

    def metrics(self):
        return {"Collector/Own": 1.0}

    def state_dict(self):
        return {"begun": 7}

    def load_state_dict(self, state):
        self.state = state

    def close(self):
        self.closed += 1


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Builds sources of batches in the same run folder."""
    folder, clock = create_run_folder(tmp_path, "run"), [0.0]
    monkeypatch.setattr(module, "make_learner", Learner)
    monkeypatch.setattr(module, "make_collector", Collector)

    def tick():
        clock[0] += 0.5
        return clock[0]

    monkeypatch.setattr(module.time, "perf_counter", tick)

    def build(ranks=None, *, replays=True, lanes=(0, 1), agents=1, stages=(), **settings):
        words = {
            "on_bad_loss": "stop",
            "batch_size": 32,
            "num_epochs": 2,
            **settings.pop("train", {}),
        }
        online = {
            **{
                "warmup_steps": 5,
                "warmup_policy": "random",
                "collect_steps": 3,
                "save_buffer": True,
            },
            **{"pretrain_updates": 4, "curriculum": settings.pop("curriculum", None), **settings},
        }
        train = Words(online=Words(**online), **words)
        config = Words(train=train, experiment=Words(epoch_every_n_steps=10))
        setup = Words(config=config, stages=stages, replays=replays, lanes=lanes)
        setup.env, setup.stage = Words(num_agents=agents), None
        setup.at_stage = lambda meta: Words(
            **{**vars(setup), "stage": meta, "make": f"make {meta['n']}"}
        )
        stream = io.StringIO()
        made = OnlineBatches(setup, folder, Console(stream), ranks or Ranks())
        made.stream = stream
        return made

    build.folder = folder
    return build


def test_steps_allow_batches(make):
    made, state = make(), TrainState()
    assert list(made.batches(state)) == ["batch", None]
    assert (state.step, made.waited_s) == (6, 0.5)
    list(made.batches(state))
    list(made.batches(state))
    # three steps in each of two environments; random before step 5; progress of 20 steps; the version is the updates
    assert made.collector.asked == [(3, True, 0.0, 5), (3, False, 0.3, 5), (3, False, 0.6, 5)]
    assert made.learner.memory.annealed == [0.0, 0.3, 0.6]
    assert [counted for _, counted in made.learner.taken] == [6, 6, 6]
    state.step = 40
    made.collector.most = 2
    assert list(made.batches(state)) == ["batch", 2] and made.collector.asked[-1][2] == 1.0
    numbers = made.metrics()
    assert (numbers["Metrics/EnvironmentSteps"], numbers["Metrics/NumberOfEpisodes"]) == (24.0, 4.0)
    assert (numbers["Train/Updates"], numbers["Collector/Own"]) == (5.0, 1.0)
    assert made.counts() == {"updates": 5} and made.stream.getvalue() == "warning: slow\n" * 4
    made.learned("info")
    assert made.learner.infos == ["info"]
    bad = Words(step=7, value=float("nan"), reason="not finite")
    assert made.describe(bad, 2) == "environment step 7 (epoch 2): the loss is nan, not finite"
    made.close()
    assert made.collector.closed == 1


@pytest.mark.parametrize(("policy", "random"), [("policy", False), ("mine", True)])
def test_who_acts_at_first(make, policy, random):
    made = make(warmup_policy=policy)
    list(made.batches(TrainState()))
    assert made.collector.asked[0][1] is random


def test_demonstrations_come_first_and_only_once(make):
    made = make()
    assert list(made.pretraining(TrainState())) == [0, 1, 2, 3]
    assert list(made.pretraining(TrainState(step=1))) == []
    with refused("environment steps cannot be repeated", error=ConfigError):
        make(train={"on_bad_loss": "rollback"})


def test_a_robot_that_stops_is_to_be_checked(make):
    made = make()
    made.collector.error = RobotError("the arm stopped")
    with refused(
        "the arm stopped; check the robot, then: imitate train --resume", error=RobotStoppedError
    ):
        next(made.batches(TrainState()))


class TwoRanks(Ranks):
    """Two processes with the same numbers."""

    def any(self, *flags):
        return flags

    def total(self, number):
        return 2 * number

    def table(self, number):
        return np.array([number, number - 1])

    def gather(self, own):
        return [own, own]


def test_ranks_count_together_and_number_their_own_environments(make):
    made, state = make(TwoRanks(1, 2), lanes=(2, 3), agents=2), TrainState()
    made.collector.most = 4
    assert list(made.batches(state)) == ["batch", 3]
    ((collected, counted),) = made.learner.taken
    # the second environment of two agents is the first one of rank 1
    assert (collected.lanes.tolist(), collected.lost_lanes.tolist()) == ([0, 1], [1])
    assert (state.step, counted, made.stream.getvalue()) == (12, 12, "")
    assert made.metrics()["Metrics/NumberOfEpisodes"] == 2.0
    assert made.stream.getvalue() == "warning: slow\n" * 2
    single = make(TwoRanks(1, 2), lanes=(1, 3))
    list(single.batches(TrainState()))
    assert single.learner.taken[0][0].lanes.tolist() == [0, 1]


def test_the_two_newest_files_of_the_buffer_are_kept(make):
    made, state, folder = make(), TrainState(), make.folder.checkpoints
    for _ in range(3):
        list(made.batches(state))
        saved = made.state_dict()["online"]
    assert (saved["memory"], saved["world"], saved["curriculum"]) == ("memory_18.pt", 1, None)
    assert sorted(path.name for path in folder.glob("memory*")) == ["memory_12.pt", "memory_18.pt"]
    again = make()
    again.load_state_dict({"online": saved})
    memory = again.learner.memory
    assert (memory.loaded, memory.cut, again.learner.state["updates"]) == (3, 1, 5)
    assert again.collector.state == {"begun": 7} and again.counts() == {"updates": 5}
    list(again.batches(TrainState(step=18)))
    again.state_dict()
    assert sorted(path.name for path in folder.glob("memory*")) == ["memory_18.pt", "memory_24.pt"]
    assert make(save_buffer=False).state_dict()["online"]["memory"] is None
    assert make(replays=False).state_dict()["online"]["memory"] is None


@pytest.mark.parametrize(
    ("damage", "reason"), [(None, "is gone (FileNotFoundError"), (b"x", "is damaged (")]
)
def test_a_run_goes_on_without_its_buffer(make, damage, reason):
    made = make()
    list(made.batches(TrainState()))
    saved = made.state_dict()["online"]
    path = make.folder.checkpoints / saved["memory"]
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    again = make()
    again.load_state_dict({"online": saved})
    assert again.learner.memory.loaded is None and again.learner.state["updates"] == 5
    line = again.stream.getvalue()
    assert f"warning: {path} {reason}" in line and "an empty replay buffer" in line


def test_runs_of_another_size_or_buffer_are_refused(make):
    made = make()
    list(made.batches(TrainState()))
    saved = made.state_dict()["online"]
    with refused("was begun by 2 processes|but 1 resume it: start 2", error=ConfigError):
        make().load_state_dict({"online": {**saved, "world": 2}})
    save_checkpoint({"wrong": 1}, make.folder.checkpoints / saved["memory"])
    with refused("of another training", error=UserError):
        make().load_state_dict({"online": saved})


@pytest.mark.parametrize("keeps", ["keep", "clear"])
@pytest.mark.parametrize("moves", [True, False])
def test_the_next_stage(make, keeps, moves):
    section = CurriculumConfig.model_validate(
        {"stages": [{"until": {"min_steps": 1}}, {}], "buffer": keeps}
    )
    stages = ({"n": 1, "env_kwargs": {"far": 1}}, {"n": 2, "env_kwargs": {"far": 2}})
    made = make(stages=stages, curriculum=section)
    assert made.collector.setup.stage["n"] == 1
    before, learner = made.collector, made.learner
    before.moves = moves
    made.curriculum.stage = 1
    made.begin_stage()
    assert before.stages == [("make 2", {"far": 2})] and before.closed == (not moves)
    assert (made.collector is before) == moves and made.collector.state == {"begun": 7}
    assert (made.learner is learner) == (keeps == "keep")
    assert learner.memory.cut == (keeps == "keep")
    if keeps == "clear":
        assert made.learner.state == {"updates": 5, "warmup_left": 32.0}
    assert made.metrics()["Curriculum/Stage"] == 2.0
    saved = made.state_dict()["online"]
    again = make(stages=stages, curriculum=section)
    again.load_state_dict({"online": saved})
    assert again.curriculum.stage == 1 and again.collector.setup.stage["n"] == 2


# ---- files of ranks ------------------------------------------------------------------------------


def test_a_rank_keeps_its_two_newest_files(tmp_path):
    files, other = RankFiles(tmp_path / "new", 1), RankFiles(tmp_path / "new", 2)
    other.save({"a": 9}, 10)
    for step in (10, 20, 20, 30):
        files.save({"a": step}, step)
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["rank1_20.pt", "rank1_30.pt", "rank2_10.pt"]
    again = RankFiles(tmp_path / "new", 1)
    assert again.load(20) == {"a": 20}
    again.save({"a": 40}, 40)
    names = sorted(path.name for path in (tmp_path / "new").glob("rank1*"))
    assert names == ["rank1_20.pt", "rank1_40.pt"]
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "none.pt")
    with pytest.raises(OSError, match="not a regular file"):
        read_whole(tmp_path / "new")


def test_other_ranks_write_their_parts(make):
    made = make(TwoRanks(1, 2))
    list(made.batches(TrainState()))
    made.save_part()
    saved = {**made.state_dict()["online"]}
    (path,) = make.folder.checkpoints.glob("rank1_*.pt")
    again = make(TwoRanks(1, 2))
    again.load_state_dict({"online": saved})
    assert (again.learner.memory.loaded, again.collector.state) == (3, {"begun": 7})
    path.unlink()
    lost = make(TwoRanks(1, 2))
    lost.load_state_dict({"online": saved})
    assert lost.learner.memory.loaded is None and lost.collector.state is None
    assert "is gone" in lost.stream.getvalue()
    first = make(TwoRanks(0, 2))
    first.save_part()
    assert not list(make.folder.checkpoints.glob("rank0_*.pt"))


def test_the_source_of_a_setup(monkeypatch, make):
    monkeypatch.setattr(module, "OnlineSetup", Words)
    monkeypatch.setattr(module, "OnlineBatches", lambda *given: ("online", given))
    monkeypatch.setattr(module, "DatasetBatches", lambda *given: ("data", given))
    setup = Words()
    assert batch_source(setup, "folder", "console", "ranks") == (
        "online",
        (setup, "folder", "console", "ranks"),
    )
    assert batch_source("setup", "folder", "console", "ranks") == ("data", ("setup", "ranks"))
