"""Estimates of a training's duration: updates, samples of a trial, features, and the fastest settings."""

from types import SimpleNamespace as Words

import pytest
import torch

from imitate.train import forecast as module
from imitate.train.forecast import fastest, forecast, image_memory, image_seconds, smaller
from tests.tiny import tiny_demos, tiny_tree


@pytest.fixture
def tree(tmp_path):
    """A training with 6 demos of 10 steps, and 3 of 5 numbers in each."""
    data = tiny_demos(tmp_path / "a.hdf5", {"s": 3, "t": 2}, num_demos=6, length=10)

    def make(**train):
        words = {"num_threads": 1, "device": "cpu", "batch_size": 16, **train}
        experiment = {"epoch_every_n_steps": words.pop("updates", 10), "validate": False}
        return tiny_tree("bc", obs={"s": 3, "t": 2}, data=data, train=words, experiment=experiment)

    return make


@pytest.fixture
def measured(monkeypatch):
    seen = Words(parts=[], taken=[0.5, 0.1, 0.3], a_row=0.0)

    def answer(config, device):
        seen.parts.append(config.train)
        taken = seen.taken.pop(0) if isinstance(seen.taken[0], list) else seen.taken
        return taken, seen.a_row

    monkeypatch.setattr(module, "_measured", answer)
    return seen


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"num_epochs": 100}, "about 5 min 00 s on cpu (0.3 s per update, "),  # 1,000 updates
        ({"num_epochs": 100, "updates": None}, "about 1 min 30 s on cpu"),  # 60 // 16 in an epoch
        ({"num_epochs": 7, "updates": None, "batch_size": 61}, "about 2.1 s on cpu"),
    ],
)
def test_the_time_of_all_updates(tree, measured, train, words):
    said = forecast(tree(**train))
    assert said.startswith(words) and said.endswith(
        "measured on the first ones here; without rollouts)"
    )
    (part,) = measured.parts
    assert part.batch_size == train.get("batch_size", 16)
    assert part.data[0].demo_limit == 4


def test_features_of_frozen_encoders_are_computed_once(tree, measured):
    measured.a_row = 2.0
    said = forecast(tree(num_epochs=100))
    assert said.startswith("about 7 min 00 s on cpu")
    assert said.endswith(
        "; 2 min 00 s of it for the features of frozen encoders, which are computed once)"
    )


@pytest.mark.parametrize(("most", "limit"), [(400, 4), (150, 3), (149, 2), (50, 1), (49, None)])
def test_a_trial_has_few_demos(tree, measured, monkeypatch, most, limit):
    """A demo has 10 steps of 5 numbers."""
    monkeypatch.setattr(module, "MOST_BYTES", most)
    said = forecast(tree())
    if limit is None:
        assert said.startswith("not measured, because a single demo has more than")
        values, why = fastest(tree())
        assert values == {} and why.startswith("nothing, because a single demo has more than")
    else:
        assert measured.parts[0].data[0].demo_limit == limit


@pytest.mark.parametrize(
    ("memory", "part"), [(1e9, 16), (2e9, 8), (2.2e9, 7), (16e9, 1), (99e9, 1), (0.0, 16)]
)
def test_a_trial_has_as_many_samples_as_a_gigabyte_holds(tree, measured, monkeypatch, memory, part):
    monkeypatch.setattr(module, "image_memory", lambda tree, shapes: memory)
    said = forecast(tree())
    assert measured.parts[0].batch_size == part
    assert (f"measured on {part} of its 16 samples, to save memory" in said) == (part < 16)
    seconds = 0.3 * 16 / part
    assert f"({seconds:.2g} s per update" in said


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ([1.1, 1.0, 1.05], {"precision": "fp32", "num_threads": 1}),  # near enough
        ([1.11, 1.0, 1.05], {"precision": "fp32", "num_threads": 2}),
        ([2.3, 2.0, 2.1], {"precision": "fp32", "num_threads": 2}),
        ([1.5, 1.2, 1.0], {"precision": "fp32", "num_threads": 4}),
    ],
)
def test_the_simplest_of_the_fastest_settings(tree, measured, monkeypatch, times, chosen):
    monkeypatch.setattr(module, "precisions", lambda config, device: ("fp32",))
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 4)
    measured.taken = [[9.0, time] for time in times]
    values, why = fastest(tree())
    assert values == chosen
    assert [part.num_threads for part in measured.parts] == [1, 2, 4]
    threads = chosen["num_threads"]
    word = "thread" if threads == 1 else "threads"
    assert why.startswith(
        f"fp32 and {threads} {word}; an update takes {1e3 * times[0]:.3g} ms with"
    )


