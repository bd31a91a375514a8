"""Data: whatever it comes from, the same Examples in the same order, or one clear line."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.config import DatasetConfig
from evalpipe.data import Dataset, open_dataset
from evalpipe.data.order import choose_order
from evalpipe.errors import DataError
from evalpipe.records import Example

ROWS = [
    {"id": "a", "question": "1+1?", "answer": "2", "subject": "sums"},
    {"id": "b", "question": "Größe, \"quoted\"\nand 2 lines", "answer": "x", "subject": "words"},
    {"id": "007", "question": "7*6?", "answer": "42", "subject": "sums"},
]  # fmt: skip


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)


def write_array(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def write_gzip(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def open_source(path: Path | str, **settings: Any) -> Dataset:
    return open_dataset(DatasetConfig(path=str(path), **settings))


def read_all(path: Path | str, **settings: Any) -> list[Example]:
    """Every selected example, in source order."""
    with open_source(path, **settings) as dataset:
        return [dataset.example(index) for index in sorted(dataset.order.tolist())]


def read_one(tmp_path: Path, row: dict[str, Any], **settings: Any) -> Example:
    write_jsonl(tmp_path / "one.jsonl", [row])
    return read_all(tmp_path / "one.jsonl", **settings)[0]


def refusal(path: Path | str, **settings: Any) -> str:
    """The message with which a source is refused: one line."""
    with pytest.raises(DataError) as caught:
        read_all(path, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Sources


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("data.parquet", write_parquet),
        ("data.jsonl", write_jsonl),
        ("data.ndjson", write_jsonl),
        ("data.json", write_array),
        ("lines.json", write_jsonl),
        ("data.csv", write_csv),
        ("data.jsonl.gz", write_gzip),
    ],
)
def test_every_format_gives_the_same_examples(tmp_path: Path, name: str, write: Callable[[Path, Any], None]):
    """Format and compression leave no trace; ids keep their leading zeros, text its lines and umlauts."""
    write(tmp_path / name, ROWS)

    examples = read_all(tmp_path / name)

    assert [e.item_id for e in examples] == ["a", "b", "007"]
    assert [e.item_index for e in examples] == [0, 1, 2]
    assert [(e.category, e.expected) for e in examples] == [("sums", "2"), ("words", "x"), ("sums", "42")]
    assert [e.fields for e in examples] == ROWS


@pytest.mark.parametrize("pattern", ["", "*.jsonl", "part-?.jsonl", "part-[ab].jsonl", "**/*.jsonl"])
def test_files_are_read_in_the_order_of_their_paths(tmp_path: Path, pattern: str):
    """A folder and a glob give the same stable order whatever the order of writing."""
    folder = tmp_path / "data"
    write_jsonl(folder / "part-b.jsonl", [{"id": 3}])
    write_jsonl(folder / "part-a.jsonl", [{"id": 1}, {"id": 2}])

    examples = read_all(folder / pattern)

    assert [e.item_id for e in examples] == ["1", "2", "3"]


def test_folder_is_read_recursively_without_hidden_files(tmp_path: Path):
    """Markers and files of other kinds in a folder are no data."""
    write_jsonl(tmp_path / "data" / "deep" / "b.jsonl", [{"id": 2}])
    write_jsonl(tmp_path / "data" / "a.jsonl", [{"id": 1}])
    write_jsonl(tmp_path / "data" / "_index.jsonl", [{"id": 8}])
    write_jsonl(tmp_path / "data" / ".cache" / "c.jsonl", [{"id": 9}])
    (tmp_path / "data" / "README.md").write_text("about")

    assert [e.item_id for e in read_all(tmp_path / "data")] == ["1", "2"]


def test_star_stays_within_a_folder(tmp_path: Path):
    """`*` does not cross a slash, `**` does."""
    write_jsonl(tmp_path / "a.jsonl", [{"id": 1}])
    write_jsonl(tmp_path / "sub" / "b.jsonl", [{"id": 2}])

    assert len(read_all(tmp_path / "*.jsonl")) == 1
    assert len(read_all(tmp_path / "**/*.jsonl")) == 2


def test_relative_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file, the current folder and a glob in it are found from where the user stands."""
    write_jsonl(tmp_path / "a.jsonl", [{"id": 1}])
    monkeypatch.chdir(tmp_path)

    assert [len(read_all(path)) for path in ("a.jsonl", "./a.jsonl", ".", "*.jsonl")] == [1, 1, 1, 1]


