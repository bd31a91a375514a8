"""A server's /metrics page as one ServerSample: vLLM, SGLang and llama.cpp, by the names that they use. Text in.

Values of several label sets (replicas, engines) are added up; of memory in use the fullest counts. SGLang's count of
retracted requests is a gauge that begins again with each publication, so it is no counter of preemptions.
"""

from __future__ import annotations

from collections.abc import Sequence

from evalpipe.loadtest.records import ServerSample

RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")
PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions", "sglang:num_retractions_total")
KV_USED = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",
)


def read_metrics(text: str, *, at: float) -> ServerSample | None:
    """Return what the page says at the instant `at`; None when it has none of the names."""
    values: dict[str, list[float]] = {}
    for line in text.splitlines():
        name, value = _parse(line)
        if name:
            values.setdefault(name, []).append(value)
    running, waiting = _of(values, RUNNING), _of(values, WAITING)
    if not running and not waiting:
        return None
    preemptions, kv_used = _of(values, PREEMPTIONS), _of(values, KV_USED)
    return ServerSample(
        at=at,
        running=sum(running),
        waiting=sum(waiting),
        preemptions=sum(preemptions) if preemptions else None,
        kv_used=max(kv_used) if kv_used else None,
    )


def _of(values: dict[str, list[float]], names: Sequence[str]) -> list[float]:
    return next((values[name] for name in names if name in values), [])


def _parse(line: str) -> tuple[str, float]:
    """Read `name{labels} value [timestamp]`; ("", 0) for comments and whatever else."""
    if not line or line.startswith("#"):
        return "", 0.0
    head, brace, rest = line.partition("{")
    name = head.strip() if brace else head.split(" ")[0]
    fields = (rest.rpartition("}")[2] if brace else line[len(name) :]).split()
    try:
        return name, float(fields[0])
    except (IndexError, ValueError):
        return "", 0.0
