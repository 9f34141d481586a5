"""The JSON schema of a configuration, the table of its keys, and what each key means."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import Field, create_model

from imitate.config.algorithms import find
from imitate.config.config import Config
from imitate.config.observation import ObservationConfig
from imitate.config.section import OpenSection, Section, SectionChoice


def json_schema(algo_name: str) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a configuration of the algorithm."""
    section = find(algo_name).section
    name: Any = Literal[algo_name]
    fields: dict[str, Any] = {"algo_name": (name, ...), "algo": (section, section())}
    observed = section.observations or ObservationConfig
    words = Config.model_fields["observation"].description
    fields["observation"] = (observed, Field(observed(), description=words))
    model = create_model("Config", __base__=Config, **fields)
    schema: dict[str, Any] = _without_noise(model.model_json_schema())
    found = schema["$defs"]
    for node in (schema["properties"]["algo"], found["PrioritizedConfig"]):
        _allow_schedules(node, found, set())
    found["Schedule"] = _SCHEDULE
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["description"] = f"Configuration of the algorithm '{algo_name}'."
    schema["properties"]["$schema"] = {"type": "string", "description": "This file."}
    return schema


def schema_text(algo_name: str) -> str:
    """Return the text of ``configs/schema/<algo_name>.json``."""
    return json.dumps(json_schema(algo_name), indent=2) + "\n"


