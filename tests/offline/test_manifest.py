from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_lines import a_line, manifest_lines, texts
from sampling import examples

from scrapy_dedupe.errors import ArchiveError, DamagedInput, SettingError, UsageError
from scrapy_dedupe.offline.manifest import FORMATS, LineWriter, ManifestLine, read_all, read_lines
from scrapy_dedupe.offline.manifest_lines import (
    COLUMNS,
    MAX_LINE_BYTES,
    digest_of,
    file_of,
    file_text,
    json_line,
    parse_json_line,
    parse_text_line,
    text_line,
    uri_of,
    uri_text,
    why_unwritable,
)
from scrapy_dedupe.tasks.faults import Faults

if TYPE_CHECKING:
    from collections.abc import Iterable

SHA1 = "aa20238aab9cea0696a9b5d5f7a44a42de16adfc"
MD5 = "d41d8cd98f00b204e9800998ecf8427e"
ORIGINAL = ManifestLine(
    "my crawl.warc.gz", 3901, 635, "http://a.example/b c", "2012-04-08T20:13:38Z", f"sha1:{SHA1}", 1, 1
)
COPY = ManifestLine(
    "b.warc.gz",
    0,
    64,
    "http://a.example/%20é",
    "2013",
    f"sha1:{SHA1}",
    1,
    2,
    ORIGINAL.uri,
    ORIGINAL.date,
)
any_columns = st.sampled_from(COLUMNS)


def write(path: Path, lines: Iterable[ManifestLine], columns: int, **options: object) -> None:
    with LineWriter(path, columns=columns, **options) as writer:  # type: ignore[arg-type]
        for line in lines:
            writer.write(line)


def test_text_has_these_very_bytes(tmp_path: Path) -> None:
    write(tmp_path / "m", [ORIGINAL, COPY], 10)
    assert (tmp_path / "m").read_bytes() == (
        f"my%20crawl.warc.gz 3901 635 %68ttp://a.example/b%20c 2012-04-08T20:13:38Z sha1:{SHA1} 1 1 - -\n"
        f"b.warc.gz 0 64 http://a.example/%20é 2013 sha1:{SHA1} 1 2 %68ttp://a.example/b%20c 2012-04-08T20:13:38Z\n"
    ).encode()


@pytest.mark.parametrize(("columns", "end"), [(6, ""), (7, " 1"), (10, " 1 1 - -")])
def test_a_line_has_as_many_columns_as_are_asked_for(columns: int, end: str) -> None:
    begin = f"my%20crawl.warc.gz 3901 635 %68ttp://a.example/b%20c 2012-04-08T20:13:38Z sha1:{SHA1}"
    assert text_line(ORIGINAL, columns) == begin + end


def test_json_has_these_very_bytes(tmp_path: Path) -> None:
    write(tmp_path / "m", [ORIGINAL], 10, format="jsonl")
    assert (tmp_path / "m").read_text() == (
        '{"file": "my crawl.warc.gz", "offset": 3901, "length": 635, "uri": "http://a.example/b c",'
        f' "date": "2012-04-08T20:13:38Z", "digest": "sha1:{SHA1}", "extension": 1, "copy": 1}}\n'
    )


@given(texts)
def test_every_name_and_uri_is_read_as_it_was(text: str) -> None:
    for spelt, back in ((file_text, file_of), (uri_text, uri_of)):
        written = spelt(text)
        assert back(written) == text
        assert not written.split()[1:]
        assert written.isprintable() or not any(char < " " for char in written)


@given(any_columns.flatmap(manifest_lines))
def test_every_line_is_read_as_it_was(line: ManifestLine) -> None:
    assert parse_text_line(text_line(line, line.columns)) == line
    assert parse_json_line(json_line(line, line.columns)) == line


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data(), st.sampled_from(FORMATS))
def test_every_file_is_read_as_it_was(tmp_path: Path, data: st.DataObject, form: str) -> None:
    columns = data.draw(any_columns)
    lines = data.draw(st.lists(manifest_lines(columns), min_size=1, max_size=5))
    path = tmp_path / "it's [a] manifest*"
    write(path, lines, columns, format=form, force=True)
    assert list(read_lines(path)) == lines
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("form", FORMATS)
def test_a_manifest_without_lines_is_one(form: str, tmp_path: Path) -> None:
    write(tmp_path / "m", [], 7, format=form)
    assert list(read_lines(tmp_path / "m")) == []


