"""Algorithms of other people: what the contract takes, and one line where something is missing."""

import pytest
import torch
from torch import nn

from imitate import Algo, algo_factory, load_config, register_algo_factory_func
from imitate.algo.base.algo import PolicyStep
from imitate.algo.base.factory import check_algorithm
from imitate.algo.bc import BC, BCConfig
from imitate.config import AlgoSection, algorithms
from imitate.config.algorithms import find
from imitate.errors import ConfigError
from imitate.train.metrics import EpochMeans

names = iter(f"own_{number}" for number in range(1000))


@pytest.fixture(autouse=True)
def _registry_as_before():
    """The names registered here are gone for other tests."""
    yield
    for name in algorithms.available():
        if name.startswith("own_"):
            algorithms.unregister(name)


BATCH = {"obs": {"s": torch.ones(4, 1, 2)}, "actions": torch.zeros(4, 1, 1), "goal_obs": None}


def tree_of(algo_class, section=None, algo=None, **experiment):
    name = next(names)
    register_algo_factory_func(name, section=section)(lambda _: (algo_class, {}))
    return {
        "algo_name": name,
        "experiment": {"epoch_every_n_steps": 2, **experiment},
        "algo": algo or {},
        "observation": {"modalities": {"obs": {"low_dim": ["s"]}}},
    }


def build(algo_class, section=None, algo=None, **experiment):
    config = load_config(tree_of(algo_class, section, algo, **experiment))
    return algo_factory(config.algo_name, config, {"s": (2,)}, 1)


class Whole(Algo):
    """The four hooks, without a section."""

    def _create_networks(self):
        self.nets = nn.ModuleDict({"policy": nn.Linear(2, self.ac_dim)})

    def _select_batch(self, batch):
        return {"obs": batch["obs"]["s"][:, 0], "actions": batch["actions"][:, 0]}

    def _loss(self, batch):
        loss = (self.nets["policy"](batch["obs"]) - batch["actions"]).square().mean()
        return loss, {"Loss": loss, "Half": 0.5}

    def _act(self, obs, state, goal, *, explore, generator):
        return PolicyStep(self.nets["policy"](obs["s"]), state, {})


def test_without_a_section_keys_are_read_and_optimizers_have_defaults():
    class Wide(Whole):
        def _create_networks(self):
            self.width = self.algo_config.width
            self.deep = self.algo_config.deep.layers
            super()._create_networks()

    algo = build(Wide, algo={"width": 3, "deep": {"layers": [1, 2]}})
    assert (algo.width, algo.deep) == (3, (1, 2))
    assert algo.optimizers["policy"].param_groups[0]["lr"] == 1e-4
    rate = {"optim_params": {"policy": {"learning_rate": {"initial": 0.5}}}}
    algo = build(Wide, algo={"width": 3, "deep": {"layers": []}, **rate})
    before = algo.nets["policy"].weight.clone()
    info = algo.train_on_batch(algo.process_batch_for_training(BATCH), 1)
    assert {"Loss", "Half"} <= set(info)
    assert not torch.equal(before, algo.nets["policy"].weight)
    assert algo.optimizers["policy"].param_groups[0]["lr"] == 0.5


class Reads(Whole):
    def _create_networks(self):
        assert self.algo_config.width


class Nested(Whole):
    def _create_networks(self):
        assert self.algo_config.net.width


class Late(Whole):
    def _loss(self, batch):
        return self.algo_config.deep.weight, {}


class Narrow(AlgoSection):
    depth: int = 1


WAYS = r"algo\.width: is read by the algorithm but not set, .* set algo\.width in the configuration, read it with"
KEYS = [
    (Whole, None, {"optim_params": {"policy": {"learning_rat": 1}}}, r"y\.learning_rat: unknown key"),
    (Reads, None, {}, WAYS + r" .*or register the algorithm with section="),
    (Reads, Narrow, {}, r"algo\.width: is read by the algorithm .* but Narrow has no such key: add"),
    (Nested, None, {"net": {"depth": 1}}, r"algo\.net\.width: is read by the algorithm"),
    (Late, None, {"deep": {"other": 1}}, "key 'weight' is read in a free-form section of the .* that has other"),
]  # fmt: skip


@pytest.mark.parametrize(("algo_class", "section", "keys", "words"), KEYS)
def test_a_key_that_is_unknown_or_missing_is_named_with_the_ways_to_give_it(
    algo_class, section, keys, words
):
    with pytest.raises(ConfigError, match=words):
        algo = build(algo_class, section, keys)
        algo.train_on_batch(algo.process_batch_for_training(BATCH), 1)


def test_a_class_derived_from_one_of_the_package_is_told_that_ones_section():
    wanted = r"algo\.gaussian: .* derives from BC, .* section=BCConfig \(from imitate\.algo\.bc\)"

    class MyBC(BC):
        pass

    with pytest.raises(ConfigError, match=wanted):
        build(MyBC)
    with pytest.raises(ConfigError, match=wanted):
        check_algorithm(load_config(tree_of(MyBC)))
    check_algorithm(load_config(tree_of(MyBC, BCConfig)))
    assert isinstance(build(MyBC, BCConfig), MyBC)


def test_check_algorithm_does_not_judge_by_sizes_that_it_made_up():
    class Particular(Whole):
        def _create_networks(self):
            raise ValueError("images must be 7 pixels wide")

    check_algorithm(load_config(tree_of(Particular)))


