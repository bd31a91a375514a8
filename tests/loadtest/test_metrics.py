"""Metrics pages of real servers, as far as they matter here."""

from __future__ import annotations

import pytest

from evalpipe.loadtest.metrics import read_metrics
from evalpipe.loadtest.records import ServerSample

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 1.7e+01
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
"""
SGLANG = """sglang:num_running_reqs{model_name="m"} 5
sglang:num_queue_reqs{model_name="m"} 2
sglang:token_usage{model_name="a b"} 0.5
"""
LLAMA = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 3\n"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (VLLM, ServerSample(7.0, running=15, waiting=4, preemptions=17, kv_used=0.75)),
        (SGLANG, ServerSample(7.0, running=5, waiting=2, preemptions=None, kv_used=0.5)),
        (LLAMA, ServerSample(7.0, running=1, waiting=3, preemptions=None, kv_used=None)),
    ],
)
def test_pages_of_known_servers(page: str, expected: ServerSample):
    """Engines are added up, the fullest memory counts, what a server does not tell is None."""
    assert read_metrics(page, at=7.0) == expected


@pytest.mark.parametrize(
    "page", ["", "<html>busy</html>", "python_gc_objects_collected_total 5\n", "vllm:num_requests_running{ x"]
)
def test_other_pages_say_nothing(page: str):
    """Another program's page, an error page, a page that was cut."""
    assert read_metrics(page, at=0.0) is None
