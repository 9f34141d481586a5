"""Registration of algorithms, and their construction from a configuration."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import torch

from imitate.algo.base.algo import Algo
from imitate.algo.base.allocation import MemoryLimit
from imitate.algo.base.overrides import check_overrides
from imitate.config import AlgoSection, Config, Section, load_config
from imitate.config import algorithms as registry
from imitate.config.section import MissingKeyError
from imitate.errors import ConfigError

USUAL_SHAPES = {"rgb": (3, 96, 96), "depth": (1, 96, 96), "scan": (1, 256)}
ToClass = Callable[[Any], tuple[type[Algo], dict[str, Any]]]
AlgoClass = TypeVar("AlgoClass", bound=Algo)
SectionClass = TypeVar("SectionClass", bound=AlgoSection)


def register_algo_factory_func(
    algo_name: str, section: type[AlgoSection] | None = None
) -> Callable[[ToClass], ToClass]:
    """Register the function that maps an algorithm's section to ``(class, keyword arguments)``.

    Args:
        algo_name: name of the algorithm in configurations; registering a name twice raises ConfigError.
        section: typed section of ``algo`` in the configuration. Without a section, every key is accepted, and only
            ``optim_params`` has a default. A class derived from an algorithm of this package uses that algorithm's
            section, such as ``BCConfig``, or a subclass of it.
    """

    def decorator(to_class: ToClass) -> ToClass:
        registry.register(algo_name, section, to_class)
        return to_class

    return decorator


def register(
    algo_name: str, section: type[AlgoSection]
) -> Callable[[type[AlgoClass]], type[AlgoClass]]:
    """Register the class of an algorithm.

    Args:
        algo_name: name of the algorithm in configurations; registering a name twice raises ConfigError.
        section: typed section of ``algo`` in the configuration.
    """

    def decorator(algo_class: type[AlgoClass]) -> type[AlgoClass]:
        def to_class(algo_config: Any) -> tuple[type[Algo], dict[str, Any]]:
            return algo_class, {}

        to_class.__module__ = algo_class.__module__
        registry.register(algo_name, section, to_class)
        return algo_class

    return decorator


def register_learner(
    algo_name: str, *, learner: str
) -> Callable[[type[SectionClass]], type[SectionClass]]:
    """Register an algorithm that is only a section: it trains another algorithm's class and fills its optional slots.

    Args:
        algo_name: name of the algorithm in configurations; registering a name twice raises ConfigError.
        learner: name of the algorithm whose class is trained.
    """

    def decorator(section: type[SectionClass]) -> type[SectionClass]:
        def to_class(algo_config: Any) -> tuple[type[Algo], dict[str, Any]]:
            found: tuple[type[Algo], dict[str, Any]] = registry.find(learner).to_class(algo_config)
            return found

        to_class.__module__ = section.__module__
        registry.register(algo_name, section, to_class)
        return section

    return decorator


def algo_factory(
    algo_name: str,
    config: Config | Mapping[str, Any],
    obs_key_shapes: Mapping[str, tuple[int, ...]],
    ac_dim: int,
    device: torch.device | str = "cpu",
    *,
    load_pretrained: bool = True,
) -> Algo:
    """Build an algorithm.

    Args:
        algo_name: name of the algorithm, which must match the configuration.
        config: the whole configuration.
        obs_key_shapes: shape of one step of each observation (and goal) key as networks see it: images are (C, H, W).
        ac_dim: action dimensions.
        device: device of the networks.
        load_pretrained: load pretrained weights of encoders; false if a checkpoint contains the weights.

    Raises:
        ConfigError: the configuration is for another algorithm, the class lacks a required method or reads a key that
            its section does not have, or the networks would not fit into memory.
    """
    if not isinstance(config, Config):
        config = load_config(dict(config))
    if config.algo_name != algo_name:
        raise ConfigError(
            f"algo_name '{algo_name}' was requested, but the configuration is for '{config.algo_name}': request "
            f"'{config.algo_name}', or load another configuration"
        )
    algo_class, kwargs = algo_class_of(config)
    try:
        with MemoryLimit():
            return _built(
                algo_class, kwargs, config, obs_key_shapes, ac_dim, device, load_pretrained
            )
    except AttributeError as error:
        if not isinstance(error.obj, Section):
            raise
        raise ConfigError(_missing_key(algo_class, config, error)) from error


def algo_class_of(config: Config) -> tuple[type[Algo], dict[str, Any]]:
    """Return the class of a configuration's algorithm, and further arguments of its constructor.

    Raises:
        ConfigError: the algorithm is unknown, or its class lacks a required method.
    """
    to_class = registry.find(config.algo_name).to_class
    try:
        found = to_class(config.algo)
    except AttributeError as error:
        if not isinstance(error.obj, Section):
            raise
        raise ConfigError(_missing_key(None, config, error)) from error
    if not isinstance(found, tuple) or len(found) != 2:
        raise ConfigError(
            f"algo_name: the function registered for '{config.algo_name}' returned {type(found).__name__}: return the "
            "class and a dict of further arguments, as in: return MyAlgo, {}"
        )
    check_overrides(found[0], Algo, validates=config.experiment.validate)
    return found


def check_algorithm(config: Config) -> None:
    """Raise ConfigError if the algorithm of a configuration cannot be built.

    An algorithm of another package reads its section when it creates its networks, so they are created here for
    observations of usual sizes.

    Raises:
        ConfigError: see :func:`algo_factory`.
    """
    algo_class, _ = algo_class_of(config)
    if algo_class.__module__.startswith(f"{registry.PACKAGE}."):
        return
    shapes = {
        key: USUAL_SHAPES.get(kind, (8,))
        for key, kind in config.observation.modalities_of_all().items()
    }
    # networks of another package may not accept these sizes
    with suppress(RuntimeError, ValueError):
        algo_factory(config.algo_name, config, shapes, ac_dim=7, load_pretrained=False)


def _built(algo_class: type[Algo], kwargs: dict[str, Any], config: Config, *rest: Any) -> Algo:
    obs_key_shapes, ac_dim, device, load_pretrained = rest
    return algo_class(
        algo_config=config.algo,
        obs_config=config.observation,
        global_config=config,
        obs_key_shapes=obs_key_shapes,
        ac_dim=ac_dim,
        device=device,
        load_pretrained=load_pretrained,
        **kwargs,
    )


def _missing_key(algo_class: type[Algo] | None, config: Config, error: AttributeError) -> str:
    """Return the message for a configuration key that an algorithm reads, but that its section does not define."""
    place = _path_of(config.algo, error.obj, "algo")
    base = None if algo_class is None else _bundled_base(algo_class)
    if algo_class is not None and base is not None:
        section = registry.find(base.__module__.rpartition(".")[-1]).section
        return (
            f"{place}.{error.name}: is read by {algo_class.__name__}, which derives from {base.__name__}, but has no "
            f"value: register '{config.algo_name}' with section={section.__name__} (from {section.__module__}), or a "
            "subclass of it, which has the defaults (docs/own_algorithm.md)"
        )
    if isinstance(error, MissingKeyError) and place in ("", "algo"):
        return str(error)
    return (
        f"{place}.{error.name}: is read by the algorithm '{config.algo_name}', but {type(error.obj).__name__} has no "
        "such key: add the field to the section, or do not read it (docs/own_algorithm.md)"
    )


def _bundled_base(algo_class: type[Algo]) -> type[Algo] | None:
    """Return the nearest base class from this package that has a section of its own, or None."""
    for base in algo_class.__mro__[1:]:
        package, _, name = base.__module__.rpartition(".")
        if package == registry.PACKAGE and base.__module__ != Algo.__module__:
            with suppress(ConfigError):
                registry.find(name)
                return base
    return None


def _path_of(section: Section, wanted: Any, path: str) -> str:
    """Return the dotted key of a section within another, or an empty string if it is not inside."""
    if section is wanted:
        return path
    for key, value in section.items():
        if isinstance(value, Section) and (found := _path_of(value, wanted, f"{path}.{key}")):
            return found
    return ""


def variant_of(algo: Algo) -> str:
    """Return the name of an algorithm's variant, such as bc_rnn_gmm, or its own name if it has no variants."""
    name, own = algo.global_config.algo_name, type(algo).__name__.lower()
    return own if own.startswith(f"{name}_") else name
