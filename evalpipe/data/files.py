"""Which files a path means: a file, a folder, a glob; local or s3://. Finds and names them, reads none.

Files come sorted by path, so that item_index means the same item on every machine. The AWS_* environment, a custom
endpoint included, is honoured.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from evalpipe.errors import DataError

SUFFIXES = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv"}
COMPRESSED = frozenset({".gz", ".bz2", ".zst"})  # of text formats; pyarrow decompresses by the name
WILDCARDS = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one dataset, all of one kind, sorted. paths: as filesystem knows them; scheme: "" or "s3://"."""

    filesystem: Any
    paths: tuple[str, ...]
    kind: str
    scheme: str = ""

    def label(self, index: int) -> str:
        """Return the name of a file as the user would write it."""
        return self.scheme + self.paths[index]


def find_files(path: str, *, environ: Mapping[str, str] = os.environ) -> Files:
    """Resolve a path of the user. Raises DataError when nothing readable matches, naming what is near."""
    scheme, inside = _split_scheme(path)
    try:
        filesystem = _open_s3(inside, environ) if scheme else pafs.LocalFileSystem()
        found = _match(filesystem, inside)
        near = [] if found else _neighbours(filesystem, inside)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot look up dataset {path}: {one_line(error)}") from error
    if not found:
        raise DataError(f"no dataset at {path}; {_suggest(inside, [scheme + name for name in near])}")
    return Files(filesystem, tuple(found), _common_kind(path, found), scheme)


def one_line(error: BaseException) -> str:
    """Return the gist of a foreign error: one line, and short, as some quote the data they choke on."""
    return " ".join(str(error).split())[:240] or type(error).__name__


def stem(path: str) -> str:
    """Return a short name for a dataset, fit for a folder: "a/logic-5k.parquet" gives "logic-5k"."""
    plain = "/".join(re.split("[/:]", path)[:5]) if path.startswith("hf://") else path  # hf://owner/name, no more
    parts = [part for part in PurePosixPath(plain).parts if not WILDCARDS.search(part) and part not in {"/", ".", ".."}]
    name = parts[-1] if parts else ""
    while PurePosixPath(name).suffix in COMPRESSED or PurePosixPath(name).suffix in SUFFIXES:
        name = PurePosixPath(name).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "dataset"


def _split_scheme(path: str) -> tuple[str, str]:
    scheme, separator, rest = path.partition("://")
    if not separator:
        return "", os.path.expanduser(path)  # noqa: PTH111 - a Path would drop the "./" and "//" the user wrote
    if scheme == "file":
        return "", rest
    if scheme == "s3" and rest.strip("/"):
        return "s3://", rest
    raise DataError(f"cannot read {path}; give a local path or glob, s3://bucket/prefix or hf://owner/name")


def _open_s3(inside: str, environ: Mapping[str, str]) -> Any:
    endpoint = urlsplit(environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or "")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if not endpoint.netloc and not region:
        return pafs.FileSystem.from_uri(f"s3://{inside.partition('/')[0]}")[0]  # asks the bucket for its region
    return pafs.S3FileSystem(
        endpoint_override=endpoint.netloc or None,
        scheme=endpoint.scheme or "https",
        region=region or "us-east-1",
    )


def _match(filesystem: Any, inside: str) -> list[str]:
    info = filesystem.get_file_info(inside.rstrip("/") or "/")
    if info.type == pafs.FileType.File:
        return [info.path]
    if info.type == pafs.FileType.Directory:
        return [p for p in _list(filesystem, info.path) if _kind(p) and not _is_hidden(p, below=info.path)]
    if not WILDCARDS.search(inside):
        return []
    pattern = _compile_glob(inside)
    return [p for p in _list(filesystem, _fixed_part(inside)) if pattern.fullmatch(p)]


def _list(filesystem: Any, folder: str, *, recursive: bool = True) -> list[str]:
    selector = pafs.FileSelector(folder or ".", recursive=recursive, allow_not_found=True)
    files = (info.path for info in filesystem.get_file_info(selector) if info.type == pafs.FileType.File)
    return sorted(path if folder else path.removeprefix("./") for path in files)


def _is_hidden(path: str, *, below: str) -> bool:
    """Say whether a part below the folder starts with "." or "_": markers and indexes, not data."""
    return any(part.startswith((".", "_")) for part in PurePosixPath(path.removeprefix(below)).parts)


def _fixed_part(pattern: str) -> str:
    """Return the folder in front of the first wildcard, "" for the current one."""
    return pattern[: WILDCARDS.search(pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]


def _compile_glob(pattern: str) -> re.Pattern[str]:
    """Translate a glob: "*" and "?" stay within a folder, "**/" crosses any number of them."""
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    return re.compile(
        "".join(tokens.get(p) or (p.replace("[!", "[^") if p[:1] == "[" else re.escape(p)) for p in parts)
    )


def _kind(path: str) -> str | None:
    name = PurePosixPath(path.lower())
    if name.suffix not in COMPRESSED:
        return SUFFIXES.get(name.suffix)
    kind = SUFFIXES.get(PurePosixPath(name.stem).suffix)
    return None if kind == "parquet" else kind


def _common_kind(path: str, found: list[str]) -> str:
    kinds = {_kind(p) for p in found}
    if None in kinds:
        odd = next(p for p in found if _kind(p) is None)
        raise DataError(f"unknown format of {odd}; known: {', '.join(SUFFIXES)} (text formats also with .gz)")
    if len(kinds) > 1:
        raise DataError(
            f"{path} holds several formats ({', '.join(sorted(map(str, kinds)))}); give a glob like *.jsonl"
        )
    return str(kinds.pop())


def _neighbours(filesystem: Any, inside: str) -> list[str]:
    folder = _fixed_part(inside) if WILDCARDS.search(inside) else inside.rstrip("/").rpartition("/")[0]
    if not folder and not isinstance(filesystem, pafs.LocalFileSystem):
        return []
    return [p for p in _list(filesystem, folder, recursive=False) if _kind(p)]


def _suggest(wanted: str, near: list[str]) -> str:
    """Name the likely file, else some that are there. near: of the folder that was looked in."""
    if not near:
        return f"nothing there ends in {', '.join(SUFFIXES)}"
    by_name = {PurePosixPath(path).name: path for path in near}
    close = difflib.get_close_matches(PurePosixPath(wanted).name, by_name, n=1)
    if close and not WILDCARDS.search(wanted):
        return f"did you mean {by_name[close[0]]}?"
    return f"there is {', '.join(near[:5])}{' ..' * (len(near) > 5)}"
