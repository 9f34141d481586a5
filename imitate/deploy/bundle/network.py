"""Predict actions from raw observations, memory and noise by a bundle's networks, with numpy and onnxruntime.

The networks are a self-contained ONNX model, which onnxruntime runs on the CPU. The module prepares raw observations
for the model and draws the random numbers of predictions.
"""

import functools
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imitate.deploy.bundle.archive import Bundle
from imitate.deploy.bundle.spec import Actions, BundleSpec, Noise
from imitate.deploy.schema import ObservedKey
from imitate.errors import BundleError, MissingPackageError, UserError
from imitate.policy.checks import newest_frames, refuse_missing, refuse_not_finite
from imitate.system.extras import missing
from imitate.system.images import IMAGE_MODALITIES, image_divisor, image_type
from imitate.system.instructions import LANGUAGE_KEY, Instructions
from imitate.system.memory import free_memory

_DOMAINS = frozenset({"", "ai.onnx"})
# Numbers of the fields through which tensors are reached, by message type of onnx.proto.
_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 8: "opset", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 9: "opset", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
}
_EXTERNAL_DATA, _DATA_LOCATION, _DOMAIN = 13, 14, 1
_DATA_TYPE, _STRING, _OPERATOR, _NAME = 2, 8, 4, 1
_MOST_DEPTH = 32
_LOOPS = (b"Loop", b"Scan", b"SequenceMap")
LONGEST_S = 20.0
"""Seconds after which the first prediction is ended, or any prediction of a network with loops, which may never end."""
MOST_MEMORY = 2**31
"""Largest memory in bytes of all predictions of a process, without the weights."""
LEAST_MEMORY = 2**28
"""Memory in bytes that predictions may take even if less is free."""


