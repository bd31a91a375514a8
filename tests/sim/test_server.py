"""The HTTP face with a real client: answers, streams, ledger, limits at the door, start and end."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from evalpipe.errors import ConfigError
from evalpipe.sim.ledger import Ledger, read_ledger
from evalpipe.sim.process import SimServer

pytestmark = pytest.mark.network
ROWS = [
    {"item_id": f"q{i}", "category": "c", "question": f"How much is {i}?", "answer": str(i), "answer_type": "number"}
    for i in range(20)
]


class Served:
    """A running server, its ledger and a client."""

    def __init__(self, folder: Path, **arguments: object) -> None:
        self.path = folder / "ledger.jsonl"
        self.server = SimServer(
            arguments.pop("profile_name", "instant"),
            ledger=self.path,
            **{"options": {"median": 30.0}, **arguments},
        )
        self.client = openai.OpenAI(base_url=self.server.base_url, api_key="right", max_retries=0)

    @property
    def ledger(self) -> Ledger:
        return read_ledger(self.path)

    def ask(self, text: str = "hello", **options: object):
        messages = [{"role": "user", "content": text}]
        return self.client.chat.completions.create(model="sim", messages=messages, **options)

    def close(self) -> None:
        self.client.close()
        self.server.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    one = Served(folder, dataset=folder / "data.jsonl", accuracy=0.5, api_key="right")
    yield one
    one.close()


def eventually(condition: Callable[[], bool], *, within_s: float = 5.0) -> bool:
    """Poll: another process has to notice something."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)  # another process; nothing of it can be awaited
    return True


def test_answer_streamed_and_whole_are_the_same(served: Served):
    """One item gives one text, however it is sent; usage counts the same tokens."""
    whole = served.ask("How much is 7?\n\nAnswer on the last line.")
    events = list(
        served.ask("How much is 7?\n\nThink.", stream=True, stream_options={"include_usage": True}, temperature=0)
    )

    text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    assert text == whole.choices[0].message.content
    assert [e.choices[0].finish_reason for e in events if e.choices][-1] == whole.choices[0].finish_reason == "stop"
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens == 30
    assert whole.usage.prompt_tokens == len("How much is 7?\n\nAnswer on the last line.") / 4


def test_ledger_agrees_with_each_answer(served: Served):
    """Hash and verdict in the ledger are those of the text the client read, under the header's key."""
    texts = {}
    for i in range(20):
        header = {"X-Evalpipe": f"myrun/q{i}/0/3/1;2;48"}
        texts[f"q{i}"] = served.ask("anything", extra_headers=header).choices[0].message.content

    answers = read_ledger(served.path, run="myrun").answers()
    arrival = read_ledger(served.path, run="myrun").arrivals[0]
    assert len(answers) == 20
    assert (arrival.generation, arrival.attempt, arrival.epoch, arrival.limit, arrival.in_flight) == (3, 1, 2, 48, 0)
    for (item, repeat, generation), [(digest, correct)] in answers.items():
        final = texts[item].splitlines()[-1].removeprefix("Answer: ")
        assert (repeat, generation) == (0, 3)
        assert digest == hashlib.sha256(texts[item].encode()).hexdigest()
        assert correct == (final == item[1:])
    assert 3 <= sum(correct for [(_, correct)] in answers.values()) <= 17


def test_max_tokens_ends_with_length(served: Served):
    """A cut answer says so and is counted as sent."""
    answer = served.ask("How much is 3?", max_tokens=5)

    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


def test_text_completion(served: Served):
    """/v1/completions streams and answers too."""
    whole = served.client.completions.create(model="sim", prompt="How much is 5?", max_tokens=100)
    parts = served.client.completions.create(model="sim", prompt="How much is 5?", max_tokens=100, stream=True)

    assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text


def test_embeddings_are_unit_vectors_of_the_text(served: Served):
    """The same text gives the same vector, as floats and as base64 of float32."""
    texts = ["one", "two"]
    floats = served.client.embeddings.create(model="sim", input=texts, dimensions=16, encoding_format="float")
    raw = served.client.embeddings.with_raw_response.create(
        model="sim", input=texts, dimensions=16, encoding_format="base64"
    )
    packed = [base64.b64decode(entry["embedding"]) for entry in json.loads(raw.content)["data"]]

    vectors = [entry.embedding for entry in floats.data]
    assert sum(x * x for x in vectors[0]) == pytest.approx(1)
    assert vectors[0] != vectors[1]
    assert struct.unpack("<16f", packed[1]) == pytest.approx(vectors[1], abs=1e-6)


def test_models_health_and_metrics(served: Served):
    """What a preflight looks at; metrics carry vLLM's names and need no key."""
    served.ask()
    root = served.server.base_url.removesuffix("/v1")
    metrics = urllib.request.urlopen(f"{root}/metrics").read().decode()

    assert [m.id for m in served.client.models.list()] == ["sim"]
    assert urllib.request.urlopen(f"{root}/health").status == 200
    assert 'vllm:num_requests_running{model_name="sim"} 0' in metrics
    assert float(metrics.split("generation_tokens_total{")[1].split()[1]) >= 30