def test_openai_batch_lines_bring_their_messages(tmp_path: Path):
    """custom_id is the id, the messages of the body the prompt; the other parameters are not passed on."""
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    body = {"model": "m", "temperature": 1, "messages": messages}
    line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": body}

    example = read_one(tmp_path, line)

    assert example.item_id == "r-1"
    assert example.fields["messages"] == messages
    assert example.fields["body"] == {"model": "m", "temperature": 1}


def test_other_batch_requests_are_refused(tmp_path: Path):
    """A batch of embeddings is no evaluation."""
    write_jsonl(tmp_path / "b.jsonl", [{"custom_id": "e", "method": "POST", "url": "/v1/embeddings", "body": {}}])

    message = refusal(tmp_path / "b.jsonl")

    assert message.endswith("only batch lines for /v1/chat/completions can be run, got url '/v1/embeddings'")


def test_hub_datasets_are_read_through_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """hf://owner/name is what load_dataset makes of it (here a folder of that name); the split can be named."""
    (tmp_path / "owner" / "name").mkdir(parents=True)
    write_parquet(tmp_path / "owner" / "name" / "train.parquet", ROWS)
    write_parquet(tmp_path / "owner" / "name" / "test.parquet", ROWS[:1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")

    assert [e.fields for e in read_all("hf://owner/name")] == ROWS
    assert [e.item_id for e in read_all("hf://owner/name:test")] == ["a"]
    assert "cannot load hf://owner/name:dev: ValueError" in refusal("hf://owner/name", split="dev")


def test_hub_without_network_is_one_clear_line(monkeypatch: pytest.MonkeyPatch):
    """What is neither reachable nor cached says so, and what would do."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    message = refusal("hf://nobody/nothing")

    assert message.startswith("cannot load hf://nobody/nothing:train: ")
    assert message.endswith("download the files and give their folder")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket on a real S3 server on loopback, found through AWS_ENDPOINT_URL; yields its file system."""
    from moto.server import ThreadedMotoServer
    from pyarrow.fs import S3FileSystem

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    endpoint = {"endpoint_override": f"{host}:{port}", "scheme": "http", "region": "us-east-1"}
    filesystem = S3FileSystem(**endpoint, allow_bucket_creation=True)
    filesystem.create_dir("bucket")
    yield filesystem
    server.stop()


@pytest.mark.network
def test_s3_prefix_glob_and_file(bucket: Any):
    """An object, a prefix and a glob in a bucket are read like files; a wrong name suggests a right one."""
    for name, item_id in (("b", 2), ("a", 1)):
        with bucket.open_output_stream(f"bucket/set/{name}.jsonl") as stream:
            stream.write(json.dumps({"id": item_id}).encode())

    found = [[e.item_id for e in read_all(f"s3://bucket/set{end}")] for end in ("", "/*.jsonl", "/b.jsonl")]

    assert found == [["1", "2"], ["1", "2"], ["2"]]
    assert "did you mean s3://bucket/set/a.jsonl?" in refusal("s3://bucket/set/aa.jsonl")
    assert refusal("s3://elsewhere/set").startswith("no dataset at s3://elsewhere/set; ")


# Refusals


def test_missing_file_suggests_the_nearest(tmp_path: Path):
    """A typo in a name is answered with the name that is there."""
    write_jsonl(tmp_path / "questions.jsonl", ROWS)

    message = refusal(tmp_path / "question.jsonl")

    assert message == f"no dataset at {tmp_path}/question.jsonl; did you mean {tmp_path}/questions.jsonl?"


def test_glob_without_a_match_says_what_is_there(tmp_path: Path):
    """An empty match lists the data files of its folder."""
    write_jsonl(tmp_path / "a.jsonl", ROWS)

    assert f"there is {tmp_path}/a.jsonl" in refusal(tmp_path / "*.parquet") + refusal(tmp_path / "x*")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "gs://bucket/x",
            "cannot read gs://bucket/x; give a local path or glob, s3://bucket/prefix or hf://owner/name",
        ),
        ("s3://", "cannot read s3://; give"),
        ("hf://name", "cannot read 'hf://name'; give hf://owner/name"),
    ],
)
def test_unknown_schemes_are_refused(path: str, message: str):
    """What cannot be read is answered with what can."""
    assert refusal(path).startswith(message)


