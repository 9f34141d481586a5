"""Updates as CUDA graphs: the same weights as step by step, on a tape that stands in for a graph, and on CUDA."""

import random
import warnings
from copy import deepcopy

import pytest
import torch

from imitate.algo.base.recorded import WARM_UP, RecordedUpdate, tensors_in, with_tensors
from imitate.algo.bc import BC
from tests.device.simulated_graph import simulate
from tests.tiny import tiny_algo, tiny_batch

RATE = '"optimizer": {"learning_rate": {"initial": 0.0078125}}'
POLICIES = {
    "bc": ("bc",),
    "gaussian": ("bc", "algo.gaussian.enabled=true"),
    "gmm and rnn": ("bc", "algo.gmm.enabled=true", "algo.rnn.enabled=true", "train.seq_length=10"),
    "transformer": ("bc", "algo.transformer.enabled=true", "train.frame_stack=10"),
    "vae": ("bc", "algo.vae.enabled=true"),
    "act": ("act",),
    "diffusion": ("diffusion_policy",),
    "flow": ("flow_policy",),
    "dt": ("dt",),
    "auxiliaries": (
        "bc",
        f'algo.auxiliary.own={{"type": "inverse", {RATE}}}',
        f'algo.auxiliary.shared={{"type": "inverse", "encoder": "policy", {RATE}}}',
    ),
}
STEPS = WARM_UP + 5


def make(name, device="cpu", *more):
    """A small algorithm whose learning rate changes at each update, and is the same number in float32."""
    name, *overrides = POLICIES[name]
    rate = [
        f"algo.optim_params.policy.learning_rate.{x}"
        for x in ("warmup_steps=8", "initial=0.0078125")
    ]
    algo = tiny_algo(name, *overrides, *rate, *more, device=device)
    algo.set_train()
    return algo


def trained(algo, steps=STEPS, batches=None):
    """Weights, averages and what was logged after updates on batches, the fifth of which has another size."""
    torch.manual_seed(1)
    logged = []
    for step in range(steps):
        batch = tiny_batch(algo, 4 if step == 4 else 6, seed=step)
        ready = algo.process_batch_for_training(batch)
        # parts of one tensor are summed in another order than tensors of their own
        whole = with_tensors(ready, (x.contiguous() for _, x in tensors_in(ready)))
        info = algo.train_on_batch(whole, 1)
        logged.append(algo.log_info(info))
    state = algo.serialize()
    averages = [state["ema"]["module"]] if "ema" in state else []
    weights = {
        f"{n}/{k}": v for n, x in enumerate([state["nets"], *averages]) for k, v in x.items()
    }
    return weights, logged


def recorded(monkeypatch, algo):
    tapes = simulate(monkeypatch, algo)
    algo.recorded_update = RecordedUpdate(algo.recorded_update, algo.optimization, algo.device)
    return tapes


# torch's fused recurrences on the CPU keep numbers in memory that the tape does not see
@pytest.mark.parametrize("name", sorted({*POLICIES} - {"gmm and rnn"}))
def test_a_recorded_update_is_the_update(monkeypatch, name):
    weights, logged = trained(make(name))
    algo = make(name)
    assert algo.recordable
    tapes = recorded(monkeypatch, algo)
    again, logged_again = trained(algo)
    assert len(tapes) == 1 and algo.recorded_update.failure is None
    for step, (old, new) in enumerate(zip(logged, logged_again, strict=True)):
        assert new == old, step
    for key, value in weights.items():
        assert torch.equal(again[key], value), key


@pytest.mark.cuda
@pytest.mark.parametrize("name", POLICIES)
def test_on_cuda(name):
    weights, logged = trained(make(name, "cuda", "train.cuda_graph=false"))
    algo = make(name, "cuda")
    again, logged_again = trained(algo)
    assert len(algo.recorded_update.graphs) == 1 and algo.recorded_update.failure is None
    for old, new in zip(logged, logged_again, strict=True):
        assert new == pytest.approx(old, rel=1e-3, abs=1e-5)
    for key, value in weights.items():
        torch.testing.assert_close(again[key], value, atol=1e-5, rtol=1e-3, msg=key)


