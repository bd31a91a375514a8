"""Scoring in a process of its own: `python -m evalpipe.scoring.apart`, told by pickles on stdin, answering on stdout.

A regular expression, a symbolic engine or a user's function may run for ever, also inside C where no exception reaches
it. Here the kernel ends it: each judgement has an alarm, and its default action ends the process. Whoever asked sees
the end of the stream, starts another process and goes on.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from typing import Any, BinaryIO

from evalpipe.errors import DataError
from evalpipe.scoring.scorers import build_scorer

HEADER = struct.Struct(">I")  # length of the pickle that follows


def pack(value: object) -> bytes:
    """Return a value as one message."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(data)) + data


def main() -> None:
    """First message: (sys.path, ScorerConfig, seconds a judgement may take). Then (Example, Completion) each.

    Answers (Score or None, why there is no verdict or None). Ends with stdin.
    """
    said, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a user's function prints must not stand between the answers
    hello = _read(said)
    if hello is None:
        return
    sys.path[:], config, limit_s = hello
    scorer = build_scorer(config)
    while (asked := _read(said)) is not None:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            verdict: tuple[Any, str | None] = scorer(*asked), None
        except DataError as error:
            verdict = None, str(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(pack(verdict))
        answers.flush()


def _read(stream: BinaryIO) -> Any:
    """Return the next message, None at the end."""
    head = stream.read(HEADER.size)
    return pickle.loads(stream.read(HEADER.unpack(head)[0])) if len(head) == HEADER.size else None


if __name__ == "__main__":
    main()
