"""Checks of the methods of :class:`Algo` that a class overrides: none is missing, all take the right arguments.

The checks are made when a class is defined and when an algorithm is built, so that a training does not fail later.
"""

import inspect
from typing import Any

from torch import nn

from imitate.errors import ConfigError

METHODS = (
    "_create_networks",
    "process_batch_for_training",
    "_select_batch",
    "train_on_batch",
    "_loss",
    "_validation_info",
    "log_info",
    "on_epoch_end",
    "set_progress",
    "set_train",
    "set_eval",
    "serialize",
    "deserialize",
    "initial_state",
    "reset_state",
    "observe_reward",
    "act",
    "_act",
    "_initial_policy_state",
    "get_action",
    "reset",
)
"""Methods of ``Algo`` that training, evaluation and deployment call."""

HOOKS = {
    "_select_batch": "process_batch_for_training",
    "_loss": "train_on_batch",
    "_act": "act",
}
"""Pairs of a hook without a default and the method that calls it; a class must define at least one of the two."""


def adapt(algo_class: Any) -> None:
    """Prepare a new subclass of ``Algo``: see :func:`_add_validation`.

    If a class overrides methods, its updates become CUDA graphs only if the class itself sets ``recordable``.
    """
    own = vars(algo_class)
    if any(map(inspect.isfunction, own.values())) and "recordable" not in own:
        algo_class.recordable = False
    _add_validation(algo_class)


def _add_validation(algo_class: Any) -> None:
    """Add validation by ``_loss`` to a class whose own ``train_on_batch`` takes only ``(batch, epoch)``."""
    own = vars(algo_class).get("train_on_batch")
    if own is None or not _takes(own, ("batch", "epoch")) or _takes(own, ("batch", "epoch", True)):
        return

    def train_on_batch(self: Any, batch: Any, epoch: int, validate: bool = False) -> Any:
        """Make one update, or with ``validate`` only compute the losses of ``_loss``."""
        if validate:
            return super(algo_class, self).train_on_batch(batch, epoch, validate=True)
        return own(self, batch, epoch)

    train_on_batch.only_updates = True  # type: ignore[attr-defined]
    algo_class.train_on_batch = train_on_batch


def check_overrides(algo_class: Any, contract: Any, *, validates: bool) -> None:
    """Raise ConfigError for a class that lacks methods of ``Algo``, or whose methods have wrong arguments.

    Args:
        algo_class: class that a function decorated with ``register_algo_factory_func`` returned.
        contract: the class ``Algo``.
        validates: true if losses are to be measured without an update.

    Raises:
        ConfigError: the class has problems; the message has one line per problem.
    """
    if not inspect.isclass(algo_class) or not issubclass(algo_class, contract):
        raise ConfigError(
            f"the registered function returned {algo_class!r}: wanted a subclass of imitate.Algo"
        )
    problems = [
        f"{algo_class.__name__}: has neither {hook}() nor {method}() of its own: write {hook}()"
        for hook, method in HOOKS.items()
        if not _own(algo_class, contract, hook) and not _own(algo_class, contract, method)
    ]
    problems += [
        f"{algo_class.__name__}: has no {name}() of its own: write it"
        for name in sorted(getattr(algo_class, "__abstractmethods__", ()))
    ]
    for name in METHODS:
        problems += _signature_problem(algo_class, contract, name)
    only_updates = getattr(getattr(algo_class, "train_on_batch", None), "only_updates", False)
    if validates and only_updates and not _own(algo_class, contract, "_loss"):
        problems.append(
            f"experiment.validate: is true, but {algo_class.__name__}.train_on_batch(batch, epoch) takes no validate, "
            "and there is no _loss(batch) to measure: write one of the two, or set it to false"
        )
    if problems:
        raise ConfigError("\n".join(problems))


def check_networks(algo: Any) -> None:
    """Refuse an algorithm without ``nets``, or whose ``nets`` do not use a configured network or observation.

    Raises:
        ConfigError: ``nets`` was not set, a network of ``algo.networks`` is not used, or observations of the group
            ``critic`` are not seen.
    """
    if not isinstance(getattr(algo, "nets", None), nn.ModuleDict):
        raise ConfigError(
            f"{type(algo).__name__}._create_networks() set no self.nets: set it to an nn.ModuleDict of networks"
        )
    algo.encoding.own.check_used(algo.global_config.algo_name)
    _check_critics(algo)


def _check_critics(algo: Any) -> None:
    """Raise ConfigError unless the observations of group ``critic`` are seen, and only by networks that do not act."""
    wanted = set(algo.encoding.shapes("critic"))
    acting = {name.partition(".")[0] for name in (algo.main_net, *algo.acting_nets)}
    seen = set()
    for path, module in algo.nets.named_modules() if wanted else ():
        name, _, part = path.partition(".")
        keys = wanted & set(getattr(module, "obs_shapes", ()))
        unused = getattr(algo.nets[name], "unused_to_act", ()) if name else ()
        acts = name in acting and part.partition(".")[0] not in unused
        seen |= set() if acts else keys
        if acts and keys:
            raise ConfigError(_critics_words(algo, wanted, "its critics are needed to act"))
    if seen != wanted:
        raise ConfigError(_critics_words(algo, wanted - seen, "it has no critics that see them"))


def _critics_words(algo: Any, keys: set[str], why: str) -> str:
    return (
        f"observation.modalities.critic lists {', '.join(sorted(keys))}, which {algo.global_config.algo_name} cannot "
        f"use: {why}; list them in obs, or leave them out"
    )


def selected_batch(algo: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Return the result of an algorithm's ``_select_batch``. Raises ConfigError if it is None."""
    selected: dict[str, Any] | None = algo._select_batch(batch)
    if selected is None:
        raise ConfigError(f"{type(algo).__name__}._select_batch() returned None: return a dict")
    return selected


def checked_loss(algo: Any, outcome: Any) -> Any:
    """Return the result of an algorithm's ``_loss``. Raises ConfigError if it is not a pair."""
    if not isinstance(outcome, tuple) or len(outcome) != 2:
        raise ConfigError(
            f"{type(algo).__name__}._loss() returned {type(outcome).__name__}: return the loss and what to "
            "log, as in: return loss, {'Loss': loss}"
        )
    return outcome


def wrong_step(algo: Any, step: Any) -> ConfigError:
    """Return the error for a result of an algorithm's ``_act`` that is not a ``PolicyStep``."""
    return ConfigError(
        f"{type(algo).__name__}._act() returned {type(step).__name__}: return PolicyStep(action, state, {{}})"
    )


def _own(algo_class: Any, contract: Any, name: str) -> bool:
    return getattr(algo_class, name) is not getattr(contract, name)


def _signature_problem(algo_class: Any, contract: Any, name: str) -> list[str]:
    if not _own(algo_class, contract, name):
        return []
    parameters = list(inspect.signature(getattr(contract, name)).parameters.values())[1:]
    by_place = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    own = getattr(algo_class, name)
    if _takes(own, by_place, by_name):
        return []
    return [
        f"{algo_class.__name__}.{name}{inspect.signature(own)} cannot be called as "
        f"{name}{inspect.signature(getattr(contract, name)).replace(return_annotation=inspect.Signature.empty)}: "
        "take the same arguments"
    ]


def _takes(method: Any, by_place: Any, by_name: Any = ()) -> bool:
    """Return True if a method can be called with these positional and named arguments, beside self."""
    try:
        inspect.signature(method).bind(None, *by_place, **dict.fromkeys(by_name))
    except TypeError:
        return False
    return True
