"""The best fixed limit of each case and seed, kept in a table so that it need not be sought each time.

An entry is believed only if two things hold. Its key is a hash of the scenario's values, the seed, and the source of
the server models. And the run at the limit, which every race makes anyway, takes exactly as long as it did: that covers
jobs, workers and control, whose code changes far more often than what it does to a fixed limit. Else the limit is
sought anew; `evalpipe sim race --oracle` writes the table.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evalpipe.control.build import build_law
from evalpipe.sim.scenario import FIXED, Played, Scenario
from evalpipe.sim.search import find_best

TABLE = Path(__file__).with_name("oracle.json")
#: The code of the servers and of the way to them; a word changed in one of them changes every key.
MODELS = ("batching", "cliff", "decode", "gateway", "manners", "quota", "replicas", "trouble")
SAME = 1e-9  # relative: another machine's logarithm may differ in the last bit
FINENESS, SHARP = 0.05, 0.02  # of the search: valleys are flat, but not where a server collapses or its queue ends
HORIZON_S = 20_000.0  # beyond it nothing is worth waiting for


@dataclass(frozen=True, slots=True)
class Entry:
    """limit: the best fixed one; makespan_s: of its run; tried: how many were."""

    key: str
    limit: int
    makespan_s: float
    tried: int


@dataclass(frozen=True, slots=True)
class Best:
    """A believed or new entry, and the run at its limit. is_new: it was sought now."""

    entry: Entry
    played: Played
    is_new: bool


def best_of(scenario: Scenario, *, seed: int, entry: Entry | None) -> Best:
    """Return the best fixed limit and its run. entry: what the table says, None for nothing."""
    plain = scenario.plain()
    key = key_of(plain, seed)
    if entry is not None and entry.key == key:
        played = play_fixed(plain, entry.limit, seed=seed)
        if math.isclose(makespan_s(played), entry.makespan_s, rel_tol=SAME):
            return Best(entry, played, is_new=False)

    def seconds_of(limit: int, within_s: float) -> float:
        played = play_fixed(plain, limit, seed=seed, horizon_s=min(within_s, HORIZON_S))
        return math.inf if any(run.unfinished for run in played.ours) else makespan_s(played)

    fineness = SHARP if plain.has_edge else FINENESS
    found = find_best(seconds_of, max_limit=plain.max_limit, near=plain.near, fineness=fineness)
    return Best(
        Entry(key, found.limit, found.seconds, found.tried), play_fixed(plain, found.limit, seed=seed), is_new=True
    )


def play_fixed(scenario: Scenario, limit: int, *, seed: int, horizon_s: float = HORIZON_S) -> Played:
    return scenario.play(lambda: build_law(FIXED, start=limit), seed=seed, horizon_s=horizon_s)


def makespan_s(played: Played) -> float:
    """Return how long the last of our runs took."""
    return max(run.makespan_s for run in played.ours)


def key_of(scenario: Scenario, seed: int) -> str:
    """Return a hash of everything that a run at a fixed limit is given, and of the code of the models."""
    return hashlib.sha256(f"{_told(scenario)}/{seed}/{_models()}".encode()).hexdigest()[:16]


def _told(value: Any) -> str:
    """Write a value down without what is as usual: a new field must not make every entry stale."""
    if isinstance(value, tuple):
        return f"[{' '.join(map(_told, value))}]"
    if not is_dataclass(value):
        return repr(value)
    given = {field.name: getattr(value, field.name) for field in fields(value) if not _is_usual(value, field)}
    return f"{type(value).__name__}({' '.join(f'{name}={_told(each)}' for name, each in given.items())})"


def _is_usual(value: Any, field: Field[Any]) -> bool:
    usual = field.default if field.default_factory is MISSING else field.default_factory()
    return bool(getattr(value, field.name) == usual)


@cache
def _models() -> str:
    """Hash the models' source, without comments' lines and empty ones: they change nothing."""
    folder = Path(__file__).parent
    lines = [line for name in MODELS for line in (folder / f"{name}.py").read_text(encoding="utf-8").splitlines()]
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()


def read_table(path: Path = TABLE) -> dict[str, Entry]:
    """Return the entries by `name #seed`; none when there is no table."""
    if not path.exists():
        return {}
    return {name: Entry(**entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def write_table(entries: Mapping[str, Entry], path: Path = TABLE) -> None:
    """Write the table, a line an entry, in order of names."""
    lines = [f" {json.dumps(name)}: {json.dumps(asdict(entries[name]))}" for name in sorted(entries)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def place_of(name: str, seed: int) -> str:
    """Return under which name an entry is kept."""
    return f"{name} #{seed}"


def without_strangers(entries: Mapping[str, Entry], names: Iterable[str]) -> dict[str, Entry]:
    """Return the entries of the cases named."""
    known = set(names)
    return {place: entry for place, entry in entries.items() if place.rsplit(" #", 1)[0] in known}
