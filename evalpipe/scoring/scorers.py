"""From the scorer a user names to one function: (Example, Completion) -> Score, or None where there is no verdict.

Truncated, filtered and refused answers are answers: they are scored by what can be extracted from them, like any other
(and counted apart in the summary). What cannot be judged raises DataError and is never a wrong answer.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from evalpipe.config import ScorerConfig
from evalpipe.errors import ConfigError, DataError
from evalpipe.records import Completion, Example, Score
from evalpipe.scoring import compare, mathematics
from evalpipe.scoring.extract import extract_answer, extract_json
from evalpipe.scoring.numbers import parse_number

ScoreFunction = Callable[[Example, Completion], Score | None]
Extraction = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one example is judged. needs_reference: without a reference answer there is no verdict."""

    extract: Extraction
    comparison: compare.Comparison
    needs_reference: bool = True

    def judge(self, example: Example, completion: Completion) -> Score | None:
        """Return the verdict; an answer in which nothing is found is wrong. Raises ValueError on a bad reference."""
        if self.needs_reference and example.expected is None:
            return None
        extracted = self.extract(completion.text)
        return _score(self.comparison(example.expected or "", extracted) if extracted else 0.0, extracted)


@dataclass(frozen=True, slots=True)
class Scorer:
    """A named way to judge. judge may raise anything; whoever calls the Scorer sees only DataError.

    is_quick: whether an example's answer takes a few milliseconds at most, whatever it is. All else (a user's function
    or pattern, symbolic mathematics) belongs into a process of its own.
    """

    name: str
    judge: ScoreFunction
    is_quick: Callable[[Example], bool]

    def __call__(self, example: Example, completion: Completion) -> Score | None:
        """Return the verdict on one answer, None where there is nothing to compare with.

        Raises DataError, naming the item and the scorer, when the scorer failed: no verdict, not a wrong answer.
        """
        try:
            return self.judge(example, completion)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise DataError(f"scorer {self.name} cannot judge item {example.item_id!r}: {reason}") from error


def build_scorer(config: ScorerConfig) -> Scorer:
    """Build the scorer of a run; raises ConfigError on an unknown name or a wrong option.

    name: exact, numeric, choice, regex, json, math, auto, none, or a user's function as "package.module:function" or
    "package.module.function". The function takes (example, completion) and the options by name, and returns a float in
    [0, 1] or a Score; it also sees examples without a reference answer. Its module must be importable in each worker.
    """
    extract = _build_extraction(config.answer_pattern)
    if config.name in _BUILDERS:
        build = _BUILDERS[config.name]
        _check_options(build, config)
        return Scorer(config.name, build(extract, **config.options), partial(_is_quick, config))
    if ":" in config.name or "." in config.name:
        return Scorer(config.name, _build_custom(extract, config), partial(_is_quick, config))
    raise ConfigError(f"scorer.name: {_suggest(config.name, list(_BUILDERS))}, or 'module:function'")


def _is_quick(config: ScorerConfig, example: Example) -> bool:
    is_ours = config.name in _BUILDERS and config.answer_pattern is None
    kind = example.fields.get("answer_type") if config.name == "auto" else config.name
    return config.name == "none" or (is_ours and kind not in _SLOW)


def _score(value: float, extracted: str) -> Score:
    return Score(value=value, correct=value >= 1.0, extracted=extracted)


def _build_extraction(pattern: str | None) -> Extraction:
    if pattern is None:
        return extract_answer
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"scorer.answer_pattern is not a regular expression: {error}, got {pattern!r}") from None
    if compiled.groups < 1:
        raise ConfigError(f"scorer.answer_pattern needs a group (...) around the final answer, got {pattern!r}")
    return partial(extract_answer, pattern=compiled)


def _build_exact(extract: Extraction, *, case_sensitive: bool = False) -> ScoreFunction:
    if not isinstance(case_sensitive, bool):
        raise ConfigError(f"scorer.options.case_sensitive must be true or false, got {case_sensitive!r}")
    return Rule(extract, compare.exact(case_sensitive=case_sensitive)).judge