def test_what_the_c_tools_write_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(
        f"TG.warc.gz 3901 635 http://a.example/b%20c 2012-04-08T20:13:38Z sha1:{SHA1.upper()}\n".encode()
        + f"TG.warc.gz 4536 635 http://a.example/\xe9 2012-04-08T20:13:38Z MD5:{MD5}\n".encode("latin-1")
    )
    first, second = read_lines(path)
    assert (first.uri, first.digest) == ("http://a.example/b%20c", f"sha1:{SHA1}")
    assert (second.uri, second.digest) == ("http://a.example/é", f"md5:{MD5}")


GOOD = f"a.warc.gz 3901 635 http://a.example/ 2012-04-08T20:13:38Z sha1:{SHA1}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "it is empty"),
        ("a b c", "it has 3 columns; a manifest has 6, 7 or 10"),
        (f"{GOOD} 1 1", "it has 8 columns"),
        (f"{GOOD} ", "a column is empty"),
        (GOOD.replace(" 635", "  635"), "a column is empty"),
        (GOOD.replace("3901", "-1"), "the offset '-1' is not an integer"),
        (GOOD.replace("3901", "3.5"), "the offset '3.5'"),
        (GOOD.replace("3901", "٣"), "the offset '٣'"),
        (GOOD.replace("3901", "9" * 19), "out of range"),
        (GOOD.replace("635", "x"), "the length 'x'"),
        (GOOD.replace("2012-04-08T", "2012-02-30T"), "day"),
        (GOOD.replace("2012-04-08T20:13:38Z", "yesterday"), "'yesterday' is not a WARC-Date"),
        (GOOD.replace("sha1:", "crc32:"), "does not begin with md5, sha1, sha256, sha512"),
        (GOOD.replace("sha1:", ""), "does not begin with"),
        (GOOD[:-1], "needs 40 hexadecimal digits"),
        (GOOD.replace("sha1:aa", "sha1:ag"), "needs 40 hexadecimal digits"),
        (f"{GOOD} 0", "the extension 0 is not 1 or more"),
        (f"{GOOD} -1", "the extension '-1'"),
        (f"{GOOD} 1 0 - -", "the copy number 0 is not 1 or more"),
        (f"{GOOD} 1 2 - -", "it is copy 2 but has no URI and date of its original"),
        (f"{GOOD} 1 2 http://a/ -", "it is copy 2 but has no URI and date of its original"),
        (f"{GOOD} 1 2 http://a/ x", "'x' is not a WARC-Date"),
        (f"{GOOD} 1 1 http://a/ 2012", "it has a reference but is not a copy"),
        (f"{GOOD}\r", "control character"),
        (GOOD.replace("a.warc", "a\0warc"), "control character"),
        (GOOD.replace("http:", "%zz"), "another one without two hexadecimal digits"),
    ],
)
def test_a_wrong_line_is_named_with_file_and_line(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    columns = 10 if " 1 " in line and line.count(" ") == 9 else 7 if line.count(" ") == 6 else 6
    good = {6: GOOD, 7: f"{GOOD} 1", 10: f"{GOOD} 1 1 - -"}[columns]
    path.write_text(f"{good}\n{line}\n{good}\n", newline="")
    with pytest.raises(DamagedInput) as error:
        list(read_lines(path))
    assert str(error.value).startswith(f"{path}, line 2: ")
    assert reason in str(error.value)
    faults = Faults(keep_going=True)
    assert list(read_lines(path, faults=faults)) == [parse_text_line(good)] * 2
    assert faults.count == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"file": 1}', "file is not a string"),
        ('{"offset": "1"}', "offset is not an integer"),
        ('{"offset": true}', "offset is not an integer"),
        ('{"offset": 1.0}', "offset is not an integer"),
        ('{"name": "x"}', "'name' is not a member of a manifest line"),
        ('{"file": "a", "file": "b"}', "the same member twice"),
        ('{"file": "a", "offset": 0, "length": 1, "uri": "x", "date": "2012"}', "it has no digest"),
        ('{"file": "a"', "it is not JSON"),
        ("[1]", "it is not a JSON object"),
        ("  ", "it is empty"),
        ('{"file": ' + "[" * 100_000, "it is nested too deeply"),
        ('{"file": "\\ud800"}', "it is not UTF-8"),
        (json_line(ORIGINAL, 7).replace('"extension"', '"copy"'), "a copy number but no extension"),
        (json_line(ORIGINAL, 6).replace("my crawl.warc.gz", ""), "the file name is empty"),
        (json_line(ORIGINAL, 6).replace("3901", "-3901"), "out of range"),
    ],
)
def test_a_wrong_line_of_json_is_named_with_file_and_line(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f"{json_line(ORIGINAL, 6)}\n{line}\n")
    with pytest.raises(DamagedInput, match=r"m\.jsonl, line 2: ") as error:
        list(read_lines(path))
    assert reason in str(error.value)