def test_unknown_and_mixed_formats_are_refused(tmp_path: Path):
    """A format is never guessed, and a folder of two is asked about."""
    (tmp_path / "notes.txt").write_text("x")
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    write_csv(tmp_path / "b.csv", ROWS)

    assert "unknown format of" in refusal(tmp_path / "notes.txt")
    assert "holds several formats (csv, jsonl)" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"id": 1}\n{"id": 2\n', "a.jsonl line 2 is not JSON: Expecting ',' delimiter at column"),
        ("a.jsonl", b'{"id": 1}\n\n[1]\n', 'a.jsonl line 3 must hold an object like {"question": ..}, got a list'),
        ("a.jsonl", b'{"id": "\xff"}\n', "a.jsonl line 1 is not JSON: 'utf-8' codec"),
        ("a.jsonl", b'{"id": "\\ud800"}\n', "a.jsonl line 1 holds half of a surrogate pair"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl line 1 is not JSON: maximum recursion depth"),
        ("a.jsonl", b'{"id": 1}\n{"id": null}\n', "a.jsonl line 2: no id in column 'id'; every row needs one"),
        ("a.jsonl", b"\n", "a.jsonl has no rows"),
        ("a.json", b"[]", "a.json has no rows"),
        ("a.json", b"[{}, 3]", "a.json element 2 must hold an object"),
        ("a.csv", b'id,question\n1,"two\nlines"\n2,b,c\n', "a.csv line 4: 3 cells under 2 column names"),
        ("a.csv", b'id,question\n1,"open\n', "a.csv: unexpected end of data"),
        ("a.csv", b"id,id\n1,2\n", "a.csv has two columns named 'id'"),
        ("a.csv", b"id\n\xff\n", "a.csv: 'utf-8' codec can't decode"),
        ("a.parquet", b"not parquet", "a.parquet: Parquet magic bytes not found"),
        ("a.jsonl.gz", b"not gzip", "a.jsonl.gz: "),
    ],
)
def test_broken_files_are_named_with_the_line(tmp_path: Path, name: str, content: bytes, message: str):
    """One line says which file, where in it, and what is wrong."""
    (tmp_path / name).write_bytes(content)

    assert message in refusal(tmp_path / name)


def test_flipped_bit_in_a_parquet_page_is_noticed(tmp_path: Path):
    """Page checksums, where a file has them, are verified: a flipped bit is no wrong question."""
    path = tmp_path / "a.parquet"
    table = pa.table({"id": ["first", "other"]})
    pq.write_table(
        table, path, compression="none", use_dictionary=False, write_statistics=False, write_page_checksum=True
    )
    path.write_bytes(path.read_bytes().replace(b"first", b"fjrst", 1))

    assert "cannot read" in refusal(path)


def test_missing_column_lists_what_exists(tmp_path: Path):
    """A configured column must be there; the answer names the setting and the columns."""
    write_jsonl(tmp_path / "a.jsonl", ROWS)

    message = refusal(tmp_path / "a.jsonl", expected_column="anser")

    assert message == (
        "dataset.expected_column: no column 'anser'; did you mean 'answer'? "
        "the dataset has id, question, answer, subject"
    )


def test_duplicate_id_names_both_places(tmp_path: Path):
    """The first id that comes again is named with both files and lines, blank lines counted."""
    write_jsonl(tmp_path / "a.jsonl", [{"id": "x"}, {"id": "y"}])
    (tmp_path / "b.jsonl").write_text('{"id": "z"}\n\n{"id": "y"}\n{"id": "x"}\n')

    message = refusal(tmp_path)

    assert f"duplicate id 'y': {tmp_path}/a.jsonl line 2 and {tmp_path}/b.jsonl line 3; " in message


# Columns and values


def test_usual_names_are_found_and_others_can_be_given(tmp_path: Path):
    """The configured name wins over the usual one."""
    row = {"id": 1, "uid": "u", "answer": "no", "gold": "yes", "category": "c", "topic": "t"}

    usual = read_one(tmp_path, row)
    given_names = read_one(tmp_path, row, id_column="uid", expected_column="gold", category_column="topic")

    assert (usual.item_id, usual.expected, usual.category) == ("1", "no", "c")
    assert (given_names.item_id, given_names.expected, given_names.category) == ("u", "yes", "t")


def test_rows_without_ids_are_numbered(tmp_path: Path):
    """The id of a row is then its index; no answer means none, no category an empty one."""
    write_jsonl(tmp_path / "a.jsonl", [{"question": "x"}, {"question": "y"}])

    examples = read_all(tmp_path / "a.jsonl")

    assert [(e.item_id, e.expected, e.category) for e in examples] == [("0", None, ""), ("1", None, "")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("3.0", "3.0"),
        (3, "3"),
        (2**80, str(2**80)),
        (0.1, "0.1"),
        (True, "true"),
        (["a", 1], '["a",1]'),
        ({"b": None}, '{"b":null}'),
        (None, None),
    ],
)
def test_expected_answers_become_text(tmp_path: Path, value: Any, text: str | None):
    """Text stays as it is, big integers stay exact, all else is JSON; null is no answer."""
    assert read_one(tmp_path, {"id": 1, "answer": value}).expected == text