def _build_numeric(extract: Extraction, *, rel_tol: Any = None, abs_tol: Any = None) -> ScoreFunction:
    for name, value in (("rel_tol", rel_tol), ("abs_tol", abs_tol)):
        if value is not None and not compare.is_tolerance(value):
            raise ConfigError(f"scorer.options.{name} must be a number of at least 0, got {value!r}")
    return Rule(extract, compare.numeric(rel_tol=rel_tol, abs_tol=abs_tol)).judge


def _build_choice(extract: Extraction, *, column: Any = None) -> ScoreFunction:
    if column is not None and not (isinstance(column, str) and column):
        raise ConfigError(f"scorer.options.column must be the name of the column of choices, got {column!r}")

    def judge(example: Example, completion: Completion) -> Score | None:
        names = ("choices", "options") if column is None else (column,)
        found = next((example.fields[n] for n in names if n in example.fields), None)
        return Rule(extract, compare.choice(compare.read_choices(found))).judge(example, completion)

    return judge


def _build_regex(extract: Extraction, *, pattern: Any = None) -> ScoreFunction:
    try:
        comparison = compare.pattern(fixed=pattern)
    except (re.error, TypeError) as error:
        raise ConfigError(f"scorer.options.pattern must be a regular expression: {error}, got {pattern!r}") from None
    return Rule(extract, comparison, needs_reference=pattern is None).judge


def _build_math(extract: Extraction) -> ScoreFunction:
    return Rule(extract, mathematics.equal()).judge


def _build_json(extract: Extraction, *, field: Any = None) -> ScoreFunction:
    if field is not None and not (isinstance(field, str) and field):
        raise ConfigError(f"scorer.options.field must be the name of a JSON field, got {field!r}")
    comparison = compare.json_object() if field is None else compare.json_value()
    return Rule(partial(extract_json, field=field), comparison).judge


def _build_none(extract: Extraction) -> ScoreFunction:
    return lambda example, completion: None


def _build_auto(extract: Extraction) -> ScoreFunction:
    """Judge each example by its answer_type column; without one, as a number if the reference is one, else as text."""
    judges = {name: _BUILDERS[name](extract) for name in _ANSWER_TYPES}

    def judge(example: Example, completion: Completion) -> Score | None:
        kind = str(example.fields.get("answer_type"))
        if kind not in judges:
            kind = "numeric" if parse_number(example.expected or "") is not None else "exact"
        return judges[kind](example, completion)

    return judge


_BUILDERS: Mapping[str, Callable[..., ScoreFunction]] = {
    "exact": _build_exact,
    "numeric": _build_numeric,
    "choice": _build_choice,
    "regex": _build_regex,
    "json": _build_json,
    "math": _build_math,
    "auto": _build_auto,
    "none": _build_none,
}
_ANSWER_TYPES = ("exact", "numeric", "choice", "regex", "json")
_SLOW = frozenset({"regex", "math"})


def _build_custom(extract: Extraction, config: ScorerConfig) -> ScoreFunction:
    function = partial(_load(config), **config.options)

    def judge(example: Example, completion: Completion) -> Score:
        verdict = function(example, completion)
        if isinstance(verdict, Score):
            return verdict
        if isinstance(verdict, Real) and 0 <= float(verdict) <= 1:  # false for NaN
            return _score(float(verdict), extract(completion.text))
        raise TypeError(f"it must return a number in [0, 1] or a Score, got {verdict!r:.60}")

    return judge


def _load(config: ScorerConfig) -> Callable[..., Any]:
    separator = ":" if ":" in config.name else "."
    module, _, attribute = config.name.rpartition(separator)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ConfigError(f"scorer.name: cannot load {config.name!r}: {type(error).__name__}: {error}") from error
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigError(f"scorer.name: {config.name!r} must be a plain function, got {type(function).__name__}")
    try:
        inspect.signature(function).bind(None, None, **config.options)
    except (TypeError, ValueError) as error:  # ValueError: a built-in without a signature
        raise ConfigError(
            f"scorer {config.name!r} must take (example, completion) and the options {sorted(config.options)}: {error}"
        ) from None
    return function  # type: ignore[no-any-return]


def _check_options(build: Callable[..., Any], config: ScorerConfig) -> None:
    known = [p.name for p in inspect.signature(build).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in config.options:
        if name not in known:
            raise ConfigError(f"scorer.options of {config.name}: {_suggest(name, known)}")


def _suggest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}")