def test_a_key_that_is_missing_in_an_update_is_one_line_as_well():
    class Late(Whole):
        def _loss(self, batch):
            return self.algo_config.deep.weight, {}

    algo = build(Late, algo={"deep": {"other": 1}})
    with pytest.raises(
        ConfigError,
        match="key 'weight' is read in a free-form section of the configuration that has other",
    ):
        algo.train_on_batch(algo.process_batch_for_training(BATCH), 1)


def test_open_sections_still_answer_hasattr():
    section = find("bc").section().rnn.kwargs
    assert not hasattr(section, "nothing")
    assert getattr(section, "nothing", 3) == 3


# ---- the public methods, as the README's table has them -------------------------------------------


class Table(Algo):
    """The table's methods, and none of the hooks."""

    def _create_networks(self):
        self.nets = nn.ModuleDict({"policy": nn.Linear(2, 1)})

    def process_batch_for_training(self, batch):
        return {"s": batch["obs"]["s"][:, 0].float(), "a": batch["actions"][:, 0].float()}

    def train_on_batch(self, batch, epoch):
        loss = (self.nets["policy"](batch["s"]) - batch["a"]).square().mean()
        self._gradient_step("policy", loss)
        return {"Loss": loss.detach()}

    def act(self, obs, state, goal=None, *, explore=False, generator=None):
        return PolicyStep(self.nets["policy"](obs["s"]), state, {})


def test_the_methods_of_the_table_are_enough():
    algo = build(Table)
    before = algo.nets["policy"].weight.clone()
    info = algo.train_on_batch(algo.process_batch_for_training(BATCH), 1)
    assert not torch.equal(before, algo.nets["policy"].weight)
    assert algo.log_info(info)["Loss"] > 0
    assert algo.get_action({"s": torch.ones(3, 2)}).shape == (3, 1)


def test_validation_without_the_argument_and_without_a_loss_is_refused_before_training():
    words = r"experiment\.validate: is true, but Table\.train_on_batch\(batch, epoch\) takes no validate"
    with pytest.raises(ConfigError, match=words):
        build(Table, validate=True)


def test_an_update_without_the_argument_validate_is_validated_by_its_loss():
    class Twice(BC):
        updates = 0

        def train_on_batch(self, batch, epoch):
            self.updates += 1
            super().train_on_batch(batch, epoch)
            return super().train_on_batch(batch, epoch)

    class Child(Twice):
        pass

    algo = build(Child, BCConfig, {"actor_layer_dims": [4]}, validate=True)
    batch = algo.process_batch_for_training(BATCH)
    before = [weight.clone() for weight in algo.nets.parameters()]
    algo.set_eval()
    info = algo.train_on_batch(batch, 1, validate=True)
    assert "Action_Error" in info and algo.updates == 0
    assert all(map(torch.equal, before, algo.nets.parameters()))
    algo.set_train()
    algo.train_on_batch(batch, 1)
    assert algo.updates == 1
    assert not all(map(torch.equal, before, algo.nets.parameters()))


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("train_on_batch", lambda self, batch: {}, "self, batch"),
        ("_loss", lambda self: None, "self"),
        ("_act", lambda self, obs, state, goal: None, "self, obs, state, goal"),
        ("on_epoch_end", lambda self: None, "self"),
    ],
)
def test_a_method_with_other_arguments_is_refused_when_built(name, method, words):
    words = rf"Wrong\.{name}\({words}\) cannot be called as {name}\(self, "
    wrong = type("Wrong", (Whole,), {name: method})
    with pytest.raises(ConfigError, match=words):
        build(wrong)
    with pytest.raises(ConfigError, match=words):
        check_algorithm(load_config(tree_of(wrong)))


def test_hooks_that_are_missing_are_all_named():
    class Bare(Algo):
        pass

    with pytest.raises(ConfigError) as error:
        build(Bare)
    lines = str(error.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["Bare"] * 4
    hooks = ("_select_batch", "_loss", "_act", "_create_networks")
    assert all(f"{hook}()" in line for line, hook in zip(lines, hooks, strict=True))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("_create_networks", None, r"_create_networks\(\) set no self\.nets"),
        ("_select_batch", None, r"_select_batch\(\) returned None: return a dict"),
        ("_loss", torch.tensor(0.0), r"_loss\(\) returned Tensor: return the loss and what to log"),
        ("_act", torch.zeros(1, 1), r"_act\(\) returned Tensor: return PolicyStep"),
    ],
)
def test_a_wrong_result_is_one_line(name, value, words):
    wrong = type("Wrong", (Whole,), {name: lambda self, *args, **kwargs: value})
    with pytest.raises(ConfigError, match=words):
        algo = build(wrong)
        algo.train_on_batch(algo.process_batch_for_training(BATCH), 1)
        algo.get_action({"s": torch.ones(1, 2)})


@pytest.mark.parametrize(
    ("info", "words"),
    [(None, "returned NoneType: return a dict"), ({"Loss": torch.ones(3)}, r"of shape \(3,\)")],
)
def test_a_wrong_log_is_one_line(info, words):
    with pytest.raises(ConfigError, match=words):
        EpochMeans().add(info)


def test_means_keep_no_graph():
    means = EpochMeans()
    weight = torch.ones(1, requires_grad=True)
    means.add({"Loss": weight.sum()})
    means.add({"Loss": weight.sum()})
    assert not means.sums["Loss"].requires_grad


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (Whole, r"registered for '{}' returned \w+: return the class and a dict"),
        ((dict, {}), r"wanted a subclass of imitate\.Algo"),
    ],
)
def test_a_function_that_returns_no_class_is_one_line(returned, words):
    name = next(names)
    register_algo_factory_func(name)(lambda _: returned)
    with pytest.raises(ConfigError, match=words.format(name)):
        algo_factory(name, load_config({"algo_name": name}), {}, 1)