def test_wrong_key_model_and_path_are_told_apart(served: Served):
    """401, 404 model_not_found, 404 for a path, 400 for a body."""
    with pytest.raises(openai.AuthenticationError):
        served.client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError) as no_model:
        served.client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.NotFoundError) as no_path:
        served.client.post("/nowhere", cast_to=object)
    with pytest.raises(openai.BadRequestError):
        served.client.post("/chat/completions", cast_to=object, body={"model": "sim", "messages": []})

    assert no_model.value.code == "model_not_found"
    assert no_path.value.code == "not_found"


def test_stream_comes_in_pieces_and_a_client_that_leaves_is_cancelled(tmp_path: Path):
    """First token at once, then pieces while it decodes; hanging up frees the slot."""
    one = Served(tmp_path, profile_name="vllm", options={"slots": 1, "median": 1500.0, "sigma": 0.0})
    stream = one.ask(stream=True)
    pieces = [next(stream).choices[0].delta.content for _ in range(4)]

    stream.close()

    assert len(pieces[0]) < 20 < len(pieces[2])
    assert eventually(lambda: len(one.ledger.departures) == 1)
    [departure] = one.ledger.departures.values()
    assert departure.outcome == "cancelled"
    assert 10 < departure.output_tokens < 200
    assert one.ask(max_tokens=2).usage.completion_tokens == 2
    one.close()


def test_quota_answers_429_with_retry_after(tmp_path: Path):
    """The model's rejection becomes a status, two headers and a ledger line; it never counts as inside."""
    one = Served(tmp_path, options={"rpm": 5, "burst_s": 12.0})
    one.ask()
    with pytest.raises(openai.RateLimitError) as refused:
        one.ask()

    headers = refused.value.response.headers
    assert 11 <= int(headers["retry-after"]) <= 12
    assert 11_000 <= int(headers["retry-after-ms"]) <= 12_000
    assert [a.status for a in one.ledger.arrivals] == [200, 429]
    assert [d.outcome for d in one.ledger.departures.values()] == ["completed", "rejected"]
    assert one.ledger.high_water == 1
    one.close()


def test_next_request_never_finds_the_last_one_inside(served: Served):
    """The server counts a request out before its last byte leaves: else an exact limit would look broken."""
    for stream in (True, False) * 10:
        answer = served.ask("again", stream=stream, extra_headers={"X-Evalpipe": "serial/x/0/0/1;0;1"})
        if stream:
            list(answer)

    ledger = read_ledger(served.path, run="serial")
    assert len(ledger.arrivals) == 20
    assert ledger.limit_violations() == []
    assert ledger.high_water == 1


def test_wrong_settings_are_refused_before_anything_starts(tmp_path: Path):
    """Profile, option, fault, dataset and port: one line each."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wrong = [
            ({"profile_name": "vlm"}, "did you mean 'vllm'"),
            ({"profile_name": "vllm", "options": {"slot": 1}}, "did you mean 'slots'"),
            ({"profile_name": "vllm", "faults": {"resett": 1}}, "did you mean 'reset'"),
            ({"profile_name": "vllm", "dataset": tmp_path / "none.parquet"}, "no dataset at"),
            ({"profile_name": "vllm", "port": taken.getsockname()[1]}, "cannot listen on"),
        ]
        for arguments, message in wrong:
            with pytest.raises(ConfigError, match=message):
                SimServer(**arguments)


def test_stop_hangs_up_on_open_streams_at_once():
    """Stopping does not wait for answers under way, and is an orderly exit."""
    with SimServer("vllm", options={"median": 2000.0, "sigma": 0.0}) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
        messages = [{"role": "user", "content": "x"}]
        stream = client.chat.completions.create(model="sim", messages=messages, stream=True)
        next(stream)
        began = time.monotonic()
        server.stop()

        assert time.monotonic() - began < 2.0
        assert server.exit_code == 0
        stream.close()
        client.close()


def test_server_ends_with_its_parent():
    """A killed parent leaves no server behind."""
    code = (
        "import time; from evalpipe.sim.process import SimServer; s = SimServer('instant');"
        "print(s.pid, s.port, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        _, port = map(int, parent.stdout.readline().split())
        os.kill(parent.pid, signal.SIGKILL)
        assert eventually(lambda: not is_listening(port))


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.network
def test_a_server_beside_a_run_outlives_the_signals_of_its_driver():
    """Ctrl-C and `ray job stop` reach it too, while its driver still waits for answers; `stop` ends it."""
    with SimServer("instant") as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(server.pid, number)

        with urllib.request.urlopen(server.base_url.removesuffix("/v1") + "/health") as health:
            assert health.status == 200
        assert server.exit_code is None
    assert server.exit_code == 0
