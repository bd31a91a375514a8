"""What watches the chaos tests must itself see: half-written lines, processes, sockets, temporary files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from chaos import leftovers
from chaos.watching import Tail, until

LISTENER = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print('up', flush=True); sys.stdin.read()"


def line(event: str, number: int, **more: object) -> bytes:
    return orjson.dumps({"event": event, "id": f"r{number}", **more}) + b"\n"


def test_a_growing_ledger_is_read_line_by_line(tmp_path: Path):
    """A line of which only half is there is counted when the rest has come; a preflight counts as no item's request."""
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(line("arrive", 1, item=None) + line("arrive", 2, item="a") + line("arrive", 3, item="b")[:9])
    tail = Tail(path)
    early = (tail.look().everything, tail.arrivals, dict(tail.inside))

    with path.open("ab") as file:
        file.write(line("arrive", 3, item="b")[9:] + line("done", 2, outcome="completed"))
    tail.look()

    assert early == (2, 1, {"r2": "a"})
    assert (tail.everything, tail.arrivals, tail.answers) == (3, 2, 1)
    assert (tail.inside, tail.answered) == ({"r3": "b"}, {"a"})


@pytest.mark.network
def test_a_process_that_stays_is_seen_with_its_socket_until_it_ends():
    """A child that listens is present with its command line and one socket; once it ended nothing is left."""
    before = leftovers.presence()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LISTENER], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = leftovers.presence().since(before)
        child.communicate()

    assert list(found.processes) == [child.pid] and "create_server" in found.processes[child.pid]
    assert [pid for pid, _ in found.sockets] == [child.pid]
    assert not leftovers.presence().since(before)


def test_temporary_files_are_found_in_every_folder_and_can_be_aged(tmp_path: Path):
    """What the store would sweep after an hour is found at any depth, and looks old after `age`."""
    (tmp_path / "parts").mkdir()
    torn = tmp_path / "parts/.tmp-1"
    torn.touch()
    (tmp_path / "parts/whole.parquet").touch()
    written_at = torn.stat().st_mtime

    leftovers.age(leftovers.temporary_files(tmp_path), by_s=7200.0)

    assert leftovers.temporary_files(tmp_path) == [torn]
    assert torn.stat().st_mtime == pytest.approx(written_at - 7200.0, abs=1.0)


def test_waiting_ends_with_what_was_waited_for():
    """A condition that never holds is a TimeoutError that names it."""
    with pytest.raises(TimeoutError, match="in vain for a miracle"):
        until(lambda: False, within_s=0.0, what="a miracle")
