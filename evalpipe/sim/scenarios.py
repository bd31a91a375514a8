"""What is raced: courses (a server and the jobs it is given), contenders (a law with its options) and suites of both.

Data only; evalpipe/sim/race.py runs it. A new suite is a new entry of SUITES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evalpipe.control.build import RECIPES, build_law
from evalpipe.control.law import Law
from evalpipe.errors import ConfigError
from evalpipe.sim import wide
from evalpipe.sim.course import Course
from evalpipe.sim.profiles import did_you_mean, profile


@dataclass(frozen=True, slots=True)
class Contender:
    """A law by name, its options (start among them) and what the table calls it."""

    label: str
    law: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Law:
        return build_law(self.law, **self.options)


@dataclass(frozen=True, slots=True)
class Suite:
    """max_limit: the largest fixed limit worth trying; the default is the upper bound of the published law."""

    name: str
    courses: tuple[Course, ...]
    contenders: tuple[Contender, ...]
    max_limit: int = 128


def fixed(limit: int) -> Contender:
    return Contender(f"fixed {limit}", "fixed", {"start": limit})


def _cliff(name: str, sigma: float) -> Course:
    """Short prompts of one length, so that prompt + output tokens are 400 a unit of work for every job."""
    return Course(f"{name}, work spread {sigma:g}", profile(name, sigma=sigma), 2_000, prompt_median=50, prompt_sigma=0)


_GRADIENT, _REGRESS, _PROGRESS = (Contender(name, name) for name in ("gradient", "regress", "progress"))
_PLAIN = Contender("gradient-published", "gradient-published")
_NORMALISED = Contender("gradient-published, normalise: total", "gradient-published", {"normalise": "total"})
_CONTENDERS = (
    fixed(64),
    Contender("aimd-published", "aimd-published"),
    Contender("bbr-published", "bbr-published"),
    _PLAIN,
    _NORMALISED,
    _GRADIENT,
    _REGRESS,
    Contender("progress from 16", "progress", {"start": 16}),
)
_EVERY_LAW = (fixed(64), *(Contender(name, name) for name in RECIPES if name != "fixed"), _NORMALISED)

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        # the published experiment: 2,000 tasks, constant and spread work
        Suite(
            "published",
            (
                _cliff("cliff", 0.0),
                _cliff("cliff", 0.15),
                _cliff("cliff", 0.4),
                _cliff("cliff-shared", 0.0),
                _cliff("cliff-shared", 0.15),
            ),
            _CONTENDERS,
        ),
        # every law on the default server, with prompts as long as those of datasets/logic-5k.parquet
        Suite("laws", (Course("vllm", profile("vllm"), 5_000),), _EVERY_LAW),
        # servers of other kinds than the published one
        Suite(
            "servers",
            (
                Course("vllm, 64 slots", profile("vllm"), 5_000),
                Course("vllm, 256 slots", profile("vllm", slots=256), 5_000),
                Course("vllm, KV-bound", profile("vllm", slots=256, kv_tokens=20_000), 3_000, prompt_median=300),
                Course("vllm, 8 slots", profile("vllm", slots=8), 1_000),
                Course("table", profile("table"), 3_000, prompt_median=512, prompt_sigma=0),
                Course("smooth", profile("smooth"), 3_000, prompt_median=512, prompt_sigma=0),
                Course("replicas", profile("replicas"), 5_000),
            ),
            (fixed(16), fixed(64), fixed(128), Contender("aimd", "aimd"), _GRADIENT, _REGRESS, _PROGRESS),
            max_limit=512,
        ),
        # every kind of server, two draws of each
        Suite("wide", wide.courses((0, 1)), (_GRADIENT, _REGRESS, _PROGRESS), max_limit=700),
    )
}


def suite(name: str) -> Suite:
    """Return the suite of that name. Raises ConfigError naming the nearest right one."""
    if name not in SUITES:
        raise ConfigError(f"unknown suite {name!r}; {did_you_mean(name, SUITES)}")
    return SUITES[name]