def test_columns_that_a_row_lacks_are_null(tmp_path: Path):
    """Each row has every column, so a template never meets a name that is sometimes there."""
    write_jsonl(tmp_path / "a.jsonl", [{"id": 1, "hint": "h"}, {"id": 2, "odd": {"deep": [1, "a", None]}}])

    with open_source(tmp_path / "a.jsonl") as dataset:
        fields = [dataset.example(index).fields for index in (0, 1)]

        assert dataset.columns == ("id", "hint", "odd")
    assert fields[0] == {"id": 1, "hint": "h", "odd": None}
    assert fields[1] == {"id": 2, "hint": None, "odd": {"deep": [1, "a", None]}}


def test_metadata_is_one_object_of_what_is_passed_through(tmp_path: Path):
    """Keys of a metadata column and the short free columns; not what has a column of its own or was the prompt."""
    row = {"id": 1, "question": "q", "answer": "a", "source": "s", "level": 3, "context": "c" * 3000}

    assert json.loads(read_one(tmp_path, row).metadata) == {"source": "s", "level": 3}
    as_text = read_one(tmp_path, row | {"metadata": '{"split": "test", "level": 1}'})
    assert json.loads(as_text.metadata) == {"split": "test", "source": "s", "level": 3}
    assert json.loads(read_one(tmp_path, {"id": 1, "metadata": "free text"}).metadata) == {"metadata": "free text"}
    assert read_one(tmp_path, {"id": 1}).metadata == "{}"


def test_values_that_json_lacks_get_a_text_form(tmp_path: Path):
    """Timestamps, decimals, bytes and NaN of Parquet files come through; a NaN of a JSON file too."""
    table = pa.table(
        {
            "id": [1],
            "when": pa.array([0], pa.timestamp("ms")),
            "price": pa.array([None], pa.decimal128(5, 2)),
            "raw": [b"\x00\xff"],
            "ratio": [math.nan],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"id": 1, "ratio": NaN}')

    fields = read_all(tmp_path / "a.parquet")[0].fields

    assert fields == {"id": 1, "when": "1970-01-01T00:00:00", "price": None, "raw": "AP8=", "ratio": None}
    assert read_all(tmp_path / "b.jsonl")[0].fields["ratio"] is None


def test_long_cells_are_read(tmp_path: Path):
    """A prompt of a megabyte is no reason to fail, in CSV neither."""
    write_csv(tmp_path / "a.csv", [{"id": "1", "question": "x" * 2**20}])

    assert len(read_all(tmp_path / "a.csv")[0].fields["question"]) == 2**20


# Dataset


def test_random_access_across_blocks(tmp_path: Path):
    """Any index is read at once, in the first block of rows and in later ones."""
    write_jsonl(tmp_path / "many.jsonl", [{"id": f"i{n}", "question": n} for n in range(2500)])

    with open_source(tmp_path / "many.jsonl") as dataset:
        picked = [dataset.example(index).item_id for index in (2499, 0, 1023, 1024, 2048)]

        with pytest.raises(IndexError, match=r"item_index must be in \[0, 2500\), got 2500"):
            dataset.example(2500)
    assert picked == ["i2499", "i0", "i1023", "i1024", "i2048"]


def test_order_covers_the_source_once(tmp_path: Path):
    """Shuffled or not, each index comes once; the shuffle follows the seed, the indices do not."""
    write_jsonl(tmp_path / "a.jsonl", [{"id": n} for n in range(50)])

    def order(**settings: Any) -> list[int]:
        with open_source(tmp_path / "a.jsonl", **settings) as dataset:
            assert dataset.order.dtype == np.int64
            return dataset.order.tolist()

    one, again, other = order(seed=1), order(seed=1), order(seed=2)
    plain = order(shuffle=False)

    assert one == again != other
    assert sorted(one) == sorted(other) == plain == list(range(50))


def test_limit_selects_and_counts_from_zero(tmp_path: Path):
    """len is the number selected; their indices are dense, in source order."""
    write_jsonl(tmp_path / "a.jsonl", [{"id": f"i{n}", "category": "ab"[n % 2]} for n in range(40)])

    with open_source(tmp_path / "a.jsonl", limit=10) as dataset:
        chosen = [dataset.example(index) for index in dataset.order.tolist()]

        assert len(dataset) == len(dataset.order) == 10
    in_source_order = sorted(chosen, key=lambda e: int(e.item_id[1:]))
    assert [e.item_index for e in in_source_order] == list(range(10))
    assert Counter(e.category for e in chosen) == {"a": 5, "b": 5}


def test_fingerprint_follows_content_and_selection(tmp_path: Path):
    """Another cell, another order of rows or another selection is another dataset; a shuffle or a copy is not."""
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    write_jsonl(tmp_path / "copy" / "b.jsonl", ROWS)
    write_jsonl(tmp_path / "cell.jsonl", [*ROWS[:2], ROWS[2] | {"question": "7*7?"}])
    write_jsonl(tmp_path / "swapped.jsonl", ROWS[::-1])

    def fingerprint(name: str, **settings: Any) -> str:
        with open_source(tmp_path / name, **settings) as dataset:
            return dataset.fingerprint

    same = {fingerprint("a.jsonl"), fingerprint("copy"), fingerprint("a.jsonl", shuffle=False)}
    other = {fingerprint("cell.jsonl"), fingerprint("swapped.jsonl"), fingerprint("a.jsonl", limit=2)}
    assert len(same) == 1
    assert len(other | same) == 4


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("sub/logic-5k.parquet", "logic-5k"),
        ("sub/my set.jsonl.gz", "my-set"),
        ("sub/parts/*.jsonl", "parts"),
        ("sub/parts/", "parts"),
    ],
)
def test_name_is_fit_for_a_folder(tmp_path: Path, path: str, name: str):
    """Runs are named after the last part of the path that says anything."""
    for file in ("logic-5k.parquet", "my set.jsonl.gz", "parts/a.jsonl"):
        (tmp_path / "sub" / file).parent.mkdir(parents=True, exist_ok=True)
        write = {".parquet": write_parquet, ".gz": write_gzip, ".jsonl": write_jsonl}[Path(file).suffix]
        write(tmp_path / "sub" / file, ROWS)

    with open_source(f"{tmp_path}/{path}") as dataset:
        assert dataset.name == name