_SCHEDULE: dict[str, Any] = {
    "description": "Value by the finished fraction of the training, linear between the points [fraction, value]. It is "
    "refused where a number is read only once, before the training.",
    "type": "object",
    "properties": {
        "schedule": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "array",
                "prefixItems": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "number"}],
                "minItems": 2,
                "maxItems": 2,
            },
        }
    },
    "required": ["schedule"],
    "additionalProperties": False,
}
_LIMITS = ("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _allow_schedules(node: Any, found: dict[str, Any], seen: set[str]) -> None:
    """Allow a schedule for each float in a schema and its nested schemas, except in optimizers."""
    if isinstance(node, list):
        for item in node:
            _allow_schedules(item, found, seen)
    if not isinstance(node, dict):
        return
    name = str(node.get("$ref", "")).rpartition("/")[2]
    if name and name not in seen:
        seen.add(name)
        _allow_schedules(found[name], found, seen)
    for key, value in node.get("properties", {}).items():
        kinds = value.get("anyOf", [value])
        if any(kind.get("type") == "number" for kind in kinds):
            own = {key: value.pop(key) for key in _LIMITS if key in value}
            value["anyOf"] = [*value.get("anyOf", [own]), {"$ref": "#/$defs/Schedule"}]
        elif key not in ("optim_params", "optimizer"):
            _allow_schedules(value, found, seen)
    for part in ("anyOf", "oneOf", "additionalProperties"):
        _allow_schedules(node.get(part), found, seen)


def _without_noise(node: Any) -> Any:
    """Remove generated titles, and defaults of whole objects, which only repeat the defaults of their keys."""
    if isinstance(node, list):
        return [_without_noise(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_noise(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and isinstance(value, dict))
    }


class Key(NamedTuple):
    """One row of the table of keys: dotted path, type, default and meaning of a key."""

    path: str
    kind: str
    default: str
    meaning: str


def keys(section: type[Section] | Section, prefix: str) -> Iterator[Key]:
    """Yield every key of a section and of its subsections, in order.

    Args:
        section: class of the section, or an instance, whose values are then shown as defaults.
        prefix: dotted key of the section itself.
    """
    if isinstance(section, Section):
        yield from _keys(type(section), prefix, section, with_entries=True)
    else:
        yield from _keys(section, prefix, None)


def _keys(
    section: type[Section], prefix: str, values: Section | None, *, with_entries: bool = False
) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        default = (
            field.get_default(call_default_factory=True) if values is None else _value(values, name)
        )
        inner = field.annotation
        if isinstance(default, Section) and type(default) is not OpenSection:
            # The value may be of a subclass of the declared type, for example the section of a kind.
            inner = type(default)
        wanted = kind(inner) + _range(field.metadata)
        meaning = field.description or ""
        if isinstance(inner, type) and issubclass(inner, Section) and inner is not OpenSection:
            yield from _keys(inner, path, default, with_entries=with_entries)
        elif field.is_required() and values is None:
            yield Key(path, wanted, "required", meaning)
        else:
            yield Key(path, wanted, _text(default), meaning)
    if values is not None and with_entries:
        yield from _keys_of_entries(section, prefix, values)
    entry = section.entry_type
    if entry is not None:
        kind_of_entry = entry.section_of(None) if isinstance(entry, SectionChoice) else entry
        yield from _keys(kind_of_entry, f"{prefix}.<name>", None)


def _value(values: Section, name: str) -> Any:
    """Return the value of a key, or its schedule in the form of the JSON file."""
    return values.plain(name) if name not in values.__dict__ else values[name]


def _keys_of_entries(section: type[Section], prefix: str, values: Section) -> Iterator[Key]:
    meaning = (section.__doc__ or "").partition("\n")[0]
    for name, value in values.items():
        if name in section.model_fields:
            continue
        if isinstance(value, Section) and type(value) is not OpenSection:
            yield from _keys(type(value), f"{prefix}.{name}", value, with_entries=True)
        else:
            yield Key(f"{prefix}.{name}", "", _text(value), meaning)


def kind(annotation: Any) -> str:
    """Describe a type in JSON's terms."""
    if annotation in _KINDS:
        return _KINDS[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in args)
    if origin is tuple:
        return f"list of {kind(args[0])}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, Section)):
        return "object"
    if hasattr(annotation, "__metadata__"):  # Annotated
        return kind(args[0]) + _range(annotation.__metadata__)
    return " or ".join(kind(arg) for arg in args)


def _range(metadata: Iterable[object]) -> str:
    """Describe the limits in a field's metadata, for example `` > 0``; ignore other metadata."""
    signs = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
    limits = [(sign, getattr(m, name, None)) for m in metadata for name, sign in signs]
    return "".join(f" {sign} {limit}" for sign, limit in limits if limit is not None)


_KINDS: dict[Any, str] = {
    bool: "true/false",
    int: "integer",
    float: "number",
    str: "text",
    type(None): "null",
    Any: "any",
}


def _text(value: object) -> str:
    return f"`{json.dumps(value, default=Section.to_dict)}`"


def table(section: type[Section], prefix: str) -> str:
    """Return a Markdown table of the keys of a section."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{k.path}` | {k.kind} | {k.default} | {k.meaning} |" for k in keys(section, prefix)
    ]
    return "\n".join(rows) + "\n"


Applies = Callable[[Any, Config], bool]
"""Function of a key's value and the configuration; returns true if a difference from robomimic matters for the file."""


class Difference(NamedTuple):
    """Difference from robomimic in the meaning of some keys, and the condition under which it matters.

    In ``pattern``, ``*`` matches any characters.
    """

    pattern: str
    words: str
    applies: Applies = lambda value, config: True


def _set(value: object, config: Config) -> bool:
    """Return true if the key has a value other than null, false or an empty list."""
    return bool(value)


def _unset(value: object, config: Config) -> bool:
    return not value


def _rate_moves(value: object, config: Config) -> bool:
    return bool(value) and config.experiment.validate


def _windows(value: object, config: Config) -> bool:
    return bool(value) and config.train.seq_length > 1


def _several(value: object, config: Config) -> bool:
    return isinstance(value, int) and value > 1


def _mended_randomizer(value: Any, config: Config) -> bool:
    names = [value] if isinstance(value, str) else value or []
    return bool({"GaussianNoiseRandomizer", "CropRandomizer"} & set(names))


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "algo.unet.*",
        "ignored: the U-Net always has 256, 512 and 1024 channels; used here",
    ),
    Difference(
        "train.max_grad_norm",
        "used by BC only; here by every algorithm",
        lambda value, config: value is not None and config.algo_name != "bc",
    ),
    Difference(
        "*.vae.decoder.is_conditioned",
        "ignored: the decoder always sees the observation; used here",
        _unset,
    ),
    Difference(
        "algo.dd*m.prediction_type",
        "the network always learns the noise; here this key chooses the target",
        lambda value, config: value != "epsilon",
    ),
    Difference(
        "*.learning_rate.epoch_schedule",
        "the schedule also advances during validation; here only in training",
        _rate_moves,
    ),
    Difference(
        "*.learning_rate.warmup_steps",
        "the schedule also advances during validation; here only in training",
        _rate_moves,
    ),
    Difference(
        "*.learning_rate.scheduler_type",
        "the schedule also advances during validation; here only in training",
        lambda value, config: value == "cosine" and config.experiment.validate,
    ),
    Difference(
        "experiment.additional_envs",
        "only the last environment is evaluated; here all are",
        lambda value, config: bool(value) and len(value) > 1,
    ),
    Difference(
        "experiment.validate",
        "the validation loss of stochastic policies uses the small noise of acting, 1e-4; here the learned noise",
        _set,
    ),
    Difference("experiment.keep_all_videos", "ignored; used here", _set),
    Difference(
        "experiment.rollout.n",
        "episodes are not seeded; here they are (experiment.rollout.seed)",
    ),
    Difference(
        "train.hdf5_cache_mode",
        "'all' keeps every overlapping window in RAM; here data are never held twice",
        lambda value, config: value == "all",
    ),
    Difference(
        "train.action_config.*.normalization",
        "validation data are normalized by their own statistics; here by the training data's",
        lambda value, config: value in ("min_max", "gaussian") and config.experiment.validate,
    ),
    Difference(
        "train.hdf5_normalize_obs",
        "0.001 is added to standard deviations; here they are at least 0.01. Imported policies keep robomimic's values",
        _set,
    ),
    Difference(
        "train.pad_seq_length",
        "padded steps are learned from; here they are left out of the loss",
        _windows,
    ),
    Difference(
        "train.frame_stack",
        "networks without memory learn from the oldest frame only; here from all",
        _several,
    ),
    Difference(
        "algo.transformer.pred_future_acs",
        "acts on the oldest observation of the window; here on the newest, unless algo.transformer.causal is true",
        _set,
    ),
    Difference(
        "algo.rnn.kwargs.bidirectional",
        "accepted; here refused, since a policy cannot see the future",
        _set,
    ),
    Difference(
        "algo.subgoal_update_interval",
        "the actor of hbc and iris sees no subgoal; here it does",
    ),
    Difference(
        "algo.critic.distributional.*",
        "projects the target to two atoms; here to all of them",
    ),
    Difference(
        "observation.encoder.*.obs_randomizer_class",
        "GaussianNoiseRandomizer adds uniform noise in [0, 1), crops never reach the last row and column; not so here",
        _mended_randomizer,
    ),
    Difference(
        "observation.encoder.*.core_kwargs.backbone_kwargs.pretrained",
        "pretrained trunks see colours in [0, 1]; here as they were trained, unless imagenet_normalization is false",
        _set,
    ),
    Difference(
        "observation.encoder.*.core_kwargs.backbone_kwargs.output_channel",
        "ignored by ShallowConv; used here",
    ),
    Difference(
        "algo.ema.*",
        "the number of updates is not saved, so a resumed run overwrites the average; saved here",
    ),
)
"""Keys with another effect in robomimic. Keys of a section with ``enabled`` false are not reported."""


