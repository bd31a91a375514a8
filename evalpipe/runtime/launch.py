"""An open session conducted on Ray."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from evalpipe.runtime.conduct import conduct, worker_count
from evalpipe.runtime.controller import quota_of
from evalpipe.runtime.driver import Outcome
from evalpipe.runtime.fleet import RayFleet, cores
from evalpipe.runtime.place import output_of
from evalpipe.runtime.progress import Progress
from evalpipe.runtime.session import Session
from evalpipe.runtime.signals import StopSignals
from evalpipe.store.open import open_store


def launch(session: Session, *, show: Callable[[Progress], None], say: Callable[[str], None]) -> Outcome:
    """Do what the session owes. say: told one line at a time what is being waited for.

    Raises Fenced when another driver took this run, ConfigError when there is no Ray where one was named.
    """
    assert session.ray is not None, "a session with work left has begun to start Ray"
    session.ray.result()
    workers = worker_count(session, cores=cores())
    make_fleet = partial(RayFleet, session.config.control, workers, quota=quota_of(session.config.quota))
    shelf = open_store(output_of(session.config))
    with StopSignals() as signals:
        return conduct(
            session, make_fleet=make_fleet, workers=workers, signals=signals, show=show, say=say, shelf=shelf
        )