@pytest.mark.cuda
@pytest.mark.parametrize("seen", [True, False], ids=["seen before", "seen while recording"])
def test_on_cuda_what_waits_for_the_gpu_is_not_recorded(monkeypatch, seen):
    algo = make("bc", "cuda", "train.cuda_graph=false")
    plain = algo.recorded_update

    def waiting(algo, batch):
        info = plain(algo, batch)
        return {**info, "Noise": float(info["Loss"]) * torch.randn_like(info["Loss"])}

    algo.recorded_update = RecordedUpdate(waiting, algo.optimization, algo.device)
    if not seen:
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    with pytest.warns(UserWarning, match="train.cuda_graph=false"):
        trained(algo)
    assert algo.recorded_update.failure
    torch.randn(2, device="cuda")  # the generator works
    assert trained(algo, 2)


def test_graphs_end_with_the_state_of_the_optimizers(monkeypatch):
    algo = make("bc")
    recorded(monkeypatch, algo)
    trained(algo)
    algo.deserialize(make("bc").serialize())
    assert not isinstance(algo.recorded_update, RecordedUpdate)
    recorded(monkeypatch, algo)
    again, _ = trained(algo)
    for key, value in trained(make("bc"))[0].items():
        assert torch.equal(again[key], value), key


def test_random_numbers_of_the_processor_are_not_frozen(monkeypatch):
    algo = make("bc")
    plain = algo.recorded_update
    algo.recorded_update = lambda algo, batch: {
        **plain(algo, batch),
        "Drawn": torch.tensor(random.random()),
    }
    recorded(monkeypatch, algo)
    with pytest.warns(UserWarning, match="random numbers are drawn on the CPU"):
        trained(algo)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once
        trained(algo, 2)


@pytest.mark.parametrize(
    ("name", "override", "is_recorded"),
    [
        ("bc", "train.seed=1", True),
        ("bc", "train.cuda_graph=false", False),
        ("bc", "train.compile=true", False),
        ("bc", "train.gradient_accumulation=2", False),
        ("vae", "algo.vae.prior.use_categorical=true", False),
    ],
)
def test_which_updates_are_recorded(name, override, is_recorded):
    algo = tiny_algo(*POLICIES[name], override)
    assert not isinstance(algo.recorded_update, RecordedUpdate)
    del algo.recorded_update
    algo.device = torch.device("cuda")
    assert isinstance(algo.recorded_update, RecordedUpdate) == is_recorded


def test_a_subclass_with_methods_of_its_own_says_so_itself():
    class Named(BC):
        form = ("gaussian",)

    class Counting(BC):
        def on_epoch_end(self, epoch):
            self.epochs = epoch

    assert Named.recordable and not Counting.recordable


def test_a_copy_updates_itself():
    algo = make("bc")
    trained(algo, 1)
    other = deepcopy(algo)
    before = {key: value.clone() for key, value in algo.nets.state_dict().items()}
    trained(other, 2)
    for key, value in algo.nets.state_dict().items():
        assert torch.equal(value, before[key])
    assert not all(torch.equal(v, before[k]) for k, v in other.nets.state_dict().items())


def test_a_graph_owns_the_memory_in_which_cublas_works(monkeypatch):
    algo, events = make("bc"), []
    tapes = recorded(monkeypatch, algo)
    clear = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch._C, clear, lambda: events.append(len(tapes)), raising=False)
    trained(algo)
    assert events == [0] and len(tapes) == 1


@pytest.mark.cuda
def test_on_cuda_a_graph_works_on_after_another_policy_is_compiled():
    """torch.compile returns the memory in which cuBLAS works to the driver."""
    results = []
    for use_graph in ("true", "false"):
        algo = make("bc", "cuda", f"train.cuda_graph={use_graph}")
        trained(algo)
        if use_graph == "true":
            trained(make("bc", "cuda", "train.compile=true"))
            torch.cuda.empty_cache()
        results.append(trained(algo)[0])
    for key, value in results[1].items():
        torch.testing.assert_close(results[0][key], value, atol=1e-5, rtol=1e-3, msg=key)