def test_on_a_gpu_only_the_precision_is_chosen(tree, measured, monkeypatch):
    monkeypatch.setattr(module, "precisions", lambda config, device: ("fp32", "bf16"))
    monkeypatch.setattr(module, "choose_device", lambda train: (torch.device("cuda"), None))
    measured.taken = [[2.0], [1.0]]
    values, why = fastest(tree(num_threads=None))
    assert values == {"precision": "bf16"}
    assert why == "bf16; an update takes 2e+03 ms with fp32, 1e+03 ms with bf16"


@pytest.mark.parametrize(
    ("steps", "updates"),
    [
        ([21.0, 1.0], [21.0]),  # the first was too slow for a second
        ([19.9, 1.0, 1.0], [1.0]),  # 20.9 s in all
        ([3.0, 4.0, 5.0, 6.0], [4.0, 5.0]),  # more than 8 s
        ([0.1] * 9, [0.1] * 5),
    ],
)
def test_updates_are_measured_for_some_seconds(tree, monkeypatch, steps, updates):
    now, left = [0.0], list(steps)
    made = Words(train=0, cached=[])

    def train_on_batch(batch, epoch):
        now[0] += left.pop(0)
        return {"Loss": torch.tensor(1.0)}

    algo = Words(set_train=lambda: None, train_on_batch=train_on_batch)
    algo.process_batch_for_training = lambda raw: raw
    monkeypatch.setattr(
        module, "build", lambda config, device: Words(config=config, algo=algo, train_set=[0] * 9)
    )
    monkeypatch.setattr(module, "make_loader", lambda *given: iter(range(99)))
    monkeypatch.setattr(module, "put_blank_features", lambda *given: made.cached.append(given[2]))
    monkeypatch.setattr(module, "feature_seconds", lambda *given: 0.5)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    seen = []
    monkeypatch.setattr(
        module.statistics, "median", lambda taken: seen.append([round(x, 6) for x in taken]) or 1.0
    )
    assert "frozen encoders" in forecast(tree(cache_features=True))
    assert seen == [updates] and made.cached == list(range(len(steps) - len(left)))
    left[:] = [0.1] * 9
    made.cached.clear()
    assert "frozen encoders" not in forecast(tree(cache_features=False)) and made.cached == []


def test_memory_and_time_of_images():
    """They grow with the batch; a batch of float32 images is held twice besides the activations."""
    core = {"core_class": "VisualCore", "core_kwargs": {"backbone_class": "ShallowConv"}}
    words = {
        "observation": {"encoder": {"rgb": core}},
        "train": {"batch_size": 6, "frame_stack": 2},
    }
    tree, shapes = tiny_tree("bc", obs={"s": 3, "cam": (3, 32, 40)}, **words), {"cam": (32, 40, 3)}
    memory, seconds = image_memory(tree, shapes), image_seconds(tree, shapes)
    assert image_memory(tree, {}) == image_seconds(tree, {}) == 0.0
    kept = memory / 12 - 2 * 4 * 32 * 40 * 3
    assert 0 < kept < 1e6 and kept == int(kept)
    operations = seconds * 4e10 * torch.get_num_threads() / (3 * 12)
    assert 1e5 < operations < 1e9 and operations == pytest.approx(round(operations))
    tree["train"] |= {"batch_size": 12, "seq_length": 9}
    assert image_memory(tree, shapes) == 2 * memory
    assert image_seconds(tree, shapes) == pytest.approx(2 * seconds)
    tree["algo"]["rnn"] = {"enabled": True}
    tree["train"]["frame_stack"] = 1
    assert image_memory(tree, shapes) == 9 * memory


@pytest.mark.parametrize(("shape", "half"), [((131, 640, 3), (65, 320)), ((127, 8), (64, 64))])
def test_smaller_images(shape, half):
    assert smaller(shape) == half
