"""Scoring at a worker: what is known to be quick on its loop, all else in a process of its own, bounded in time."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import signal
import sys

from evalpipe.config import ScorerConfig
from evalpipe.errors import DataError
from evalpipe.records import Completion, Example
from evalpipe.runtime.rows import Verdict
from evalpipe.scoring.apart import HEADER, pack
from evalpipe.scoring.scorers import build_scorer

LIMIT_S = 10.0  # a symbolic engine takes a tenth of a second; what takes this long will not end


class Judge:
    """Gives verdicts, never raises. Raises ConfigError when it is built for a scorer that does not exist.

    Scorers apart judge one answer at a time; `waiting` is how many wait, and whoever sends should wait with them.
    """

    def __init__(self, config: ScorerConfig, *, limit_s: float = LIMIT_S) -> None:
        self._config, self._limit_s = config, limit_s
        self._scorer = build_scorer(config)
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self.waiting = 0

    async def judge(self, example: Example, completion: Completion) -> Verdict:
        """Return the verdict: of a scorer on the loop without giving way to anything else."""
        if self._scorer.is_quick(example):
            try:
                return Verdict(self._scorer(example, completion))
            except DataError as error:
                return Verdict(error=str(error))
        self.waiting += 1
        try:
            async with self._turn:
                return await self._ask(example, completion)
        finally:
            self.waiting -= 1

    async def aclose(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, example: Example, completion: Completion) -> Verdict:
        try:
            process = self._process = self._process or await self._start()
            assert process.stdin is not None and process.stdout is not None, "both are pipes"
            process.stdin.write(pack((example, completion)))
            await process.stdin.drain()
            (length,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
            return Verdict(*pickle.loads(await process.stdout.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return Verdict(error=await self._on_end(example))
        except BaseException:
            await self.aclose()  # its next answer would be that to a question nobody waits for
            raise

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "evalpipe.scoring.apart",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(pack((sys.path, self._config, self._limit_s)))
        return process

    async def _on_end(self, example: Example) -> str:
        """Say why the process ended; the next answer gets a new one."""
        process, self._process = self._process, None
        code = await process.wait() if process is not None else None
        what = f"took longer than {self._limit_s:g} s" if code == -signal.SIGALRM else f"ended its process ({code})"
        return f"scorer {self._scorer.name} {what} at item {example.item_id!r}"
