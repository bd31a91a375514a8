"""Items that the driver itself writes off: those that kill their workers, stored as failed with the reason."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from evalpipe.errors import Failure
from evalpipe.records import WorkItem
from evalpipe.runtime import rows
from evalpipe.runtime.committer import Committer
from evalpipe.runtime.messages import Written
from evalpipe.runtime.queue import Task
from evalpipe.runtime.session import Session
from evalpipe.store.segments import write_segment

log = logging.getLogger(__name__)

KIND = "poison"
PROCESS = "driver"


class Aside:
    """Writes failed rows for the committer to take in; used by the driver alone."""

    def __init__(self, session: Session, committer: Committer) -> None:
        self._session, self._committer = session, committer
        self._seq = 0

    def put(self, items: Sequence[WorkItem], *, reason: str) -> None:
        """Set items aside for good; `resume --failed poison` tries them again. Raises OSError when storage fails."""
        if not items:
            return
        log.warning("set aside items=%s", [item.example.item_id for item in items])
        session, committer = self._session, self._committer
        assert session.endpoint is not None, "workers had them"
        endpoint, store_prompts = session.endpoint, session.config.run.store_prompts
        origin = rows.Origin(PROCESS, committer.epoch, endpoint.base_url, endpoint.model, store_prompts)
        failure = Failure(KIND, message=f"every worker process that had this item died, the last one so: {reason}")
        self._seq += 1
        info = write_segment(
            session.store,
            [rows.unsent(Task(item, ready_at=0.0), failure, origin) for item in items],
            epoch=committer.epoch,
            writer=committer.writer,
            worker=PROCESS,
            seq=self._seq,
            spec_sha256=session.spec.sha256,
        )
        committer.add(PROCESS, [Written(self._seq, info)])
