"""Workers as the driver sees them, and what it tells a new one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from evalpipe.endpoint.keys import has_key
from evalpipe.runtime.committer import Committer
from evalpipe.runtime.dispenser import CANARIES
from evalpipe.runtime.messages import WorkerSpec
from evalpipe.runtime.session import Session, max_limit


@dataclass(slots=True)
class Desk:
    """One worker as the driver sees it. wants: items it asked for; has_news: it was dealt work and has not answered.

    is_up: this process has answered; until then it may wait for a core that a lost node took away. is_lost: its lease
    ran out; it finishes and is replaced. is_idle: nothing in hand and everything written.
    """

    name: str
    incarnation: int = 0
    polled_at: float = 0.0
    wants: int = CANARIES
    finished: int = 0
    cpu_s: float = 0.0
    storage: str = ""  # why its writes fail now
    has_news: bool = False
    is_up: bool = False
    is_lost: bool = False
    is_idle: bool = False

    @property
    def process(self) -> str:
        return f"{self.name}.{self.incarnation}"

    def begin_process(self, *, wants: int) -> None:
        """Forget what the process before said. wants: items the next one is dealt before it has asked for any."""
        self.incarnation += 1
        self.wants, self.finished = wants, 0
        self.has_news = self.is_up = self.is_lost = self.is_idle = False
        self.storage = ""


def worker_spec(desk: Desk, session: Session, committer: Committer, *, workers: int) -> WorkerSpec:
    """Return all that the next process of a desk needs to start."""
    assert session.endpoint is not None, "a session with work left has looked at its endpoint"
    config = session.config
    return WorkerSpec(
        name=desk.name,
        incarnation=desk.incarnation,
        run_name=session.name,
        # with the number of workers in it: they share the run's retry budget
        config=config.model_copy(update={"run": config.run.model_copy(update={"workers": workers})}),
        base_url=session.endpoint.base_url,
        model=session.endpoint.model,
        store_url=session.store.url,
        writer=committer.writer,
        writer_epoch=committer.epoch,
        spec_sha256=session.spec.sha256,
        cap=max_limit(config.control),
        needs_key=has_key(config.endpoint.api_key_env, os.environ) and not config.is_simulated,
    )
