"""Settings that are ``auto``: decided by measured updates, kept, and without a trace in the training."""

import json

import pytest
import torch

from imitate.config import load_config
from imitate.errors import ConfigError
from imitate.ranks import Ranks
from imitate.seeding import rng_state, seed_everything
from imitate.train import measured
from imitate.train.measured import Candidate, Decision, update_seconds
from imitate.train.setup import build, resolve
from imitate.train.trainer import train
from tests.refusals import refused

from .conftest import config_dict, last

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, on a machine with bf16 and two cores, whatever this one has."""
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measured, "has_fast_bf16", lambda device: True)
    monkeypatch.setattr(measured.torch, "get_num_threads", lambda: 2)
    return tmp_path / "cache" / "measured"


def takes(monkeypatch, **milliseconds):
    """Pretend that updates take so long; return the list of measurements."""
    measurements = []

    def pretend(trial, batch, candidates, clock):
        measurements.append((candidates, clock.__name__))
        names = [f"{one.precision}_{one.threads or ''}".strip("_") for one in candidates]
        return {one: milliseconds[name] / 1e3 for one, name in zip(candidates, names, strict=True)}

    monkeypatch.setattr(measured, "update_seconds", pretend)
    return measurements


def built(demos, ranks=None, resumed=False, **train_keys):
    keys = {"precision": "auto", "num_threads": None, **train_keys}
    config = resolve(load_config(config_dict(demos, train=keys)), None, None)
    more = {} if ranks is None else {"ranks": ranks}
    return build(config, CPU, resumed=resumed, **more)


FOUND = [(20.0, "fp32"), (9.5, "fp32"), (9.0, "bf16"), (5.0, "bf16")]


@pytest.mark.parametrize(("bf16_ms", "chosen"), FOUND)
def test_bf16_is_taken_where_its_updates_are_clearly_faster(demos, monkeypatch, bf16_ms, chosen):
    takes(monkeypatch, fp32=10.0, bf16=bf16_ms)
    setup = built(demos)
    assert setup.config.train.precision == chosen
    assert setup.algo.global_config.train.precision == chosen
    words = f"an update takes fp32 10 ms, bf16 {bf16_ms:g} ms (cpu time)"
    assert setup.decisions == (f"train.precision: {chosen}, measured: {words}",)


def test_threads_and_precision_are_measured_together(demos, monkeypatch):
    measurements = takes(monkeypatch, fp32_1=10, fp32_2=6, bf16_1=8, bf16_2=5.7)
    setup = built(demos, num_threads="auto")
    # 5.7 is the least, but 6 is within a tenth of it and simpler.
    assert (setup.config.train.precision, setup.config.train.num_threads) == ("fp32", 2)
    ((candidates, clock),) = measurements
    assert candidates == [Candidate(name, n) for name in ("fp32", "bf16") for n in (1, 2)]
    assert clock == "perf_counter", "CPU time would count waiting threads"


def test_the_first_decision_holds_for_later_runs_of_any_seed(demos, monkeypatch, cache):
    takes(monkeypatch, fp32=10.0, bf16=5.0)
    assert built(demos).config.train.precision == "bf16"
    measurements = takes(monkeypatch, fp32=5.0, bf16=10.0)
    again = built(demos, seed=99)
    assert again.config.train.precision == "bf16"
    assert not measurements
    (file,) = cache.iterdir()
    words = f"as measured here before: fp32 10 ms, bf16 5 ms; to measure again, remove {file}"
    assert words in again.decisions[0]
    assert built(demos, batch_size=8).config.train.precision == "fp32", "another update"
    assert len(measurements) == 1
    file.unlink()
    assert built(demos).config.train.precision == "fp32"


def test_of_two_measurements_at_the_same_time_the_first_that_is_kept_counts(cache):
    first = Decision({"train.precision": "bf16"}, {"fp32": 2.0, "bf16": 1.0}, "cpu")
    second = Decision({"train.precision": "fp32"}, {"fp32": 1.0, "bf16": 1.0}, "cpu")
    path = cache / "setting.json"
    assert measured.keep(path, first).chosen == first.chosen
    assert measured.keep(path, second).chosen == first.chosen
    assert [each.name for each in cache.iterdir()] == ["setting.json"]


def test_a_file_of_the_cache_that_says_nothing_is_measured_again(demos, monkeypatch, cache):
    takes(monkeypatch, fp32=10.0, bf16=5.0)
    built(demos)
    (file,) = cache.iterdir()
    kept = file.read_text()
    for text in ("", "{}", "[1]", '{"chosen": {"other": 1}}'):
        file.write_text(text)
        assert "measured: an update takes" in built(demos).decisions[0], text
        assert json.loads(file.read_text()) == json.loads(kept), "and replaced"


def test_settings_with_the_same_candidates_are_kept_apart(demos, monkeypatch, cache):
    monkeypatch.setattr(measured, "has_fast_bf16", lambda device: False)
    measurements = takes(monkeypatch, fp32_1=10.0, fp32_2=5.0)
    for _ in range(2):
        both = built(demos, num_threads="auto")
        threads = built(demos, num_threads="auto", precision="fp32")
    assert set(both.provenance["measured"]["chosen"]) == {"train.precision", "train.num_threads"}
    assert set(threads.provenance["measured"]["chosen"]) == {"train.num_threads"}
    assert len(measurements) == len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_keeps_nothing(demos, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "file"))
    measurements = takes(monkeypatch, fp32=10.0, bf16=5.0)
    assert [built(demos).config.train.precision for _ in range(2)] == ["bf16", "bf16"]
    assert len(measurements) == 2


def test_all_ranks_take_the_decision_of_the_first(demos, monkeypatch):
    class Second(Ranks):
        def gather(self, value):
            first = {**value, "chosen": {"train.precision": "bf16"}}
            return json.loads(json.dumps([first, value]))

    takes(monkeypatch, fp32=5.0, bf16=10.0)
    setup = built(demos, ranks=Second(rank=1, world=2))
    assert setup.config.train.precision == "bf16"


def test_what_bf16_is_too_coarse_for_stays_in_fp32(demos, monkeypatch):
    measurements = takes(monkeypatch, fp32=10.0, bf16=1.0)
    tree = config_dict(demos, train={"precision": "auto"})
    tree |= {"algo_name": "td3_bc", "algo": {"actor": {"layer_dims": [8]}}}
    setup = build(resolve(load_config(tree), None, None), CPU)
    assert setup.config.train.precision == "fp32"
    assert not measurements
    assert setup.decisions == ("train.precision: fp32 (the only choice on this machine)",)


def test_measuring_leaves_weights_and_random_generators_as_a_fixed_precision_does(demos):
    states, generators = [], []
    for precision in ("auto", "fp32"):
        seed_everything(3)
        setup = built(demos, precision=precision)
        states.append(setup.algo.serialize())
        generators.append(rng_state())
    torch.testing.assert_close(*states, rtol=0, atol=0)
    torch.testing.assert_close(*(each.pop("torch") for each in generators), rtol=0, atol=0)
    assert generators[0] == generators[1]


def test_a_measured_training_is_bit_equal_to_one_with_the_chosen_precision(demos, tmp_path):
    algo = {"vae": {"enabled": True}}

    def trained(name, precision):
        keys = {"output_dir": str(tmp_path / name), "precision": precision}
        return train(config_dict(demos, train=keys, algo=algo), quiet=True)

    auto = trained("auto", "auto")
    chosen = json.loads((auto.run_dir / "config.json").read_text())["train"]["precision"]
    assert chosen in ("fp32", "bf16")
    assert "train.precision: " in (auto.run_dir / "log.txt").read_text()
    fixed = trained("fixed", chosen)
    one, two = last(auto), last(fixed)
    torch.testing.assert_close(one["model"], two["model"], rtol=0, atol=0)
    states = (ckpt["train_state"]["rng"]["torch"] for ckpt in (one, two))
    torch.testing.assert_close(*states)
    assert one["provenance"]["measured"]["chosen"] == {"train.precision": chosen}
    assert "measured" not in two["provenance"]


def test_a_resumed_run_keeps_what_was_measured(demos, tmp_path, monkeypatch):
    takes(monkeypatch, fp32_1=10.0, bf16_1=5.0)
    keys = {"output_dir": str(tmp_path / "runs"), "precision": "auto"}
    paused = train(config_dict(demos, train=keys), quiet=True, until_epoch=1)
    for file in (tmp_path / "cache" / "measured").iterdir():
        file.unlink()
    measurements = takes(monkeypatch, fp32_1=1.0, bf16_1=5.0)
    resumed = train(resume=paused.run_dir, quiet=True)
    assert resumed.status == "finished"
    assert not measurements
    ckpt = last(resumed)
    assert json.loads(ckpt["config"])["train"]["precision"] == "bf16"
    assert ckpt["provenance"]["measured"]["chosen"] == {"train.precision": "bf16"}


def test_a_run_that_an_earlier_version_left_on_auto_measures_nothing(demos, monkeypatch):
    measurements = takes(monkeypatch, fp32=10.0, bf16=5.0)
    setup = built(demos, resumed=True)
    assert setup.config.train.precision == "auto"
    assert not measurements


def test_online_training_has_no_updates_to_measure():
    tree = {"algo_name": "sac", "train": {"num_threads": "auto", "online": {"enabled": True}}}
    with refused("train.num_threads: 'auto' measures updates on demo", error=ConfigError):
        resolve(load_config(tree), None, None)


def test_slow_candidates_are_dropped_and_turns_alternate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(measured.time, "perf_counter", lambda: now[0])
    seen = []
    costs = {"fp32": 0.004, "bf16": 0.002}

    class Trial:
        device = CPU
        learners = ()
        global_config = load_config({"algo_name": "bc"})
        autocast = None

        def set_train(self):
            pass

        def train_on_batch(self, batch, epoch):
            with self.autocast():
                name = "bf16" if torch.is_autocast_enabled("cpu") else "fp32"
            seen.append((name, torch.get_num_threads()))
            now[0] += costs[name]

    both = [Candidate("fp32", None), Candidate("bf16", None)]
    found = update_seconds(Trial(), {}, both, lambda: now[0])
    assert found == pytest.approx(dict(zip(both, (0.004, 0.002), strict=True)))
    names = [name for name, _ in seen]
    # The first round has one update of each, then turns last ten milliseconds or so.
    assert names[:9] == ["fp32", "bf16", "fp32", "fp32", "bf16", "bf16", "bf16", "bf16", "bf16"]
    seen.clear()
    costs["bf16"] = 0.02
    found = update_seconds(Trial(), {}, both, lambda: now[0])
    assert [name for name, _ in seen].count("bf16") == 1
    assert found[both[1]] == pytest.approx(0.02)
