"""Constants and values that several test files share."""

from dataclasses import dataclass

#: exported before the shared Ray starts, so that its workers have it
KEY_ENV, KEY = "TEST_ENDPOINT_KEY", "sk-right-key-of-the-tests"

#: a quick server: short answers, everything else as profile vllm
QUICK = {"median": 24.0, "sigma": 0.5, "max_output": 200}


@dataclass(frozen=True)
class Said:
    """What a command line said: exit code, stdout, stderr and how long it took."""

    code: int
    out: str
    err: str
    seconds: float
