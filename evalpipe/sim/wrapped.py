"""A server model around another one: all goes through unchanged, and a subclass says what is different."""

from __future__ import annotations

from evalpipe.sim.engine import Event, Job, Rejection, ServerModel


class Wrapped:
    """See ServerModel."""

    def __init__(self, model: ServerModel) -> None:
        self._model = model

    def submit(self, job: Job, *, now: float) -> Rejection | None:
        return self._model.submit(job, now=now)

    def cancel(self, job_id: int, *, now: float) -> None:
        self._model.cancel(job_id, now=now)

    def next_event_at(self) -> float:
        return self._model.next_event_at()

    def advance(self, now: float) -> list[Event]:
        return self._model.advance(now)

    def tokens_of(self, job_id: int) -> int:
        return self._model.tokens_of(job_id)

    def resize(self, share: float) -> None:
        self._model.resize(share)

    @property
    def in_flight(self) -> int:
        return self._model.in_flight

    @property
    def running(self) -> int:
        return self._model.running

    @property
    def waiting(self) -> int:
        return self._model.waiting

    @property
    def preemptions(self) -> int:
        return self._model.preemptions

    @property
    def tokens_emitted(self) -> int:
        return self._model.tokens_emitted

    @property
    def prefill_done(self) -> int:
        return self._model.prefill_done

    @property
    def kv_used(self) -> float:
        return self._model.kv_used
