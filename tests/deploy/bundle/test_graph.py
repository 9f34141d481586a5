"""ONNX models of bundles are whole in themselves."""

import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from imitate.deploy.bundle.network import Graph, refuse_external
from imitate.deploy.bundle.tracing import exported, without_copies
from imitate.errors import BundleError


def external(name="w"):
    tensor = numpy_helper.from_array(np.ones(2, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/hostname")
    return tensor


def model(nodes, initializers=(), domain=""):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph(list(nodes), "g", [value], [result], list(initializers))
    opsets = [helper.make_opsetid("", 17)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    made = helper.make_model(graph, opset_imports=opsets)
    made.ir_version = 8
    return made.SerializeToString()


def test_a_model_is_run():
    weight = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "w")
    graph = Graph(model([helper.make_node("Add", ["x", "w"], ["y"])], [weight]))
    assert (graph.inputs, graph.outputs) == (("x",), ("y",))
    got = graph.run({"x": np.ones(2, np.float32), "unused": np.zeros(1)})
    np.testing.assert_array_equal(got["y"], [2.0, 3.0])
    with pytest.raises(BundleError, match="cannot be run: .*float"):
        graph.run({"x": np.ones(2)})
    with pytest.raises(BundleError, match="cannot be run: 'x'"):
        graph.run({})


def test_a_loop_without_end_is_ended():
    values = {"i": 7, "c": 9, "d": 9, "v": 1, "w": 1}
    infos = {
        name: helper.make_tensor_value_info(name, kind, [] if kind > 1 else [2])
        for name, kind in values.items()
    }
    steps = [helper.make_node("Identity", [a], [b]) for a, b in (("c", "d"), ("v", "w"))]
    body = helper.make_graph(steps, "b", [infos[n] for n in "icv"], [infos[n] for n in "dw"])
    given = [
        numpy_helper.from_array(np.array(2**62), "most"),
        numpy_helper.from_array(np.array(True), "on"),
    ]
    data = model([helper.make_node("Loop", ["most", "on", "x"], ["y"], body=body)], given)
    graph = Graph(data, longest_s=0.1)
    for _ in range(2):
        with pytest.raises(
            BundleError, match="policy.onnx takes longer than 0.1 s, perhaps in a loop that never"
        ):
            graph.run({"x": np.ones(2, np.float32)})


def test_a_first_run_that_takes_long_is_ended():
    names = ["m", *(f"v{number}" for number in range(2000)), "y"]
    waves = [helper.make_node("Sin", [a], [b]) for a, b in zip(names, names[1:], strict=False)]
    size = numpy_helper.from_array(np.array([2**17, 2]), "size")
    graph = Graph(
        model([helper.make_node("Expand", ["x", "size"], ["m"]), *waves], [size]), longest_s=0.05
    )
    with pytest.raises(BundleError, match="takes longer than 0.05 s"):
        graph.run({"x": np.ones(2, np.float32)})


@pytest.mark.parametrize("source", ["x", "w"])
def test_the_memory_of_a_network_is_limited_whether_it_depends_on_the_input_or_not(source):
    numbers = {"w": np.ones(2, np.float32), "size": np.array([2**29, 2])}
    nodes = [
        helper.make_node("Expand", [source, "size"], ["m"]),
        helper.make_node("ReduceMax", ["m"], ["r"], keepdims=0),
        helper.make_node("Add", ["r", "x"], ["y"]),
    ]
    given = [numpy_helper.from_array(value, name) for name, value in numbers.items()]
    graph = Graph(model(nodes, given))
    with pytest.raises(BundleError, match="cannot be run: .*Available memory of"):
        graph.run({"x": np.ones(2, np.float32)})


def texts_and_sparse_weights():
    add = helper.make_node("Add", ["x", "w"], ["y"])
    yield model([add], [helper.make_tensor("w", TensorProto.STRING, [1], [b"text"])])
    yield model([helper.make_node("Constant", [], ["w"], value_string="text"), add])
    yield model([helper.make_node("Constant", [], ["w"], value_strings=["text"]), add])
    yield model([helper.make_node("StringConcat", ["x", "x"], ["y"])])
    numbers = [numpy_helper.from_array(np.ones(1, kind)) for kind in (np.float32, np.int64)]
    sparse = helper.make_sparse_tensor(*numbers, [2**31])
    yield model([helper.make_node("Constant", [], ["w"], sparse_value=sparse), add])


@pytest.mark.parametrize("data", list(texts_and_sparse_weights()))
def test_texts_and_sparse_weights_are_refused(data):
    with pytest.raises(BundleError, match="has texts or sparse weights, which are refused"):
        refuse_external(data)


def test_names_of_a_model_reach_no_terminal(capfd):
    node = helper.make_node("Gather", ["w", "i"], ["y"], name="\x1b[2J")
    given = {"w": np.ones(2, np.float32), "i": np.array([9, 9])}
    graph = Graph(
        model([node], [numpy_helper.from_array(value, name) for name, value in given.items()])
    )
    with pytest.raises(BundleError, match="cannot be run"):
        graph.run({"x": np.ones(2, np.float32)})
    assert capfd.readouterr() == ("", "")


def test_weights_in_other_files_are_refused_wherever_they_are():
    add = helper.make_node("Add", ["x", "w"], ["y"])
    constant = helper.make_node("Constant", [], ["w"], value=external())
    inner = helper.make_graph([constant], "inner", [], [helper.make_tensor_value_info("w", 1, [2])])
    condition = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    function = onnx.ModelProto()
    function.ParseFromString(model([add]))
    function.functions.append(
        helper.make_function("d", "F", [], ["w"], [constant], [helper.make_opsetid("", 17)])
    )
    for data in (
        model([add], [external()]),
        model([constant, add]),
        model([condition]),
        function.SerializeToString(),
    ):
        with pytest.raises(BundleError, match="weights in another file"):
            refuse_external(data)
    refuse_external(model([add], [numpy_helper.from_array(np.ones(2, np.float32), "w")]))


def test_operators_of_others_are_refused():
    with pytest.raises(BundleError, match="operators of 'evil'"):
        refuse_external(model([], domain="evil"))


@pytest.mark.parametrize("data", [b"\xff" * 30, b"\x0a\xff\x01", b"\x0b", b"\x3a\x05abc"])
def test_what_is_no_model(data):
    with pytest.raises(BundleError, match="is not an ONNX model"):
        refuse_external(data)


def field(number, data):
    """A field of a message, as protocol buffers write it."""
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def test_graphs_in_graphs_end():
    data = b""
    for _ in range(200):  # node {attribute {g {...}}}
        data = field(1, field(5, field(6, data)))
    with pytest.raises(BundleError, match="too deep"):
        refuse_external(field(7, data))


def test_a_network_that_onnxruntime_cannot_load(tmp_path):
    unknown = model([helper.make_node("NoSuchOperator", ["x"], ["y"])])
    with pytest.raises(BundleError, match="onnxruntime cannot load policy.onnx") as raised:
        Graph(unknown)
    assert "\n" not in str(raised.value)


def test_of_equal_weights_one_is_kept():
    values = {"a": [1, 2], "b": [1, 2], "c": [3, 4], "d": [[1, 2]]}
    weights = [numpy_helper.from_array(np.array(v, np.float32), k) for k, v in values.items()]
    nodes = [
        helper.make_node("Add", [x, w], [y])
        for x, w, y in zip(*["xefg", "abcd", "efgy"], strict=True)
    ]
    small = without_copies(model(nodes, weights))
    kept = onnx.load_from_string(small).graph
    assert [weight.name for weight in kept.initializer] == ["a", "c", "d"]
    assert [node.input[1] for node in kept.node] == ["a", "a", "c", "d"]
    got = Graph(small).run({"x": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(got["y"], [[6, 10]])


class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x) if x.isfinite().all() else x  # of which torch warns


class Unknown(torch.nn.Module):
    def forward(self, x):
        if not x.any():
            raise RuntimeError("this is \n" * 100)
        return torch.linalg.eigvals(x)


def test_attention_is_exported_in_silence_and_torch_is_left_as_it_was(capfd):
    before = torch.backends.mha.get_fastpath_enabled(), torch._C._jit_onnx_log
    module, seen = Attends().eval(), torch.ones(1, 3, 4)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        made = exported(module, {"x": seen}, ["y"])
        for x, words in ((torch.eye(2), "Exporting the operator.*"), (torch.zeros(2), ".{200}")):
            with pytest.raises(
                BundleError, match=f"no equivalent for an operation of the policy .{words}.: deploy"
            ):
                exported(Unknown(), {"x": x}, ["y"])
    assert onnx.load_from_string(made).opset_import[0].version == 17  # for onnxruntime 1.12
    np.testing.assert_allclose(
        Graph(made).run({"x": seen.numpy()})["y"], module(seen).detach(), atol=1e-5
    )
    assert (torch.backends.mha.get_fastpath_enabled(), torch._C._jit_onnx_log) == before
    assert capfd.readouterr() == ("", "")