def test_a_cut_last_line_is_not_taken_for_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "m").write_text(f"{GOOD} 1\n{GOOD} 1")
    with pytest.raises(
        DamagedInput, match=r"line 2: the last line has no line end: the manifest is truncated"
    ):
        list(read_lines(tmp_path / "m"))


def test_a_line_without_end_does_not_fill_memory(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"x" * (3 * MAX_LINE_BYTES) + f"\n{GOOD}\n".encode())
    faults = Faults(keep_going=True)
    assert [line.offset for line in read_lines(tmp_path / "m", faults=faults)] == [3901]
    assert [str(fault) for fault in faults.first] == [
        f"{tmp_path / 'm'}, line 1: it is longer than 1048576 bytes"
    ]


def test_manifests_can_be_put_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"{GOOD}\n" * 2)
    write(tmp_path / "b", [a_line()], 6, format="parquet")
    assert len(list(read_all([tmp_path / "a", tmp_path / "b"]))) == 3


@pytest.mark.parametrize("together", [True, False])
def test_another_number_of_columns_is_a_fault(together: bool, tmp_path: Path) -> None:
    paths = [tmp_path / "a"] if together else [tmp_path / "a", tmp_path / "b"]
    paths[0].write_text(f"{GOOD}\n")
    with paths[-1].open("a") as file:
        file.write(f"{GOOD} 1\n")
    with pytest.raises(DamagedInput, match="it has 7 columns, but the lines before have 6"):
        list(read_all(paths))


def test_a_table_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    import duckdb

    for number, columns in enumerate(
        ("1 AS a", "'x' AS file, 1 AS \"offset\"", "*, 'x' AS more FROM range(3)")
    ):
        path = tmp_path / f"{number}.parquet"
        duckdb.connect().execute(f"COPY (SELECT {columns}) TO '{path}' (FORMAT parquet)")
        with pytest.raises(
            DamagedInput, match=r"is not a manifest: its columns are .*\. Name a file that warcsum"
        ):
            list(read_lines(path))


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m", [a_line()], 6, format="parquet")
    data = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedInput, match=r"The Parquet file .* cannot be read.*create it again\.$"):
        list(read_lines(tmp_path / "m"))


def test_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(SettingError, match=r'pip install "scrapy-dedupe\[archive\]"'):
        write(tmp_path / "m", [a_line()], 6, format="parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_compressed_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gz").write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(DamagedInput, match="Unpack it first"):
        list(read_lines(tmp_path / "m.gz"))


def test_a_manifest_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="cannot be read"):
        list(read_lines(tmp_path / "none"))


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_there_is_replaced_by_force_alone(form: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_text("old")
    with pytest.raises(ArchiveError, match=r"already exists.*--force"):
        write(path, [a_line()], 6, format=form)
    assert path.read_text() == "old"
    write(path, [a_line()], 6, format=form, force=True)
    assert list(read_lines(path)) == [a_line()]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("form", FORMATS)
def test_an_error_leaves_nothing_behind(form: str, tmp_path: Path) -> None:
    with pytest.raises(KeyError), LineWriter(tmp_path / "m", columns=6, format=form) as writer:  # noqa: PT012
        writer.write(a_line())
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        ArchiveError, match=r"cannot be written: No space left on device\. Check the free space"
    ):
        write(tmp_path / "m", [a_line()], 6)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("lines", [1, 5_000])
