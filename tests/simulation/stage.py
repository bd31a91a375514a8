"""The doubles in their places while one simulation runs: Ray, names drawn at random, pids and host names.

Everything else comes in by an argument (the clock, the store's os calls, the sender); these are modules that the
product imports by name.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from simulation.hosts import Hosts
from simulation.mutations import Mutation
from simulation.ray_double import RayDouble

from evalpipe.runtime import fleet, silence
from evalpipe.store import liveness, local, process


@contextmanager
def staged(
    *,
    ray: RayDouble,
    make_worker: Callable[..., Any],
    make_controller: Callable[..., Any],
    hosts: Hosts,
    rng: random.Random,
    mutation: Mutation,
) -> Iterator[None]:
    """Put the doubles in place and take them away again. rng: of the names."""
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(patch.object(fleet, "ray", ray))
        stack.enter_context(patch.object(fleet, "WORKER", _actor_class(make_worker)))
        stack.enter_context(patch.object(fleet, "CONTROLLER", _actor_class(make_controller)))
        stack.enter_context(patch.object(uuid, "uuid4", lambda: draw_uuid(rng)))
        for module in (liveness, local, process):
            stack.enter_context(patch.object(module, "os", hosts))
        for module in (liveness, local, silence):
            stack.enter_context(patch.object(module, "socket", hosts))
        stack.enter_context(mutation.applied())
        yield


def draw_uuid(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def _actor_class(make: Callable[..., Any]) -> Any:
    """Return what Ray's decorator makes of a class: `CLASS.options(..).remote(..)`."""
    return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=make))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the package's log lines away; a run makes hundreds."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
