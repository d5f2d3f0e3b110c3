"""History: what is on storage is what was logged, whatever happens in between."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import raynb.telemetry.history as history_module
from raynb.telemetry.events import Record, RecordBatch
from raynb.telemetry.history import (
    HistoryWriter,
    read_history,
    to_frame,
    to_table,
)

FS = pafs.LocalFileSystem()


def batch(*values: dict[str, float | str], first: float = 0) -> RecordBatch:
    return RecordBatch.of([Record(first + k, 100.0 + k, v) for k, v in enumerate(values)])


def writer(path: Path) -> HistoryWriter:
    return HistoryWriter(FS, str(path))


def part_names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def test_nothing_yet(tmp_path: Path) -> None:
    one = writer(tmp_path / "none")
    one.flush()
    assert not (tmp_path / "none").exists()
    for table in (one.table(), read_history(FS, str(tmp_path / "none"))):
        assert table.num_rows == 0
        frame = to_frame(table)
        assert list(frame.columns) == ["rank", "attempt", "step", "time"]


def test_reads_back_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "lr=0.1" / "history"  # a path that looks like a partition stays a path
    one = writer(path)
    one.add(1, 0, batch({"loss": 1.0}, {"loss": 0.5}))
    one.add(0, 0, batch({"loss": 3.0, "acc": 0.1}))
    one.flush()
    one.add(0, 1, batch({"acc": 0.2}))
    assert one.rows == 4
    pending_too = to_frame(one.table())
    one.flush()
    frame = to_frame(read_history(FS, str(path)))
    assert frame.equals(pending_too)
    assert list(frame.columns) == ["rank", "attempt", "step", "time", "loss", "acc"]
    assert frame[["attempt", "rank"]].values.tolist() == [[0, 0], [0, 1], [0, 1], [1, 0]]
    np.testing.assert_array_equal(frame["loss"], [3.0, 1.0, 0.5, math.nan])
    np.testing.assert_array_equal(frame["acc"], [0.1, math.nan, math.nan, 0.2])
    assert frame["step"].dtype == np.int64 and frame["step"].tolist() == [0, 0, 1, 0]
    assert part_names(path) == ["part-000000.parquet", "part-000001.parquet"]


def test_absent_is_not_nan() -> None:
    table = to_table([(0, 0, batch({"a": math.nan}, {"b": 1.0}))])
    assert table["a"].null_count == 1 and math.isnan(table["a"][0].as_py())
    assert table["a"][1].as_py() is None and table["b"][0].as_py() is None


def test_names_never_collide(tmp_path: Path) -> None:
    names = ["rank", "rank_", "rank__", "step", "time", "attempt", "x.text", "x.text_"]
    one = writer(tmp_path)
    one.add(0, 0, batch({name: float(k) for k, name in enumerate(names)}))
    one.add(7, 0, batch({"x": "text of x", "rank": "text of rank"}))
    one.flush()
    assert one.error is None
    table = read_history(FS, str(tmp_path))
    assert len(set(table.column_names)) == len(table.column_names) == 4 + len(names) + 2
    row = table.slice(0, 1).to_pylist()[0]
    assert row["rank"] == 0 and row["step"] == 0
    assert [row[n + "_"] for n in names] == list(range(len(names)))
    assert table.slice(1, 1).to_pylist()[0]["x.text"] == "text of x"


def test_text_columns(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.add(0, 0, batch({"phase": "warm", "mixed": "n/a"}, {"mixed": 1.0}))
    one.flush()
    frame = to_frame(read_history(FS, str(tmp_path)))
    # Only ever text: under its own name. Both: apart.
    assert frame["phase"].iloc[0] == "warm"
    assert frame["mixed"].iloc[1] == 1.0 and frame["mixed.text"].iloc[0] == "n/a"


def test_steps_are_integers_only_where_all_are_whole() -> None:
    assert to_frame(to_table([(0, 0, batch({"a": 1.0}, first=2))]))["step"].dtype == np.int64
    for first in (0.5, math.nan, math.inf, 1e300):
        assert to_frame(to_table([(0, 0, batch({"a": 1.0}, first=first))]))["step"].dtype == float


def test_parts_are_merged_level_by_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_PARTS", 3)
    one = writer(tmp_path)
    for k in range(38):
        one.add(0, 0, batch({"a": float(k)}, first=k))
        one.flush()
        assert len(part_names(tmp_path)) <= 3 * 3 + 1
    frame = to_frame(read_history(FS, str(tmp_path)))
    assert frame["a"].tolist() == list(range(38))
    # A merged part of the second level is not written anew for every few parts.
    assert [len(level) for level in one._levels] == [2, 1, 2]
    assert part_names(tmp_path)[0] == "part-000000-000015.parquet"


def test_a_merge_that_was_cut_short_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "MAX_PARTS", 3)
    one = HistoryWriter(_NoDelete(), str(tmp_path))
    for k in range(4):
        one.add(0, 0, batch({"a": float(k)}, first=k))
        one.flush()
    assert len(part_names(tmp_path)) == 5  # the parts and the one that holds them
    assert to_frame(read_history(FS, str(tmp_path)))["a"].tolist() == [0, 1, 2, 3]
    again = writer(tmp_path)
    again.add(0, 1, batch({"a": 4.0}))
    again.flush()
    assert to_frame(again.table())["a"].tolist() == [0, 1, 2, 3, 4]


class _NoDelete(pafs.LocalFileSystem):
    def delete_file(self, path: str) -> None:
        raise OSError("not allowed")


def test_a_merge_that_fails_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "MAX_PARTS", 2)
    one = writer(tmp_path)
    real = history_module._as
    monkeypatch.setattr(history_module, "_as", lambda *a: 1 / 0)
    for k in range(4):
        one.add(0, 0, batch({"a": float(k)}, first=k))
        one.flush()
    monkeypatch.setattr(history_module, "_as", real)
    assert to_frame(one.table())["a"].tolist() == [0, 1, 2, 3]
    one.add(0, 0, batch({"a": 4.0}, first=4))
    one.flush()
    assert part_names(tmp_path) == ["part-000000-000003.parquet", "part-000004.parquet"]
    assert to_frame(read_history(FS, str(tmp_path)))["a"].tolist() == [0, 1, 2, 3, 4]


def test_a_merge_holds_few_rows_and_keeps_all_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "MAX_PARTS", 8)
    monkeypatch.setattr(history_module, "MERGE_CELLS", 100 * 9)
    held: list[int] = []
    real = history_module._as

    def watched(schema: pa.Schema, tables: list[pa.Table]) -> pa.Table:
        held.append(sum(table.num_rows for table in tables))
        return real(schema, tables)

    monkeypatch.setattr(history_module, "_as", watched)
    one, given = writer(tmp_path), []
    for k in range(9 * 9):
        # Metrics come and go, and one is text now and then.
        rows = [{f"m{k % 3}": float(k), "a": float(j), "t": "x"} for j in range(17)]
        given += [row["a"] for row in rows]
        one.add(k % 4, 0, batch(*rows))
        one.flush()
    assert one.error is None and part_names(tmp_path) == ["part-000000-000080.parquet"]
    assert max(held) < 100 + 9 * 17 and len(held) > 20
    table = read_history(FS, str(tmp_path))
    assert table["a"].to_pylist() == given and table.num_rows == one.rows
    assert table.column_names == [
        "rank",
        "attempt",
        "step",
        "time",
        "m0",
        "a",
        "t.text",
        "m1",
        "m2",
    ]
    assert [table[f"m{k}"].null_count for k in range(3)] == [2 * one.rows / 3] * 3


def test_large_parts_are_not_merged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_PARTS", 3)
    monkeypatch.setattr(history_module, "MAX_MERGED_ROWS", 10)
    one = writer(tmp_path)
    for k in range(48):
        one.add(0, 0, batch({"a": float(k)}, first=k))
        one.flush()
    assert len(part_names(tmp_path)) == 12  # of four rows each; sixteen would be too many
    assert to_frame(read_history(FS, str(tmp_path)))["a"].tolist() == list(range(48))


def test_what_cannot_be_written_is_kept_and_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "run" / "history"
    one = writer(path)
    (tmp_path / "run").write_text("a file in the way")
    one.add(0, 0, batch({"a": 1.0}))
    one.flush()
    assert one.error and one.rows == 1
    one.add(0, 0, batch({"a": 2.0}, first=1))
    one.flush()
    assert one.error
    (tmp_path / "run").unlink()
    one.flush()
    assert one.error is None
    assert to_frame(read_history(FS, str(path)))["a"].tolist() == [1.0, 2.0]


def test_what_waits_long_for_storage_waits_in_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "MAX_PENDING", 5)
    one = writer(tmp_path / "run" / "history")
    (tmp_path / "run").write_text("a file in the way")
    for k in range(0, 30, 3):
        one.add(0, 0, batch({"a": float(k)}, {"a": k + 1.0}, {"a": k + 2.0, "t": "x"}, first=k))
        one.flush()
        assert sum(len(records) for _, _, records in one._pending) < 6
    assert one.error and len(one._spool) == 5
    pending, upto = one.unwritten()
    assert pending["a"].to_pylist() == list(range(30)) and upto == 0
    monkeypatch.setattr(history_module, "SPOOLED_FLUSH_S", 0.0)
    assert one.due()
    (tmp_path / "run").unlink()
    one.add(0, 0, batch({"a": 30.0}, first=30))
    one.flush()
    assert one.error is None and not one._spool and not one.due()
    table = read_history(FS, str(tmp_path / "run" / "history"))
    assert table["a"].to_pylist() == list(range(31)) and table["t.text"].null_count == 21


def test_what_waits_is_there_while_storage_can_not_be_read(tmp_path: Path) -> None:
    directory = tmp_path / "history"
    one = writer(directory)
    one.add(0, 0, batch({"a": 1.0}))
    one.flush()
    directory.rename(tmp_path / "aside")
    directory.write_text("in the way")
    one.add(0, 0, batch({"a": 2.0}))
    assert one.table()["a"].to_pylist() == [2.0] and one.error
    directory.unlink()
    (tmp_path / "aside").rename(directory)
    assert one.table()["a"].to_pylist() == [1.0, 2.0] and one.error is None


def test_a_full_local_disk_leaves_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_PENDING", 1)
    one = writer(tmp_path / "run" / "history")
    (tmp_path / "run").write_text("a file in the way")
    full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    monkeypatch.setattr(history_module.tempfile, "TemporaryFile", lambda **_: full)
    one.add(0, 0, batch({"a": 1.0}))
    one.flush()
    assert full.closed and not one._spool
    (tmp_path / "run").unlink()
    assert to_frame(one.table())["a"].tolist() == [1.0]


def test_no_place_for_local_files_leaves_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "MAX_PENDING", 1)
    one = writer(tmp_path / "run" / "history")
    (tmp_path / "run").write_text("a file in the way")

    def nowhere(**_: object) -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(history_module.tempfile, "TemporaryFile", nowhere)
    one.add(0, 0, batch({"a": 1.0}))
    one.flush()
    assert one.error is not None
    (tmp_path / "run").unlink()
    assert to_frame(one.table())["a"].tolist() == [1.0]


def test_one_batch_of_many_ranks_is_one_table() -> None:
    given = [
        (3, 0, batch({"a": 1.0}, {"b": 2.0})),
        (1, 2, batch({"b": 3.0, "t": "x"}, {"a": math.nan})),
        (0, 0, RecordBatch.of([])),
    ]
    assert to_table(given).to_pylist()[:3] == [
        {"rank": 3, "attempt": 0, "step": 0, "time": 100, "a": 1, "b": None, "t.text": None},
        {"rank": 3, "attempt": 0, "step": 1, "time": 101, "a": None, "b": 2, "t.text": None},
        {"rank": 1, "attempt": 2, "step": 0, "time": 100, "a": None, "b": 3, "t.text": "x"},
    ]
    assert math.isnan(to_table(given)["a"][3].as_py()) and len(to_table(given)) == 4


def test_what_is_written_and_what_waits_are_the_whole(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.add(0, 0, batch({"a": 1.0}))
    pending, upto = one.unwritten()
    assert pending.num_rows == 0 and upto == 1
    one.add(0, 0, batch({"a": 2.0}, first=1))
    one.flush()  # written between the answer and the reading
    assert to_frame(read_history(FS, str(tmp_path), upto))["a"].tolist() == [1.0]


def test_a_run_that_goes_on_keeps_what_was_there(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.add(0, 0, batch({"a": 1.0}))
    first.flush()
    (tmp_path / "part-000001.parquet.tmp").write_bytes(b"PAR1 half")  # a crash in mid-write
    (tmp_path / "other.parquet").write_bytes(b"not ours")
    second = writer(tmp_path)
    second.add(0, 1, batch({"a": 2.0, "b": 3.0}))
    second.flush()
    assert second.rows == 1
    frame = to_frame(read_history(FS, str(tmp_path)))
    assert frame["attempt"].tolist() == [0, 1] and frame["a"].tolist() == [1.0, 2.0]
    assert frame.equals(to_frame(second.table()))


def test_due_only_with_something_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "FLUSH_S", 0.0)
    one = writer(tmp_path)
    assert not one.due()
    one.add(0, 0, batch({"a": 1.0}))
    assert one.due()
    one.flush()
    assert not one.due()


def test_a_few_wide_records_among_many_narrow_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "MAX_PART_CELLS", 2_000)
    monkeypatch.setattr(history_module, "MAX_CELLS", 9_000)
    one = writer(tmp_path)
    wide = {f"w{k}": float(k) for k in range(100)}
    for k in range(10):
        one.add(0, 0, batch(*[{"loss": float(j)} for j in range(90)], first=100 * k))
        one.add(0, 0, batch({"loss": 0.5, **wide, "also": 1.0}, {"also": 2.0}, first=100 * k + 90))
    one.flush()
    for name in part_names(tmp_path):
        part = pq.read_metadata(tmp_path / name)
        assert part.num_rows * (part.num_columns - 4) <= 2_000
    table = one.table()
    assert len(table) == one.rows == 920
    # Densely, it would be 920 x 106: what has the most values is kept, and the rest is counted.
    assert {"loss", "also"} <= set(table.column_names) and len(table.column_names) <= 13
    assert history_module.left_out(table) == 102 - (len(table.column_names) - 4)
    assert table["loss"].null_count == 10 and table["also"].null_count == 900
    whole = [pq.read_table(tmp_path / name) for name in part_names(tmp_path)]
    assert sum(t.num_rows - t["w7"].null_count for t in whole if "w7" in t.column_names) == 10
