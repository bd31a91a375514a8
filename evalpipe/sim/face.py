"""The HTTP face of a server model: OpenAI's endpoints, vLLM's metrics, faults, the ledger. A raw ASGI application.

Requests that never reach the model's door (bad body, wrong key, unknown model) leave no trace in the ledger.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import orjson

from evalpipe.sim.answers import Answer, Answerer, read_questions
from evalpipe.sim.drive import Drive, Flight
from evalpipe.sim.engine import Job, Rejection, ServerModel
from evalpipe.sim.exchange import Connections, Exchange, Receive, Scope, Send
from evalpipe.sim.ledger import LedgerWriter
from evalpipe.sim.lobby import Lobby, Visit
from evalpipe.sim.misbehave import (
    Fault,
    FaultPlan,
    Shares,
    misbehave_at_door,
    misbehave_in_body,
    misbehave_in_stream,
)
from evalpipe.sim.profiles import Profile
from evalpipe.sim.wire import (
    HONEST,
    Ask,
    BadRequest,
    Kind,
    ReplyWriter,
    Trace,
    Twist,
    embedding_body,
    error_body,
    read_ask,
    read_trace,
    usage_of,
)

Handler = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class FaceSettings:
    """What is served. ledger, dataset: paths. faults: as FaultPlan takes them. api_key None: any key passes."""

    profile: Profile
    ledger: str | Path | None = None
    dataset: str | Path | None = None
    accuracy: float = 0.7
    seed: int = 0
    faults: Shares = field(default_factory=dict)
    api_key: str | None = field(default=None, repr=False)
    model: str = "sim"


@dataclass(frozen=True, slots=True)
class Call:
    """A request inside the server: what was asked, what will be answered, and how it is to go wrong.

    breaks: how its answer is broken, None: not. twist: what is odd about an answer that is whole.
    """

    exchange: Exchange
    ask: Ask
    visit: Visit
    answer: Answer
    breaks: Fault | None
    twist: Twist

    def leave(self, outcome: str, *, output_tokens: int) -> None:
        answer = self.answer
        self.visit.leave(
            outcome,
            text=answer.text,
            correct=answer.correct,
            prompt_tokens=self.ask.prompt_tokens,
            output_tokens=output_tokens,
        )


class Face:
    """Must be built on the event loop that serves it. Raises ConfigError for settings that cannot be served."""

    def __init__(self, settings: FaceSettings) -> None:
        self._settings = settings
        self._chunk_s = settings.profile.chunk_s
        self._faults = FaultPlan(settings.faults, seed=settings.seed)
        bank = None if settings.dataset is None else read_questions(settings.dataset)
        self._answerer = Answerer(settings.profile.answers, accuracy=settings.accuracy, seed=settings.seed, bank=bank)
        self._lobby = Lobby(None if settings.ledger is None else LedgerWriter(settings.ledger))
        self._drive = Drive(settings.profile.build(settings.seed))
        self._job_ids = itertools.count()
        self._born_ns = time.time_ns()  # in every id, so that ids stay unique across restarts on one ledger
        self.connections = Connections()
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): partial(self._generate, kind="chat"),
            ("POST", "/v1/completions"): partial(self._generate, kind="text"),
            ("POST", "/v1/embeddings"): partial(self._generate, kind="embedding"),
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/health"): self._health,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self.connections.of(scope))
        handler = self._routes.get((exchange.method, exchange.path))
        if handler is None:
            body = error_body(f"no {exchange.method} {exchange.path} here", code="not_found", kind="not_found")
            await exchange.respond(404, body)
        elif exchange.path.startswith("/v1/") and not self._is_key_right(exchange):
            body = error_body("wrong API key", code="invalid_api_key", kind="invalid_request_error")
            await exchange.respond(401, body)
        else:
            await handler(exchange)

    def _is_key_right(self, exchange: Exchange) -> bool:
        key = self._settings.api_key
        given = exchange.header("authorization") or ""
        return key is None or hmac.compare_digest(given.encode(), f"Bearer {key}".encode())

    async def _health(self, exchange: Exchange) -> None:
        await exchange.respond(200, b"", content_type="text/plain")

    async def _models(self, exchange: Exchange) -> None:
        entry = {"id": self._settings.model, "object": "model", "created": 0, "owned_by": "evalpipe"}
        await exchange.respond(200, orjson.dumps({"object": "list", "data": [entry]}))

    async def _metrics(self, exchange: Exchange) -> None:
        text = metrics_text(self._drive.model, model_name=self._settings.model)
        await exchange.respond(200, text.encode(), content_type="text/plain; version=0.0.4")

    async def _generate(self, exchange: Exchange, *, kind: Kind) -> None:
        try:
            ask = read_ask(await exchange.body(), kind=kind, model=self._settings.model)
        except BadRequest as refusal:
            await exchange.respond(refusal.status, refusal.body)
            return
        trace = read_trace(exchange.header("x-evalpipe"))
        visit = self._lobby.enter(f"sim-{self._born_ns:x}-{next(self._job_ids)}", trace)
        try:
            await self._receive(exchange, ask, visit, trace)
        finally:
            visit.leave("cancelled")

    async def _receive(self, exchange: Exchange, ask: Ask, visit: Visit, trace: Trace | None) -> None:
        """Decide at the door: a fault, a rejection, or in."""
        key = ask.text if trace is None else f"{trace.run}/{trace.item}/{trace.repeat}/{trace.generation}"
        fault = self._faults.choose(key)
        if fault is not None and fault.at_door:
            await _fail_at_door(fault, exchange, visit, is_stream=ask.stream)
            return
        if self._settings.profile.overhead_s:
            await asyncio.sleep(self._settings.profile.overhead_s)
        twist = HONEST if fault is None else fault.twist
        answer = _twisted(self._answer(ask, trace), twist)
        call = Call(exchange, ask, visit, answer, breaks=fault if twist == HONEST else None, twist=twist)
        job = Job(next(self._job_ids), ask.prompt_tokens, len(answer.tokens), answer.work)
        flight = self._drive.submit(job)
        if isinstance(flight, Rejection):
            await _reject(flight, exchange, visit)
            return
        visit.judge(200, fault="" if fault is None else fault.name)
        exchange.connection.on_gone = flight.wake
        try:
            await (self._stream(call, flight) if ask.stream else self._answer_whole(call, flight))
        finally:
            call.leave("cancelled", output_tokens=self._drive.cancel(flight))

    def _answer(self, ask: Ask, trace: Trace | None) -> Answer:
        if ask.kind == "embedding":
            return Answer([""], "stop", None, 1.0)
        question = self._answerer.find(item_id=None if trace is None else trace.item, text=ask.text)
        return self._answerer.answer(
            question,
            identity=ask.text if trace is None else trace.item,
            repeat=0 if trace is None else trace.repeat,
            prompt_tokens=ask.prompt_tokens,
            max_tokens=ask.max_tokens,
        )

    async def _answer_whole(self, call: Call, flight: Flight) -> None:
        while not flight.is_done:
            if call.exchange.is_gone:
                return
            await flight.changed()
        body = self._body(call)
        if call.breaks is not None:
            await self._break(call, flight, misbehave_in_body(call.breaks, call.exchange, honest=body))
            return
        call.leave("completed", output_tokens=flight.job.output_tokens)
        await call.exchange.respond(200, body, headers=[("x-request-id", call.visit.id)])

    def _body(self, call: Call) -> bytes:
        if call.ask.kind == "embedding":
            return embedding_body(call.ask, model=self._settings.model)
        usage = usage_of(call.ask.prompt_tokens, len(call.answer.tokens))
        return self._writer(call).whole(call.answer.text, finish_reason=call.answer.finish_reason, usage=usage)

    async def _stream(self, call: Call, flight: Flight) -> None:
        exchange, tokens, writer = call.exchange, call.answer.tokens, self._writer(call)
        while not flight.is_started:
            if exchange.is_gone:
                return
            await flight.changed()
        headers = [("x-request-id", call.visit.id), ("cache-control", "no-cache")]
        await exchange.start(200, content_type="text/event-stream; charset=utf-8", headers=headers)
        sent = max(self._drive.tokens_of(flight), 1)
        await exchange.write(writer.first("".join(tokens[:sent])))
        if call.breaks is not None:
            await self._break(call, flight, misbehave_in_stream(call.breaks, exchange))
            return
        while not flight.is_done:
            await flight.changed(within_s=self._chunk_s)
            if exchange.is_gone:
                return
            if not flight.is_done and (count := self._drive.tokens_of(flight)) > sent:
                await exchange.write(writer.more("".join(tokens[sent:count])))
                sent = count
        await self._end_stream(call, writer, sent)

    async def _end_stream(self, call: Call, writer: ReplyWriter, sent: int) -> None:
        count = len(call.answer.tokens)
        usage = usage_of(call.ask.prompt_tokens, count) if call.ask.include_usage else None
        rest = "".join(call.answer.tokens[sent:])
        call.leave("completed", output_tokens=count)
        await call.exchange.write(writer.last(rest, finish_reason=call.answer.finish_reason, usage=usage), is_last=True)

    async def _break(self, call: Call, flight: Flight, misbehaviour: Awaitable[None]) -> None:
        assert call.breaks is not None
        tokens = self._drive.cancel(flight)
        if not call.breaks.is_silent:
            call.leave(call.breaks.outcome, output_tokens=tokens)
        await misbehaviour
        call.leave(call.breaks.outcome, output_tokens=tokens)

    def _writer(self, call: Call) -> ReplyWriter:
        return ReplyWriter(call.ask.kind, call.visit.id, self._settings.model, int(time.time()), call.twist)


def _twisted(answer: Answer, twist: Twist) -> Answer:
    """Return what is said in place of the answer: the refusal, where the twist has one."""
    if not twist.refusal:
        return answer
    correct = None if answer.correct is None else False
    return replace(answer, tokens=[twist.refusal], finish_reason="stop", correct=correct)


async def _fail_at_door(fault: Fault, exchange: Exchange, visit: Visit, *, is_stream: bool) -> None:
    visit.judge(fault.status, fault=fault.name)
    if not fault.is_silent:
        visit.leave(fault.outcome)
    await misbehave_at_door(fault, exchange, is_stream=is_stream)
    visit.leave(fault.outcome)


async def _reject(rejection: Rejection, exchange: Exchange, visit: Visit) -> None:
    visit.judge(rejection.status)
    visit.leave("rejected")
    wait_s = rejection.retry_after_s
    # Whole seconds are the header's standard form; the milliseconds beside it are what OpenAI sends too.
    headers = (
        []
        if wait_s is None
        else [
            ("retry-after", str(math.ceil(wait_s))),
            ("retry-after-ms", str(math.ceil(wait_s * 1000))),
        ]
    )
    kind = "invalid_request_error" if rejection.status == 400 else "overloaded"
    await exchange.respond(
        rejection.status, error_body("not accepted now", code=rejection.code, kind=kind), headers=headers
    )


def metrics_text(model: ServerModel, *, model_name: str) -> str:
    """Return the model's state in Prometheus's text form, under vLLM's names."""
    values = (
        ("num_requests_running", "gauge", model.running),
        ("num_requests_waiting", "gauge", model.waiting),
        ("kv_cache_usage_perc", "gauge", model.kv_used),
        ("num_preemptions_total", "counter", model.preemptions),
        ("prompt_tokens_total", "counter", model.prefill_done),
        ("generation_tokens_total", "counter", model.tokens_emitted),
    )
    return "".join(
        f'# TYPE vllm:{name} {kind}\nvllm:{name}{{model_name="{model_name}"}} {value}\n' for name, kind, value in values
    )
