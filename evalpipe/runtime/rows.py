"""From a task and what came of it to the rows that are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from evalpipe.control.lease import Permit
from evalpipe.errors import Failure
from evalpipe.records import AttemptRecord, Completion, Request, Result, Score, Status
from evalpipe.runtime.queue import Task


@dataclass(frozen=True, slots=True)
class Origin:
    """Who writes the rows, and of which server; the same for all rows of a worker process."""

    worker: str
    writer_epoch: int
    endpoint: str
    model: str
    store_prompts: bool


@dataclass(frozen=True, slots=True)
class Sent:
    """One attempt as it left. sent_at: seconds since the Unix epoch, for people."""

    permit: Permit
    sent_at: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the scorer said: a score, nothing to say (both None), or why it could not."""

    score: Score | None = None
    error: str | None = None


def answered(task: Task, request: Request, sent: Sent, completion: Completion, verdict: Verdict, by: Origin) -> Result:
    """Make the row of an answer. One that could not be scored says why and has no score, never a zero."""
    known = completion.usage_source != "none"
    score = verdict.score
    identity = _identity(task, request, sent, by) | {"model": completion.model or by.model}  # who says it answered
    return Result(
        **identity,
        status=completion.status.value,
        response=completion.text,
        reasoning=completion.reasoning or None,
        finish_reason=completion.finish_reason,
        prompt_tokens=completion.prompt_tokens if known else None,
        output_tokens=completion.output_tokens if known else None,
        cached_tokens=completion.cached_tokens if known else None,
        usage_source=completion.usage_source,
        ttft_s=completion.ttft_s,
        rtt_s=completion.rtt_s,
        tpot_s=completion.tpot_s,
        request_id=completion.request_id or None,
        score=score.value if score else None,
        correct=score.correct if score else None,
        extracted=score.extracted if score else None,
        error_kind="scorer" if verdict.error else None,
        error_message=verdict.error,
    )


def failed(task: Task, request: Request, sent: Sent, failure: Failure, by: Origin) -> Result:
    """Make the row of an item that got no answer: no response, no score, the reason instead."""
    return Result(
        **_identity(task, request, sent, by),
        status=Status.FAILED.value,
        rtt_s=failure.rtt_s,
        request_id=failure.request_id or None,
        error_kind=failure.kind,
        error_code=failure.code or None,
        error_message=failure.message or None,
    )


def unsent(task: Task, failure: Failure, by: Origin) -> Result:
    """Make the row of an item that could not be sent at all."""
    request = Request(task.key, task.item.example.item_id, (), prompt="", prompt_sha256="")
    nothing = Sent(Permit(epoch=0, limit=0, in_flight_at_send=0), sent_at=0.0)
    row = failed(task, request, nothing, failure, by)
    return replace(row, rtt_s=None, sent_at=None, in_flight_at_send=None, limit_at_send=None, permit_epoch=None)


def attempt(task: Task, sent: Sent, outcome: Completion | Failure, by: Origin) -> AttemptRecord:
    """Make the row of one try, whatever came of it."""
    key, permit = task.key, sent.permit
    completion = outcome if isinstance(outcome, Completion) else None
    failure = outcome if isinstance(outcome, Failure) else None
    return AttemptRecord(
        item_index=key.item_index,
        repeat=key.repeat,
        generation=key.generation,
        attempt=task.tries,
        kind=failure.kind if failure else "ok",
        code=failure.code if failure else "",
        message=failure.message if failure else "",
        sent_at=sent.sent_at,
        rtt_s=outcome.rtt_s,
        ttft_s=completion.ttft_s if completion else None,
        output_tokens=completion.output_tokens if completion else 0,
        retry_after_s=failure.retry_after_s if failure else None,
        in_flight_at_send=permit.in_flight_at_send,
        limit_at_send=permit.limit,
        permit_epoch=permit.epoch,
        worker=by.worker,
    )


def _identity(task: Task, request: Request, sent: Sent, by: Origin) -> dict[str, Any]:
    """Return the columns that every row has, whatever came of the item; their names are those of Result."""
    example, key, permit = task.item.example, task.key, sent.permit
    return {
        "item_id": example.item_id,
        "item_index": key.item_index,
        "repeat": key.repeat,
        "generation": key.generation,
        "category": example.category,
        "expected": example.expected,
        "prompt": request.prompt if by.store_prompts else None,
        "wait_s": task.wait_s,
        "attempts": task.tries,
        "retry_wait_s": task.retry_wait_s,
        "in_flight_at_send": permit.in_flight_at_send,
        "limit_at_send": permit.limit,
        "sent_at": sent.sent_at,
        "endpoint": by.endpoint,
        "model": by.model,
        "prompt_sha256": request.prompt_sha256,
        "worker": by.worker,
        "writer_epoch": by.writer_epoch,
        "permit_epoch": permit.epoch,
        "metadata": example.metadata,
    }