def test_a_disk_that_fills_while_writing_is_one_sentence(lines: int, tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "m", columns=6)
    with (  # noqa: PT012 - the error may come with any line, or at the end
        pytest.raises(ArchiveError, match="No space left on device"),
        Path("/dev/full").open("wb") as full,
        writer,
    ):
        writer._file.close()
        writer._file = full
        for _ in range(lines):
            writer.write(a_line())
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_no_reader_would_take_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match=r"a.warc.gz, offset 0: the URI is too long"):
        write(tmp_path / "m", [a_line(uri="x" * MAX_LINE_BYTES)], 6)


@pytest.mark.parametrize("form", FORMATS)
def test_what_a_killed_process_left_is_replaced(form: str, tmp_path: Path) -> None:
    (tmp_path / ".m.work").mkdir()
    for name in ("lock", "manifest", "table"):
        (tmp_path / ".m.work" / name).write_text("left by a process that was killed\n" * 100)
    write(tmp_path / "m", [a_line()], 6, format=form)
    assert list(read_lines(tmp_path / "m")) == [a_line()]
    assert list(tmp_path.iterdir()) == [tmp_path / "m"]


def test_what_a_killed_process_left_goes_even_if_the_output_is_there(tmp_path: Path) -> None:
    (tmp_path / ".m.work").mkdir()
    for name in ("m", ".m.work/lock", ".m.work/manifest"):
        (tmp_path / name).write_text("old")
    with pytest.raises(ArchiveError, match="already exists"):
        write(tmp_path / "m", [a_line()], 6)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"m": "old"}


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"none/m cannot be written: the folder .*/none does not exist"):
        write(tmp_path / "none" / "m", [a_line()], 6)
    assert list(tmp_path.iterdir()) == []


def test_two_do_not_write_one_manifest_at_once(tmp_path: Path) -> None:
    with LineWriter(tmp_path / "m", columns=6) as writer:
        writer.write(a_line())
        with pytest.raises(
            ArchiveError, match=r"Another process is working in .*/\.m\.work\. Wait until it has finished"
        ):
            write(tmp_path / "m", [], 6)
    assert list(read_lines(tmp_path / "m")) == [a_line()]
    assert list(tmp_path.iterdir()) == [tmp_path / "m"]


def test_a_table_cannot_go_to_standard_output() -> None:
    with pytest.raises(UsageError, match="Name a file"):
        LineWriter(Path("-"), columns=6, format="parquet")


def test_a_line_must_fill_its_columns() -> None:
    for columns in (7, 10):
        with pytest.raises(ValueError, match=f"does not fill {columns} columns"):
            text_line(a_line(), columns)


def test_a_digest_has_one_form() -> None:
    assert digest_of(f"Decoded-MD5:{MD5.upper()}") == f"decoded-md5:{MD5}"


@pytest.mark.parametrize(
    ("name", "text"), [("{a}.warc", "%7Ba}.warc"), ("PAR1-x.warc", "%50AR1-x.warc"), ("P.warc", "P.warc")]
)
def test_no_name_passes_for_another_format(name: str, text: str) -> None:
    assert file_text(name) == text
    assert file_of(text) == name


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_a_line_is_called_writable_if_it_is_read_again_as_it_is(file: str, uri: str, date: str) -> None:
    for line in (
        a_line()._replace(file=file, uri=uri, date=date, extension=None),
        a_line()._replace(file=file, uri=uri, extension=None),
    ):
        try:
            is_read = parse_text_line(text_line(line, 6).encode().decode()) == line
        except ValueError:
            is_read = False
        assert (why_unwritable(line) is None) == is_read


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"file": ""}, "a column is empty"),
        ({"date": "2026-08-01T12:00:00Z\x05"}, "a control character"),
        ({"date": "-"}, "is not a WARC-Date"),
        ({"uri": "http://a.example/\ud800"}, "surrogate"),
        ({"digest": f"MD5:{MD5.upper()}"}, "digest would be read back with another value"),
        ({"offset": -1}, "offset"),
        ({"length": 1 << 63}, "out of range"),
        ({"uri": "http://a.example/" + "a" * (MAX_LINE_BYTES // 2)}, "too long"),
    ],
)
def test_what_the_reader_would_refuse_is_known_before_it_is_written(
    changed: dict[str, object], why: str
) -> None:
    line = ManifestLine("a.warc", 0, 1, "http://a.example/", "2026-08-01T12:00:00Z", f"md5:{MD5}")
    assert why_unwritable(line) is None
    assert why in str(why_unwritable(line._replace(**changed)))  # type: ignore[arg-type]
