"""Ray's part of `evalpipe doctor`: which Ray is meant, who can reach it, and whether a token keeps strangers out.

Whoever reaches Ray's ports runs code on its nodes, and Ray's own services listen on all addresses whatever they are
told; so a Ray without token authentication passes only where nothing but this machine can reach it.
"""

from __future__ import annotations

import ipaddress
import stat
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROBE_TIMEOUT_S = 3.0
JOBS_PATH = "/api/jobs/"  # lists what was submitted; answered to anybody where authentication is off
_LISTEN = "0A"  # state in /proc/net/tcp
_ANY = frozenset({"00000000", "0" * 32})


@dataclass(frozen=True, slots=True)
class Check:
    """One line. ok: None where there is nothing to judge, only to tell."""

    name: str
    found: str
    ok: bool | None = None


def check_ray(environ: Mapping[str, str], *, socket_tables: Iterable[str]) -> list[Check]:
    """Judge the Ray that this environment points to. socket_tables: texts of /proc/net/tcp and tcp6, none elsewhere.

    Looks at files and, where RAY_API_SERVER_ADDRESS is set, asks the job API one question without a token.
    """
    address = environ.get("RAY_ADDRESS")
    checks = [Check("ray address", address or "none: a Ray of its own for each run")]
    if address is not None:
        checks.append(_mode(environ, is_exposed=is_exposed(address, socket_tables)))
    checks += _token(environ, is_used=address is not None)
    api = environ.get("RAY_API_SERVER_ADDRESS", "")
    if api.startswith("http"):
        checks.append(probe_job_api(api))
    return checks


def is_exposed(address: str, socket_tables: Iterable[str]) -> bool:
    """Tell whether others than this machine can reach a Ray at HOST:PORT.

    True for another host, and for a port here that is listened on at every address; what a firewall does is not seen.
    """
    host, _, port = address.rpartition(":")
    if not _is_loopback(host.strip("[]")):
        return True
    return port.isdecimal() and any(_listens_everywhere(table, int(port)) for table in socket_tables)


def probe_job_api(base: str) -> Check:
    """Ask for the list of jobs without a token: a refusal is what should come back."""
    name, url = "ray job api", base.rstrip("/") + JOBS_PATH
    try:
        with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S):
            return Check(name, f"{base} answers without a token: anybody who reaches it can run code there", False)
    except urllib.error.HTTPError as error:
        with error:
            asks = error.code in (401, 403)
        return Check(name, f"{base} asks for a token" if asks else f"{base} answers {error.code}", asks)
    except (OSError, ValueError) as error:
        return Check(name, f"{base} cannot be reached: {getattr(error, 'reason', error)}", False)


def _mode(environ: Mapping[str, str], *, is_exposed: bool) -> Check:
    mode = environ.get("RAY_AUTH_MODE", "")
    if mode == "token":
        return Check("ray token", "token", True)
    told = f"RAY_AUTH_MODE is {mode or 'not set'}"
    if is_exposed:
        return Check("ray token", f"{told}: whoever reaches Ray's ports can run code there; set it to token", False)
    return Check("ray token", f"{told}; this Ray listens on loopback only")


def _token(environ: Mapping[str, str], *, is_used: bool) -> list[Check]:
    """Judge the token file: Ray makes it with mode 0644."""
    path = Path(environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    name = "ray token file"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        is_missed = is_used and environ.get("RAY_AUTH_MODE") == "token" and not environ.get("RAY_AUTH_TOKEN")
        return [Check(name, f"{path} is not there: ray get-auth-token --generate", False)] if is_missed else []
    if mode & 0o077:
        return [Check(name, f"{path} can be read by others (mode {mode:04o}): chmod 600 {path}", False)]
    return [Check(name, f"{path}, mode {mode:04o}", True)]


def _is_loopback(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listens_everywhere(table: str, port: int) -> bool:
    """Look for a listener at the wildcard address. table: as /proc/net/tcp, local address as HEX:PORT in column 2."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 4 or fields[3] != _LISTEN:
            continue
        host, _, hex_port = fields[1].partition(":")
        if host in _ANY and int(hex_port, 16) == port:
            return True
    return False