class Graph:
    """An ONNX model.

    Args:
        model: bytes of the ONNX model.
        threads: number of threads per run.
        longest_s: seconds after which the first run, or any run of a network with loops, is ended.

    Attributes:
        inputs: names of the model's inputs.
        outputs: names of the model's outputs.

    Raises:
        BundleError: the model refers to other files, or onnxruntime cannot load it.
        MissingPackageError: onnxruntime is not installed.
    """

    def __init__(self, model: bytes, threads: int = 1, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingPackageError(f"a bundle: {missing('onnx', error)}") from error
        refuse_external(model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = (
            4  # fatal errors only, because other messages may quote the model
        )
        try:
            _limit_memory(onnxruntime)
            options.add_session_config_entry("session.use_env_allocators", "1")
            options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
            # Constant folding would compute results here without the memory limit.
            self._session: Any = onnxruntime.InferenceSession(
                model,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["ConstantFolding"],
            )
        except Exception as error:
            raise BundleError(f"onnxruntime cannot load policy.onnx: {_line(error)}") from error
        self.inputs = tuple(entry.name for entry in self._session.get_inputs())
        self.outputs = tuple(entry.name for entry in self._session.get_outputs())
        self._names = list(self.outputs)
        self._has_loops = any(operator in model for operator in _LOOPS)
        self._is_timed = True
        self._new_options: Any = onnxruntime.RunOptions

    def run(self, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return all outputs; entries of ``feed`` that are not inputs are ignored.

        Raises:
            BundleError: an input is missing or has another shape or type, or a network with loops takes too long.
        """
        options = self._new_options()
        end = threading.Timer(self._longest_s, setattr, (options, "terminate", True))
        end.daemon = True
        if self._is_timed:
            end.start()
        try:
            given = {name: feed[name] for name in self.inputs}
            values = self._session.run(self._names, given, options)
        except Exception as error:
            if options.terminate:
                raise BundleError(
                    f"policy.onnx takes longer than {self._longest_s:g} s, perhaps in a loop that never ends: export "
                    "the bundle again, or use a faster machine"
                ) from error
            raise BundleError(f"policy.onnx cannot be run: {_line(error)}") from error
        finally:
            end.cancel()
        self._is_timed = self._has_loops
        return dict(zip(self.outputs, values, strict=True))


@functools.cache
def _limit_memory(onnxruntime: Any) -> None:
    """Limit the memory of all predictions of this process, because even a small file may request any amount."""
    most = max(LEAST_MEMORY, min(MOST_MEMORY, free_memory()))
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({"max_mem": most}))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def refuse_external(model: bytes) -> None:
    """Raise BundleError for a model with external weights, custom operators, or data whose memory is not limited.

    Raises:
        BundleError: the model has one of these, or is not an ONNX model.
    """
    try:
        _walk(memoryview(model), "model", 0)
    except (IndexError, UnicodeDecodeError) as error:
        raise BundleError("policy.onnx is not an ONNX model: export the bundle again") from error


def _walk(message: memoryview, kind: str, depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise BundleError(
            "policy.onnx has graphs that are nested too deeply: export the bundle again"
        )
    children = _CHILDREN.get(kind, {})
    for number, value in _fields(message):
        if kind == "tensor" and number in (_EXTERNAL_DATA, _DATA_LOCATION) and value:
            raise BundleError("policy.onnx has weights in another file, which is refused")
        if kind == "sparse" or _makes_text(kind, number, value):
            raise BundleError("policy.onnx has texts or sparse weights, which are refused")
        if isinstance(value, int):
            continue
        if kind == "opset" and number == _DOMAIN and bytes(value).decode() not in _DOMAINS:
            raise BundleError(
                f"policy.onnx has operators of {bytes(value).decode()!a}, which are refused"
            )
        if number in children:
            _walk(value, children[number], depth + 1)


def _makes_text(kind: str, number: int, value: int | memoryview) -> bool:
    """Return True for a field with a string, whose length onnxruntime does not limit."""
    if kind == "tensor":
        return number == _DATA_TYPE and value == _STRING
    if isinstance(value, int) or (kind, number) not in (("node", _OPERATOR), ("attribute", _NAME)):
        return False
    word = bytes(value)
    return b"String" in word if kind == "node" else word.startswith(b"value_string")


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a protobuf message: field number and value (a number or bytes).

    Raises:
        IndexError: the message is truncated or malformed.
    """
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        wire = key & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if wire == 2:
            size, place = _varint(message, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise IndexError(f"wire type {wire}")
        if place + size > end:
            raise IndexError("truncated")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise IndexError("a varint has more than 64 bits")


_TINY = np.finfo(np.float32).tiny


class NoiseSource:
    """Draws the random numbers of predictions.

    Args:
        noise: how many random numbers of each distribution a prediction uses.
        seed: seed of the generator, or None for a different one each time.
    """

    def __init__(self, noise: Noise, seed: int | None = None) -> None:
        self._counts, self._generator = noise, np.random.default_rng(seed)

    def draw(self) -> dict[str, NDArray[np.float32]]:
        """Return the random numbers of the next prediction, as the inputs ``noise/KIND`` that it uses."""
        draw, counts, numbers = self._generator, self._counts, {}
        if counts.normal:
            numbers["noise/normal"] = draw.standard_normal(counts.normal, dtype=np.float32)
        if counts.exponential:
            waits = draw.standard_exponential(counts.exponential, dtype=np.float32)
            # An exponential value of 0 would cause a division by zero.
            numbers["noise/exponential"] = np.maximum(waits, _TINY)
        return numbers


Arrays = dict[str, NDArray[np.float32]]
_OVERSHOOT = 0.1
"""Amount by which pixels may exceed black and white, because resizing may overshoot."""


class BundleObservations:
    """Checks and prepares the observations, or the goals, of a policy.

    Args:
        observed: shape and modality of each key.
        stacks: allowed numbers of frames if an observation is given as a stack of frames.
        any_pixels: keys of images whose values are not checked.
        lang_key: key of the instruction, which is given separately and never stacked.
    """

    def __init__(
        self,
        observed: Mapping[str, ObservedKey],
        stacks: Collection[int] = (1,),
        any_pixels: Collection[str] = (),
        lang_key: str | None = None,
    ) -> None:
        self.observed = dict(observed)
        self._shapes = {key: spec.shape for key, spec in observed.items()}
        self._stacks, self._any_pixels, self._lang_key = (
            frozenset(stacks),
            frozenset(any_pixels),
            lang_key,
        )

    def prepare(self, raw: Mapping[str, Any]) -> Arrays:
        """Return float32 arrays of one step by key, images (H, W, C) from 0 to 1.

        Raises:
            UserError: a key is missing or mis-shaped, or an image has values beyond its range.
            NotFiniteError: a value is NaN or infinite.
        """
        try:
            arrays = {key: np.asarray(raw[key]) for key in self._shapes}
        except KeyError:
            refuse_missing(raw, self._shapes)
            raise
        for key, shape in self._shapes.items():
            if arrays[key].shape != shape:
                arrays = newest_frames(arrays, self._shapes, self._stacks, lang_key=self._lang_key)
                break
        return {key: self._prepared(key, value) for key, value in arrays.items()}

    def _prepared(self, key: str, value: NDArray[Any]) -> NDArray[np.float32]:
        refuse_not_finite(key, value[None])
        spec = self.observed[key]
        if value.shape != spec.shape:
            raise UserError(
                f"observation '{key}' has shape {(1, *value.shape)}; expected (..., "
                f"{', '.join(map(str, spec.shape))}) with modality '{spec.kind}'"
            )
        if spec.kind not in IMAGE_MODALITIES:
            return value.astype(np.float32)
        recorded = spec.image_type or None
        divisor = image_divisor(spec.kind, recorded, image_type(value.dtype), key)
        checked = spec.kind == "rgb" or recorded == "uint8"
        if checked and value.dtype != np.uint8 and key not in self._any_pixels:
            _check_pixels(key, value)
        return np.divide(value, divisor, dtype=np.float32, casting="unsafe")


def _check_pixels(key: str, value: NDArray[Any]) -> None:
    """Raise UserError for float pixels outside [0, 1] and integer pixels outside [0, 255]."""
    if not value.size:
        return
    highest = 1 if value.dtype.kind == "f" else 255
    low, high = float(value.min()), float(value.max())
    if low < -_OVERSHOOT or high > highest + _OVERSHOOT:
        raise UserError(
            f"image '{key}' has {value.dtype} values from {low:.4g} to {high:.4g}; "
            "expected uint8 from 0 to 255, or floats from 0 to 1: give pixels as uint8, or divide floats by 255"
        )


TOLERANCE = 1e-4
"""Largest allowed difference from the recorded actions: absolute up to size 1, relative for larger actions."""
FEWEST_CHECKS = 3

Frames = tuple[Arrays, ...]
Memory = Mapping[str, NDArray[Any]]


class Network:
    """Predicts actions by the networks of a bundle.

    Args:
        bundle: content of the file.
        threads: number of threads per prediction.

    Attributes:
        spec: description of the policy.
        instructions: table of the instructions of a policy that is conditioned on language; None for others.
        memory: recurrent state at the beginning of an episode.

    Raises:
        BundleError: description, network and arrays do not fit together.
    """

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self.spec = spec = BundleSpec.from_dict(bundle.description)
        self.memory: Memory = {name: bundle.array(place) for name, place in spec.memory.items()}
        self.instructions = _instructions(spec, bundle)
        self._graph = Graph(bundle.network, threads)
        wanted = {"actions", *(f"next/{name}" for name in self.memory)}
        if not wanted <= set(self._graph.outputs):
            raise BundleError(
                f"the networks give only {', '.join(self._graph.outputs)}: export the bundle again"
            )
        observed, lang_key = dict(spec.schema.observations), None
        if self.instructions is not None:
            lang_key = LANGUAGE_KEY
            observed[lang_key] = ObservedKey((self.instructions.size,))
        self._obs = BundleObservations(observed, spec.stacks, spec.any_pixels, lang_key)
        self._goal = BundleObservations(spec.schema.goals, spec.stacks, spec.any_pixels)
        # Random numbers for predictions of which only the memory is used.
        self.any_noise = NoiseSource(spec.noise, 0).draw()

    def observe(
        self, frames: Frames, ob: Mapping[str, Any], lang_emb: NDArray[np.float32] | None
    ) -> Frames:
        """Return the last F observations including this one; an episode's first one is repeated to fill F.

        Args:
            frames: oldest first; empty at the beginning of an episode.
            ob: raw observation.
            lang_emb: vector of the instruction, if any.

        Raises:
            UserError: the observation does not fit, or an instruction is missing.
        """
        if self.instructions is not None and LANGUAGE_KEY not in ob:
            if lang_emb is None:
                shown = "; ".join(f"'{name}'" for name in self.instructions.names[:10])
                raise UserError(
                    f"the policy was trained on several tasks: name one with start_episode(lang=...): {shown}"
                )
            ob = {**ob, LANGUAGE_KEY: lang_emb}
        newest, count = self._obs.prepare(ob), self.spec.frames
        return (*(frames or (newest,) * count), newest)[-count:]

    def goal(self, goal: Mapping[str, Any] | None) -> Arrays:
        """Return the prepared goal; empty for a policy without goals."""
        return self._goal.prepare(goal or {}) if self.spec.schema.goals else {}

    def predict(
        self, frames: Frames, goal: Arrays, memory: Memory, noise: Arrays
    ) -> tuple[Actions, Memory]:
        """Return the predicted actions (K, A) in the units of the data, not clipped, and the next memory.

        Args:
            frames: frames from :meth:`observe`.
            goal: goal from :meth:`goal`.
            memory: memory from the previous prediction, or :attr:`memory`.
            noise: random numbers from a :class:`NoiseSource`.
        """
        feed: dict[str, NDArray[Any]] = dict(noise)
        for key, value in frames[-1].items():
            several = self.spec.frames > 1
            feed[f"obs/{key}"] = (np.stack([x[key] for x in frames]) if several else value)[None]
        for key, value in goal.items():
            feed[f"goal/{key}"] = value[None]
        for name, value in memory.items():
            feed[f"memory/{name}"] = value
        given = self._graph.run(feed)
        actions: Actions = given["actions"][0].astype(np.float64)
        return actions, {name: given[f"next/{name}"] for name in memory}

    def replay(self, bundle: Bundle) -> None:
        """Compare predictions with the actions that were recorded at export.

        Raises:
            BundleError: the actions differ, or too few were recorded.
        """
        checks = bundle.description.get("checks")
        if not isinstance(checks, list) or len(checks) < FEWEST_CHECKS:
            raise BundleError(
                f"the bundle has fewer than {FEWEST_CHECKS} recorded actions to compare with: export it "
                "again"
            )
        frames: Frames = ()
        memory, execution = self.memory, self.spec.execution
        shape = (1 if execution is None else execution.size, self.spec.schema.action_dim)
        for number, check in enumerate(checks):
            try:
                obs, goal = (
                    {str(key): bundle.array(value) for key, value in check[group].items()}
                    for group in ("obs", "goal")
                )
                kinds = [kind for kind, count in asdict(self.spec.noise).items() if count]
                noise = {f"noise/{kind}": bundle.array(check[kind]) for kind in kinds}
                expected = bundle.array(check["actions"])
            except (KeyError, TypeError, AttributeError) as error:
                raise BundleError(
                    f"recorded action {number} lacks {error}: export the bundle again"
                ) from error
            frames = self.observe(frames, obs, None)
            actions, memory = self.predict(frames, self.goal(goal), memory, noise)
            if not actions.shape == expected.shape == shape:
                raise BundleError(
                    f"the networks predict actions of shape {actions.shape}; expected {shape}: export "
                    "the bundle again"
                )
            error_size = np.abs(actions - expected) / np.maximum(np.abs(expected), 1.0)
            if not (error_size <= TOLERANCE).all():
                raise BundleError(
                    f"the networks do not reproduce the recorded actions here (check {number}: difference "
                    f"{float(error_size.max()):.2g}, at most {TOLERANCE:g} allowed): the bundle was changed, or "
                    "onnxruntime computes differently on this machine; export it again, or deploy the checkpoint"
                )


def _instructions(spec: BundleSpec, bundle: Bundle) -> Instructions | None:
    """Return the table of instructions, or None for a policy without instructions."""
    saved = spec.languages
    if saved is None:
        return None
    names = spec.schema.languages
    vectors = bundle.array(saved.get("vectors") or {})
    if vectors.ndim != 2 or len(vectors) != len(names) or not np.isfinite(vectors).all():
        raise BundleError(
            f"the bundle has {len(names)} instructions, but vectors of shape {vectors.shape}: export it "
            "again"
        )
    return Instructions(names, vectors.astype(np.float32), are_texts=saved.get("are_texts") is True)