def test_scratch_file_has_no_name(tmp_path: Path):
    """Nothing leads to the copy of the data: a driver killed while it reads leaves nothing, a refusal neither."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    write_jsonl(tmp_path / "a.jsonl", ROWS)
    write_jsonl(tmp_path / "twins.jsonl", ROWS + ROWS)

    with open_dataset(DatasetConfig(path=str(tmp_path / "a.jsonl")), scratch=scratch) as dataset:
        left, first = list(scratch.iterdir()), dataset.example(0)
    with pytest.raises(DataError, match="duplicate id"):
        open_dataset(DatasetConfig(path=str(tmp_path / "twins.jsonl")), scratch=scratch)

    assert (left, first.item_index) == ([], 0)
    assert list(scratch.iterdir()) == []


# Selection, pure


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**63),
)
def test_each_category_gets_its_share(counts: list[int], share: float, seed: int):
    """A stratified sample has each category's exact share, rounded down or up, and no item twice."""
    total = sum(counts)
    limit = max(1, int(total * share))
    categories = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    hashes = np.arange(total, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    order = choose_order(hashes, categories, limit=limit, shuffle=True, seed=seed)

    taken = np.bincount(categories[order], minlength=len(counts))
    assert len(set(order.tolist())) == limit
    assert all(abs(k - limit * n / total) < 1 for k, n in zip(taken.tolist(), counts, strict=True))


def test_each_item_is_as_likely_as_any_other():
    """Over 2,000 seeds an item of a rare category is selected as often as one of a large category."""
    categories = np.array([0] * 17 + [1, 2, 3], dtype=np.int32)
    hashes = np.arange(20, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hits = np.zeros(20)

    for seed in range(2000):
        hits[choose_order(hashes, categories, limit=5, shuffle=False, seed=seed)] += 1

    assert hits.sum() == 10_000
    assert np.abs(hits / 2000 - 0.25).max() < 0.05  # five standard errors


def test_order_is_the_same_on_every_machine():
    """The order is part of what a seed promises: a change here changes the items of limited runs."""
    hashes = np.arange(8, dtype=np.uint64)

    order = choose_order(hashes, np.zeros(8, dtype=np.int32), limit=None, shuffle=True, seed=0)
    sample = choose_order(hashes, np.zeros(8, dtype=np.int32), limit=3, shuffle=False, seed=0)

    assert order.tolist() == [3, 1, 5, 2, 7, 4, 6, 0]
    assert sample.tolist() == [4, 5, 7]
