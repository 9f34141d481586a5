"""Random numbers and resized images of an exported prediction, function by function."""

import warnings

import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from imitate.deploy.bundle import tracing
from imitate.deploy.bundle.tracing import Draws, Numbers, Resizing, exported
from imitate.errors import BundleError
from tests.refusals import refused


def given(kind, shape):
    return torch.full(shape, {"normal": 1.0, "exponential": 2.0}[kind])


@pytest.mark.parametrize(
    ("draw", "value", "shape"),
    [
        (lambda: torch.randn(2, 3), 1.0, (2, 3)),
        (lambda: torch.randn((2, 3)), 1.0, (2, 3)),
        (lambda: torch.randn([4], generator=torch.Generator()), 1.0, (4,)),
        (lambda: torch.randn_like(torch.zeros(5)), 1.0, (5,)),
        (lambda: torch.zeros(2, 1).normal_(), 1.0, (2, 1)),
        (lambda: torch.zeros(3).exponential_(), 2.0, (3,)),
        (lambda: torch.zeros(3).exponential_(generator=torch.Generator()), 2.0, (3,)),
        (lambda: torch.full((2,), 7.0), 7.0, (2,)),
    ],
)
def test_numbers_are_given(draw, value, shape):
    with Draws(given):
        drawn = draw()
    assert drawn.shape == shape and (drawn == value).all()


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: torch.zeros(2).normal_(0.0, 2.0), "draws numbers with a mean or a rate"),
        (lambda: torch.zeros(2).exponential_(lambd=2.0), "draws numbers with a mean or a rate"),
        (lambda: torch.rand(2), "draws numbers by torch's rand, which"),
        (lambda: torch.rand_like(torch.zeros(2)), "draws numbers by torch's rand_like"),
        (lambda: torch.randint(3, (2,)), "draws numbers by torch's randint"),
        (lambda: torch.randint_like(torch.zeros(2), 3), "draws numbers by torch's randint_like"),
        (lambda: torch.randperm(3), "draws numbers by torch's randperm"),
        (lambda: torch.normal(0.0, 1.0, (2,)), "draws numbers by torch's normal"),
        (lambda: torch.multinomial(torch.ones(2), 1), "draws numbers by torch's multinomial"),
        (lambda: torch.ones(2).multinomial(1), "draws numbers by torch's multinomial"),
        (lambda: torch.bernoulli(torch.ones(2)), "draws numbers by torch's bernoulli"),
        (lambda: torch.ones(2).bernoulli_(0.5), "draws numbers by torch's bernoulli_"),
        (lambda: torch.ones(2).uniform_(), "draws numbers by torch's uniform_"),
        (lambda: torch.ones(2).random_(), "draws numbers by torch's random_"),
    ],
)
def test_other_random_numbers_are_refused(draw, words):
    with Draws(given), refused(words, error=BundleError):
        draw()


def test_flat_numbers_are_returned_in_turn_and_may_be_changed():
    flat = {"normal": torch.arange(7.0), "exponential": torch.arange(10.0, 12.0)}
    numbers = Numbers(flat)
    assert numbers.left == 9
    first = numbers("normal", (2, 2))
    assert first.tolist() == [[0.0, 1.0], [2.0, 3.0]] and numbers.left == 5
    first.zero_()
    assert numbers("exponential", (1,)).tolist() == [10.0]
    assert numbers("normal", ()).item() == 4.0
    assert numbers("normal", (2,)).tolist() == [5.0, 6.0]
    assert (numbers.left, flat["normal"][:2].tolist()) == (1, [0.0, 1.0])
    assert Numbers({}).left == 0


@pytest.mark.parametrize("size", [(3, 5), (12, 9), (6, 8)])
@pytest.mark.parametrize("by_name", [True, False])
def test_resizing_by_matrices_is_resizing(size, by_name):
    image = torch.rand(2, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    options = {"mode": "bilinear", "align_corners": False, "antialias": True}
    wanted = nn.functional.interpolate(image, size, **options)
    with Resizing():
        if by_name:
            found = nn.functional.interpolate(image, size=size, **options)
        else:
            found = nn.functional.interpolate(image, size, **options)
        plain = nn.functional.interpolate(image, size, mode="bilinear")
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(plain, nn.functional.interpolate(image, size, mode="bilinear"))


class Sums(nn.Module):
    """Two equal weights and another one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.again = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.other = nn.Parameter(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))

    def forward(self, x, y):
        return x @ self.first + x.abs() @ self.again, y + self.other


def test_an_exported_module_has_its_names_and_each_weight_once():
    module, x, y = Sums(), torch.tensor([[1.0, -1.0]]), torch.zeros(1, 4)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        data = exported(module, {"obs/x": x, "obs/y": y}, ["left", "right"])
    assert shown == []
    graph = onnx.load_from_string(data)
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", 17)]
    weights = [numpy_helper.to_array(weight).tolist() for weight in graph.graph.initializer]
    assert weights == [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0, 3.0, 4.0]]]
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == ["obs/x", "obs/y"]
    assert [entry.name for entry in session.get_outputs()] == ["left", "right"]
    left, right = session.run(None, {"obs/x": x.numpy(), "obs/y": y.numpy() + 1})
    assert (left.tolist(), right.tolist()) == ([[2.0, 4.0]], [[2.0, 3.0, 4.0, 5.0]])


def test_an_export_leaves_torch_as_it_was_and_its_errors_are_one_line(capfd):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x).real

    before = torch.backends.mha.get_fastpath_enabled(), torch._C._jit_onnx_log
    with tracing.plain_export():
        assert torch.backends.mha.get_fastpath_enabled() is False
        assert torch._C._jit_onnx_log("a graph") is None
    with pytest.raises(
        BundleError, match="^ONNX has no equivalent for an operation of the policy ."
    ) as caught:
        exported(Odd(), {"x": torch.eye(2)}, ["y"])
    assert "\n" not in str(caught.value) and capfd.readouterr().out == ""
    assert (torch.backends.mha.get_fastpath_enabled(), torch._C._jit_onnx_log) == before
    assert tracing.one_line(ValueError("a \n b" + 300 * "c")) == "a b" + 197 * "c"


def test_tensors_of_a_nested_memory_have_dotted_names():
    tree = {"a": {"b": torch.zeros(1), "none": None}, "c": torch.ones(1)}
    assert list(tracing.named_leaves(tree)) == [("a.b", tree["a"]["b"]), ("c", tree["c"])]
    found = tracing.with_leaves(tree, {"a.b": torch.full((1,), 7.0)})
    assert found == {"a": {"b": torch.full((1,), 7.0), "none": None}, "c": torch.ones(1)}