class Explanation(NamedTuple):
    """Explanation of one key that a file sets: its value, meaning, and difference from robomimic ('' for none)."""

    path: str
    value: object
    meaning: str
    robomimic: str


def explain(tree: Mapping[str, Any], config: Config) -> Iterator[Explanation]:
    """Yield an explanation of each value that a file sets.

    Args:
        tree: the content of the file.
        config: the configuration loaded from it.
    """
    known = [
        *keys(config, ""),
    ]
    for path, value in _leaves(tree, ()):
        yield Explanation(path, value, _meaning(path, known), _difference(path, value, config))


def _leaves(node: object, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaves(value, (*path, str(key)))
    elif path and path != ("$schema",):
        yield ".".join(path), node


def _meaning(path: str, known: list[Key]) -> str:
    """Return the meaning of the key, or of the free-form object that contains it."""
    if path == "algo_name":
        return "The algorithm."
    for key in known:
        pattern = re.escape(key.path).replace("<name>", "[^.]+")
        if re.fullmatch(rf"{pattern}(\..+)?", path):
            return key.meaning
    return "has no effect, dropped"


def _difference(path: str, value: object, config: Config) -> str:
    """Return the difference from robomimic that matters for the file, or an empty string."""
    if _is_off(path, config):
        return ""
    for difference in DIFFERENCES:
        pattern = re.escape(difference.pattern).replace(r"\*", ".*")
        if re.fullmatch(pattern, path) and difference.applies(value, config):
            return difference.words
    return ""


def _is_off(path: str, config: Config) -> bool:
    """Return true if the key is in a section with ``enabled`` false, or in the encoder of an unused modality."""
    node: object = config
    names = path.split(".")
    for name in names[:-1]:
        if not isinstance(node, Section) or name not in node:
            break
        node = node[name]
        if isinstance(node, Section) and node.get("enabled") is False:
            return True
    if names[0] != "observation" or "encoder" not in names[:-2]:
        return False
    seen = config.observation.modalities_of_all()
    return names[names.index("encoder") + 1] not in {*seen, *seen.values()}


def lines(explanations: Iterator[Explanation]) -> Iterator[str]:
    """Format explanations as lines of text."""
    for one in explanations:
        yield f"{one.path} = {json.dumps(one.value)}"
        yield f"    {one.meaning}"
        if one.robomimic:
            yield f"    robomimic: {one.robomimic}"
