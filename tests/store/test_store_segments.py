"""Rows to Parquet and back: every column, every checksum."""

from __future__ import annotations

import dataclasses
import random

import pyarrow as pa
import pytest
from store_rows import SPEC, SmallRun, flip_byte, make_result

from evalpipe.errors import StateError
from evalpipe.records import AttemptRecord, Key, Result
from evalpipe.store.local import LocalStore
from evalpipe.store.objects import NotFound
from evalpipe.store.schema import ATTEMPT_SCHEMA, RESULT_SCHEMA, conform
from evalpipe.store.segments import (
    SegmentInfo,
    decode,
    describe,
    encode,
    keys_of,
    read_segment,
    spec_of,
    write_segment,
)

ATTEMPT = AttemptRecord(
    3, 0, 0, 1, "rate_limited", "429", "slow down", 1_700_000_000.5, 0.1, None, 0, 2.0, 5, 8, 1, "w"
)


@pytest.mark.parametrize(("schema", "row"), [(RESULT_SCHEMA, Result), (ATTEMPT_SCHEMA, AttemptRecord)])
def test_columns_are_the_fields_of_the_record(schema: pa.Schema, row: type):
    """One list of names, in one order."""
    assert schema.names == [f.name for f in dataclasses.fields(row)]


@pytest.mark.parametrize(
    ("schema", "row"),
    [(RESULT_SCHEMA, make_result(3)), (RESULT_SCHEMA, make_result(4, failed=True)), (ATTEMPT_SCHEMA, ATTEMPT)],
)
def test_rows_come_back_as_they_were(schema: pa.Schema, row: Result | AttemptRecord):
    """Nulls stay nulls and times keep their microseconds."""
    table = decode(encode([row], schema, spec_sha256="abc"))

    (stored,) = table.to_pylist()
    stored["sent_at"] = stored["sent_at"].timestamp()
    assert stored == dataclasses.asdict(row)
    assert spec_of(table) == "abc"
    assert table.schema.equals(schema)


def test_a_row_without_a_required_value_is_refused():
    """The worker's bug is told where it is made, with the column."""
    row = dataclasses.replace(make_result(1), prompt_sha256=None)  # type: ignore[arg-type]

    with pytest.raises(StateError, match="prompt_sha256 is required"):
        encode([row], RESULT_SCHEMA)


def test_every_bit_flip_in_a_named_file_is_noticed(store: LocalStore):
    """The log's sha256 covers pages and footer alike."""
    info = SmallRun(store).write(range(20))
    rng = random.Random(0)

    for _ in range(50):
        at = rng.randrange(info.bytes)
        flip_byte(store, info.path, at=at)
        with pytest.raises(StateError, match=r"damaged: sha256"):
            read_segment(store, info)
        flip_byte(store, info.path, at=at)
    assert read_segment(store, info).num_rows == 20


def test_page_checksums_notice_flips_without_a_log():
    """Second net: a flip in a page of data is an error even for a reader that knows no sha256."""
    data = bytearray(encode([make_result(i, text=f"{i} " * 50) for i in range(200)], RESULT_SCHEMA))
    data[100] ^= 1

    with pytest.raises(StateError, match="not a sound Parquet file"):
        decode(bytes(data))


def test_a_torn_file_is_noticed():
    """A truncated file has no footer."""
    data = encode([make_result(1)], RESULT_SCHEMA)

    with pytest.raises(StateError, match="not a sound Parquet file"):
        decode(data[: len(data) // 2])


def test_what_is_written_is_what_is_described(store: LocalStore):
    """A worker's report equals what an orphan hunt would find out, and survives JSON."""
    info = SmallRun(store).write(range(5), failed=[2])

    assert describe(info.path, store.get(info.path), kind="results", spec_sha256=SPEC.sha256) == info
    assert SegmentInfo.from_json(info.to_json()) == info
    assert (info.rows, set(info.failed), len(info.ok)) == (5, {Key(2)}, 4)
    assert info.path.startswith("segments/1-") and info.sha256[:16] in info.path


def test_writing_again_with_the_same_number_is_harmless(store: LocalStore):
    """After a lost reply the worker writes the same rows once more."""
    rows = [make_result(1)]

    infos = [write_segment(store, rows, epoch=1, writer="a" * 32, worker="w", seq=7, spec_sha256="s") for _ in range(2)]

    assert infos[0] == infos[1]
    assert store.list("segments/") == [infos[0].path]


def test_attempts_go_to_their_own_folder(store: LocalStore):
    """Attempts have no keys: they never make an item done."""
    info = write_segment(
        store, [ATTEMPT], epoch=1, writer="a" * 32, worker="w", seq=0, spec_sha256="s", kind="attempts"
    )

    assert info.path.startswith("attempts/")
    assert (info.rows, len(info.ok), len(info.failed)) == (1, 0, 0)


def test_of_one_key_in_a_batch_the_first_row_is_kept(store: LocalStore):
    """The rule of the log holds inside a file too."""
    run = SmallRun(store)

    info = run.write_rows([make_result(1, text="first"), make_result(2), make_result(1, text="second")])

    assert read_segment(store, info)["response"].to_pylist() == ["first", "yes"]


def test_a_file_that_is_gone_is_not_found(store: LocalStore):
    """Gone and damaged are told apart."""
    info = SmallRun(store).write([1])
    store.delete(info.path)

    with pytest.raises(NotFound):
        read_segment(store, info)


def test_older_files_get_new_columns_as_nulls():
    """Only nullable columns may be added; anything else does not fit."""
    table = decode(encode([make_result(1)], RESULT_SCHEMA))

    assert conform(table.drop_columns(["reasoning"]), RESULT_SCHEMA)["reasoning"].null_count == 1
    with pytest.raises(StateError, match="item_id is missing"):
        conform(table.drop_columns(["item_id"]), RESULT_SCHEMA)
    with pytest.raises(StateError, match="later version"):
        conform(table.append_column("new", [[1]]), RESULT_SCHEMA)


def test_an_empty_table_has_no_keys():
    """A file without rows is no special case."""
    ok, failed = keys_of(RESULT_SCHEMA.empty_table())

    assert (len(ok), len(failed)) == (0, 0)
