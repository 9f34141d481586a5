"""Training and evaluation mode as torch sets it."""

from torch import nn

from imitate.models.mode import set_mode


class AlwaysEvaluates(nn.Sequential):
    """A frozen part, whose own parts stay in evaluation mode."""

    def train(self, mode=True):
        return super().train(False)


def modes(net):
    return {name: module.training for name, module in net.named_modules()}


def make_net():
    shared = nn.Dropout()
    net = nn.ModuleDict(
        {
            "policy": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), shared),
            "frozen": AlwaysEvaluates(nn.Linear(2, 2), nn.Dropout()),
            "again": nn.ModuleList([shared, nn.Linear(2, 2)]),
        }
    )
    net["policy"].register_module("absent", None)
    return net


def test_every_part_gets_the_mode_that_torch_gives_it():
    ours, theirs = make_net(), make_net()
    for training in (False, True, True, False):
        set_mode(ours, training)
        theirs.train(training)
        assert modes(ours) == modes(theirs)
    set_mode(ours, training=True)
    assert modes(ours)["policy.1"]
    assert not modes(ours)["frozen.1"]
