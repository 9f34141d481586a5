"""The simulated device is as strict as the real ones; otherwise the tests beside this one would find nothing."""

import pytest
import torch
from torch import nn

from tests.device.simulated_gpu import NAME


def ones(*shape, **kwargs):
    return torch.ones(*shape, device=NAME, **kwargs)


def test_a_network_learns_on_it_as_on_the_cpu(transfers):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    x, gradients = torch.randn(5, 3), []
    for device in ("cpu", NAME):
        net.zero_grad()
        net.to(device)(x.to(device)).square().mean().backward()
        gradients.append(net[0].weight.grad.to("cpu", copy=True))
    assert net[0].weight.device.type == NAME
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks(transfers, kind):
    net, x = kind(3, 4, batch_first=True), torch.randn(2, 5, 3)
    expected = net(x)[0].detach()
    torch.testing.assert_close(net.to(NAME)(x.to(NAME))[0].cpu(), expected)


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (lambda: ones(3) + torch.ones(3), "same device"),
        (lambda: ones(3).add_(torch.ones(3)), "same device"),
        (lambda: nn.Linear(3, 2)(ones(1, 3)), "same device"),
        (lambda: torch.cat([ones(3), torch.ones(3)]), "same device"),
        (lambda: torch.where(torch.tensor([True]), ones(1), ones(1)), "same device"),
        (lambda: ones(3).index_select(0, torch.tensor([0])), "same device"),
        (lambda: ones(3).normal_(generator=torch.Generator()), "generator"),
        (lambda: ones(3).numpy(), "not supported"),
        (lambda: ones(3, dtype=torch.float64), "float64"),
        (lambda: ones(3).double(), "float64"),
        (lambda: torch.ones(3).double().to(NAME), "float64"),
    ],
)
def test_refused(transfers, operation, words):
    with pytest.raises((RuntimeError, TypeError), match=words):
        operation()


@pytest.mark.parametrize(
    ("operation", "waits"),
    [
        (lambda: ones(3) + torch.tensor(1.0), 0),
        (lambda: torch.ones(3).to(NAME, non_blocking=True), 0),
        (lambda: ones(3).normal_(generator=torch.Generator(NAME).manual_seed(1)), 0),
        (lambda: ones(3)[ones(1, dtype=torch.long)], 0),
        (lambda: torch.ones(3).to(NAME), 1),
        (lambda: torch.tensor([1.0], device=NAME), 1),
        (lambda: ones(3).cpu(), 1),
        (lambda: ones(3).to("cpu", non_blocking=True), 1),
        (lambda: ones(3).sum().item(), 1),
        (lambda: float(ones(())), 1),
        (lambda: bool(ones(3).any()), 1),
        (lambda: ones(3).tolist(), 1),
        (lambda: ones(3).nonzero(), 1),
        (lambda: ones(3)[ones(3) > 0], 1),
        (lambda: ones(3)[torch.tensor([0])], 1),
        (lambda: torch.equal(ones(3), ones(3)), 1),
        (lambda: torch.empty(3).copy_(ones(3)), 1),
    ],
)
def test_counted(transfers, operation, waits):
    operation()
    assert sum(transfers.waits.values()) == waits
