"""Where earlier runs settled: this run's own rows, else a small file beside the runs for each endpoint and model.

A hint and no more: what cannot be read or written is told in run.log, and the run starts cold.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from dataclasses import replace

from evalpipe.config import ControlConfig
from evalpipe.control.build import resolve_law
from evalpipe.control.warm import MEMORY, Settled, Settling
from evalpipe.errors import StateError
from evalpipe.runtime.recorder import newest_first
from evalpipe.runtime.session import Session, max_limit
from evalpipe.store import readable
from evalpipe.store.objects import NotFound, ObjectStore
from evalpipe.store.state import LogState

log = logging.getLogger(__name__)

FOLDER = "_warm/"


def settled_before(session: Session, state: LogState, shelf: ObjectStore | None) -> Settled | None:
    """Return where to begin, None for a cold start. state: of this run's log. shelf: the folder of the runs."""
    if not may_start_warm(session.config.control):
        return None
    try:
        settled = _own(session.store, state) or (None if shelf is None else _stored(session, shelf))
    except (OSError, StateError) as error:
        log.warning("cold start: where an earlier run settled cannot be read: %s", error)
        return None
    return settled and replace(settled, level=min(settled.level, max_limit(session.config.control)))


def remember(session: Session, level: float | None, shelf: ObjectStore) -> None:
    """Store where this run settled, for the next one at the same endpoint and model. level: None for nowhere."""
    if level is None or not may_start_warm(session.config.control):
        return
    where, model = _place(session)
    body = {"endpoint": where, "model": model, "level": level, "run": session.name}
    try:
        shelf.put(_key(session), readable.to_json(body))
    except OSError as error:
        log.warning("where this run settled is not stored: %s", error)


def may_start_warm(control: ControlConfig) -> bool:
    """Say whether this run begins where another settled: not where the user says where, nor with a law to the letter.

    What such a law settles at is not stored either: it tells of the law more than of the server.
    """
    law, _ = resolve_law(control.law)
    is_to_the_letter = law == "fixed" or law.endswith("-published")
    return control.warm_start and control.start is None and not is_to_the_letter


def _own(store: ObjectStore, state: LogState) -> Settled | None:
    """Return where the drivers before us settled, from the newest rows."""
    settling, left = Settling(), MEMORY
    for table in newest_first(store, state):
        rows = table.select(["limit", "in_flight", "overdue", "stalled"]).to_pylist()[-left:]
        for row in rows:
            stuck = (row["overdue"] or 0) + (row["stalled"] or 0)
            settling.add(limit=row["limit"], in_flight=row["in_flight"], stuck=stuck)
        left -= len(rows)
        if left <= 0:
            break
    return None if settling.level is None else Settled(settling.level, "resume")


def _stored(session: Session, shelf: ObjectStore) -> Settled | None:
    key = _key(session)
    try:
        level = readable.from_json(shelf.get(key), key=key).get("level")
    except NotFound:
        return None
    if isinstance(level, int | float) and math.isfinite(level):
        return Settled(float(level))
    raise StateError(f"{key} tells no level, got {level!r}; delete it")


def _place(session: Session) -> tuple[str, str]:
    """Return endpoint and model. A simulated server has another port each time: it is known by its settings."""
    assert session.endpoint is not None, "a session with work left has looked at its endpoint"
    config = session.config
    if config.is_simulated:
        options = json.dumps(config.sim.options, sort_keys=True)
        return f"{config.endpoint.base_url} {options}", session.endpoint.model
    return session.endpoint.base_url, session.endpoint.model


def _key(session: Session) -> str:
    name = hashlib.sha256(json.dumps(_place(session)).encode()).hexdigest()[:16]
    return f"{FOLDER}{name}.json"
