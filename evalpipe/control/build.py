"""From a name and plain settings to a law. Every mistake of the user ends here, as a ConfigError, before any work."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from evalpipe.control.aimd import AimdLaw, AimdPublishedLaw
from evalpipe.control.bbr import BbrPublishedLaw
from evalpipe.control.either import EitherLaw
from evalpipe.control.fixed import FixedLaw
from evalpipe.control.gradient import GradientLaw
from evalpipe.control.gradient2 import Gradient2Law
from evalpipe.control.gradient_published import GradientPublishedLaw
from evalpipe.control.law import Bounds, Law, LawState
from evalpipe.control.progress import ProgressLaw
from evalpipe.control.regress import RegressLaw
from evalpipe.errors import ConfigError, StateError

AUTO = "auto"
AUTO_LAW = "regress"
AUTO_WHY = "auto means regress: the least mean over sixty kinds of server and trouble (docs/control.md)"
#: laws that are not for every server, and why; told at the start of a run
NOT_FOR_ALL = dict.fromkeys(
    ("progress", "progress-or-regress"),
    "best where first tokens come promptly; it starves where they come late without a queue: models that think in"
    " silence, gateways that hold requests",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a law is made: its class, called as law(bounds, state=, **options), and its bounds where none are given."""

    law: Callable[..., Law]
    start: float = 16.0
    min_limit: float = 1.0
    max_limit: float = 512.0

    def bounds(self, *, start: float | None, min_limit: float | None, max_limit: float | None) -> Bounds:
        """Fill in what was not given. A default gives way to what was given, never the other way round."""
        given = [value for value in (start, min_limit, max_limit) if value is not None]
        low = min([self.min_limit, *given]) if min_limit is None else min_limit
        high = max([self.max_limit, *given]) if max_limit is None else max_limit
        first = min(max(self.start, low), high) if start is None else start
        return Bounds(float(first), float(low), float(high))

    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Return the keyword parameters of the law by name, `state` among them, with real types as annotations."""
        every = inspect.signature(self.law, eval_str=True).parameters
        return {name: parameter for name, parameter in every.items() if name != "bounds"}


#: Every law by the name users write. The published ones keep the bounds of their publication.
RECIPES: Mapping[str, Recipe] = {
    "aimd": Recipe(AimdLaw),
    "aimd-published": Recipe(AimdPublishedLaw, start=16.0, min_limit=2.0, max_limit=128.0),
    "bbr-published": Recipe(BbrPublishedLaw, start=20.0, min_limit=5.0, max_limit=200.0),
    "fixed": Recipe(FixedLaw),
    "gradient": Recipe(GradientLaw),
    "gradient2": Recipe(Gradient2Law, start=20.0, min_limit=20.0, max_limit=200.0),
    "gradient-published": Recipe(GradientPublishedLaw, start=16.0, min_limit=2.0, max_limit=128.0),
    "progress": Recipe(ProgressLaw, start=2.0, max_limit=1024.0),
    "progress-or-regress": Recipe(EitherLaw, start=2.0, max_limit=1024.0),
    "regress": Recipe(RegressLaw, max_limit=1024.0),
}
LAW_NAMES = (AUTO, *RECIPES)


def build_law(
    name: str,
    *,
    start: float | None = None,
    min_limit: float | None = None,
    max_limit: float | None = None,
    state: Mapping[str, Any] | LawState | None = None,
    **options: Any,
) -> Law:
    """Build a law by name.

    start, min_limit, max_limit: permits, None for the law's own. state: of the same law, as dataclasses.asdict gives
    it (warm start, resume), or the dataclass itself, which the law then owns; its limit is brought within the bounds
    and stands in for `start`.
    options: the law's keyword parameters. Raises ConfigError for an unknown law, an unknown option or a value that
    cannot be; StateError for a state that is not this law's.
    """
    resolved, _ = resolve_law(name)
    recipe = RECIPES[resolved]
    _check_limits(start=start, min_limit=min_limit, max_limit=max_limit)
    _check_options(resolved, options)
    bounds = recipe.bounds(start=start, min_limit=min_limit, max_limit=max_limit)
    return recipe.law(bounds, state=_restore(resolved, state, bounds), **options)


def resolve_law(name: str) -> tuple[str, str]:
    """Return the law that `name` stands for and why. Raises ConfigError for an unknown one."""
    if name == AUTO:
        return AUTO_LAW, AUTO_WHY
    if name not in RECIPES:
        raise ConfigError(f"unknown law {name!r}; {_suggest(name, LAW_NAMES)}")
    return name, NOT_FOR_ALL.get(name, "as configured")


def _check_limits(**given: float | None) -> None:
    for name, value in given.items():
        if value is not None and not (_fits(value, float) and value >= 1):
            raise ConfigError(f"{name} must be a finite number of at least 1, got {value!r}")


def _check_options(law: str, options: Mapping[str, Any]) -> None:
    known = {name: parameter for name, parameter in RECIPES[law].parameters().items() if name != "state"}
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"law {law!r} has no option {name!r}; {_suggest(name, known)}")
        if not _fits(value, known[name].annotation):
            raise ConfigError(f"law {law!r}: {name} must be {_wanted(known[name].annotation)}, got {value!r}")


def _restore(law: str, state: Mapping[str, Any] | LawState | None, bounds: Bounds) -> Any:
    if state is None:
        return None
    annotation = RECIPES[law].parameters()["state"].annotation
    state_type = next(kind for kind in get_args(annotation) if kind is not NoneType)
    try:
        restored = _revive(state_type, state)
    except TypeError as error:
        raise StateError(f"this is no state of law {law!r}: {error}; start without it") from None
    if not isinstance(restored, state_type):
        raise StateError(f"law {law!r} needs a {state_type.__name__} or its fields, got a {type(state).__name__}")
    if not _fits(restored.limit, float):
        raise StateError(f"the state of law {law!r} has no usable limit: {restored.limit!r}; start without it")
    restored.limit = bounds.clamp(restored.limit)
    return restored


def _revive(kind: Any, value: Any) -> Any:
    """Make dataclasses again of what asdict made of them, nested ones too. Raises TypeError where fields do not fit."""
    if get_origin(kind) is list:
        return [_revive(get_args(kind)[0], element) for element in value]
    if not (isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping)):
        return value
    types = get_type_hints(kind)
    return kind(**{name: _revive(types.get(name), element) for name, element in value.items()})


def _fits(value: object, annotation: Any) -> bool:
    """Tell whether a plain value may stand where a parameter is annotated so. Numbers are finite, a bool is none."""
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return any(_fits(value, kind) for kind in get_args(annotation))
    if isinstance(value, bool):
        return annotation is bool
    if annotation is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, annotation)


def _wanted(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(repr(value) for value in get_args(annotation))
    return "of type " + inspect.formatannotation(annotation)


def _suggest(name: str, known: Iterable[str]) -> str:
    every = sorted(known)
    listed = f"known: {', '.join(every) or 'none'}"
    near = difflib.get_close_matches(name, every, n=1)
    return f"did you mean {near[0]!r}? ({listed})" if near else listed
