"""From an error to an exit code and one line for a person."""

from __future__ import annotations

import errno

from evalpipe.errors import ConfigError, DataError, EndpointError, EvalPipeError, Resumable

USAGE, RESUMABLE, NO_KEY, UNUSABLE, INTERNAL = 2, 75, 77, 78, 1


def exit_code_of(error: BaseException) -> int:
    """Return the code: 2 usage, 75 resumable, 77 key or quota, 78 endpoint or stored data, 1 a bug of ours."""
    match error:
        case ConfigError() | DataError():
            return USAGE
        case Resumable():
            return RESUMABLE
        case EndpointError():
            from evalpipe.endpoint.failures import KEY_KINDS  # late: --help must not wait for it

            return NO_KEY if error.failure.kind in KEY_KINDS else UNUSABLE
        case EvalPipeError():
            return UNUSABLE
        case OSError():
            return RESUMABLE
    return INTERNAL


def explain(error: BaseException) -> str:
    """Say what happened in one line (a difference of settings takes more)."""
    if isinstance(error, EndpointError):
        return error.failure.message or error.failure.kind
    if isinstance(error, EvalPipeError):
        return str(error)
    if isinstance(error, OSError):
        code = errno.errorcode.get(error.errno or 0, "")
        what = f"{error.strerror or error or type(error).__name__} {code}".strip()
        return f"{what}; what was committed is safe, the same command goes on"
    return f"a bug in evalpipe: {type(error).__name__}: {error} (--debug shows where)"
