from __future__ import annotations

import json
import os
import zipfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from offline.planted import SITE, Planting, text
from sampling import sampled

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline import summing
from scrapy_dedupe.offline.digests import Digester, DigestOptions
from scrapy_dedupe.offline.manifest import read_lines
from scrapy_dedupe.offline.summing import SumOptions, Sums, sum_files
from scrapy_dedupe.tasks import work
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import Input, find_inputs, relative_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Died(BaseException):
    """Stands for a kill."""


def _die() -> None:
    raise Died


NAMES = ("c.warc.gz", "a.warc", "b/b.arc.gz")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with three files below ``in``."""
    p = Planting()
    for name in NAMES:
        kind = "arc gzip" if ".arc" in name else "gzip" if name.endswith("gz") else "plain"
        p.file(name, kind)
        for number in range(3):
            uri, body = f"{SITE}/{name}/{number}", text(str(number), 1_500)
            if kind == "arc gzip":
                p.arc_capture(name, f"{name}-{number}", uri, body)
            else:
                p.exchange(name, f"{name}-{number}", uri, body)
    p.write(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def at_end(call: Callable[[], object] = _die) -> Iterator[None]:
    """Call a function when the manifest has its name, and the work of the run is still there."""

    def called_after(place: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def placed(temporary: Path, path: Path) -> None:
            place(temporary, path)
            call()

        return placed

    with pytest.MonkeyPatch.context() as patch:
        for name in ("put_in_place", "put_in_free_place"):
            patch.setattr(summing, name, called_after(getattr(whole_file, name)))
        yield


def inputs_of(*words: str) -> list[Input]:
    return find_inputs(words or ("in",), faults=Faults(), recursive=True)


def sums(folder: Path, *words: str, **options: Any) -> Sums:
    return sum_files(inputs_of(*words), folder / "sums", SumOptions(**options))


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_lines_are_in_the_order_of_the_files_and_offsets(folder: Path, jobs: int) -> None:
    done = sums(folder, *(f"in/{name}" for name in NAMES), jobs=jobs)
    lines = list(read_lines(folder / "sums"))
    assert [line.uri for line in lines] == [
        f"{SITE}/{name}/{number}" for name in NAMES for number in range(3)
    ]
    assert [line.file for line in lines] == [f"in/{name}" for name in NAMES for _ in range(3)]
    assert (done.files, done.lines, done.computed) == (3, 9, 9)
    assert sorted(path.name for path in folder.iterdir()) == ["in", "sums"]


def test_a_run_that_was_cut_goes_on_with_the_files_that_are_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums(folder)
    whole = (folder / "sums").read_bytes()
    (folder / "sums").unlink()
    read: list[str] = []
    lines = Digester.lines

    def note(digester: Digester) -> Any:
        read.append(digester._name)
        if len(read) == 3:
            raise Died
        return lines(digester)

    monkeypatch.setattr(Digester, "lines", note)
    with pytest.raises(Died):
        sums(folder)
    assert not (folder / "sums").exists()
    sums(folder)
    assert read[3:] == [read[2]]
    assert (folder / "sums").read_bytes() == whole


@pytest.mark.parametrize("change", ["options", "file", "version"])
def test_what_an_earlier_run_kept_is_used_for_the_same_question_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    given = inputs_of("in/a.warc")
    options = SumOptions(DigestOptions("sha1"), force=True)

    with at_end(), pytest.raises(Died):
        sum_files(given, folder / "sums", options)
    mark_part(folder)
    if change == "options":
        options = SumOptions(DigestOptions("md5"), force=True)
    elif change == "version":
        monkeypatch.setattr(work, "__version__", "0.0.1")
    else:
        # The same bytes at another time.
        os.utime(folder / "in" / "a.warc", ns=(0, 0))
    sum_files(given, folder / "sums", options)
    assert [line.uri for line in read_lines(folder / "sums")] == [
        f"{SITE}/a.warc/{number}" for number in range(3)
    ]


def test_what_an_earlier_run_kept_is_used(folder: Path) -> None:
    given = inputs_of("in/a.warc")

    with at_end(), pytest.raises(Died):
        sum_files(given, folder / "sums", SumOptions(force=True))
    mark_part(folder)
    sum_files(given, folder / "sums", SumOptions(force=True))
    assert next(read_lines(folder / "sums")).uri == f"{SITE}/a.warc/9"


def mark_part(folder: Path) -> None:
    """Change the first line that an earlier run kept."""
    (part,) = (folder / "sums.parts").glob("*.txt")
    part.write_bytes(part.read_bytes().replace(b"a.warc/0", b"a.warc/9"))


def test_a_file_that_changes_while_it_is_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Digester.lines

    def growing(digester: Digester) -> Any:
        yield from lines(digester)
        with (folder / "in" / "a.warc").open("ab") as file:
            file.write(b"WARC")

    monkeypatch.setattr(Digester, "lines", growing)
    with pytest.raises(
        ArchiveError, match=r"in/a\.warc has changed since this work began\. Run the command again\."
    ):
        sums(folder, "in/a.warc")
    assert not (folder / "sums").exists()


def test_faults_that_an_earlier_run_passed_over_are_told_again(folder: Path) -> None:
    path = folder / "in" / "a.warc"
    path.write_bytes(path.read_bytes()[:-900])

    options = SumOptions(keep_going=True)
    with at_end(), pytest.raises(Died):
        sum_files(inputs_of(), folder / "sums", options)
    again = sum_files(inputs_of(), folder / "sums", SumOptions(keep_going=True, force=True))
    assert again.fault_count == 1
    (folder / "sums").unlink()
    with at_end(), pytest.raises(Died):
        sum_files(inputs_of(), folder / "sums", options)
    with pytest.raises(DamagedInput, match=r"in/a\.warc, offset"):
        sums(folder, force=True)


@pytest.mark.parametrize("jobs", sampled([1, 2], [1]))
def test_damage_ends_the_work_without_a_manifest(folder: Path, jobs: int) -> None:
    path = folder / "in" / "a.warc"
    path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(DamagedInput, match=r"in/a\.warc, offset"):
        sums(folder, jobs=jobs)
    assert not (folder / "sums").exists()


def test_a_manifest_that_is_there_is_neither_replaced_nor_added_to_unasked(folder: Path) -> None:
    (folder / "sums").write_text("before")
    with pytest.raises(ArchiveError, match="--force"):
        sums(folder)
    assert (folder / "sums").read_text() == "before"
    assert not (folder / "sums.parts").exists()
    sums(folder, force=True)
    assert len(list(read_lines(folder / "sums"))) == 9


@pytest.mark.parametrize("form", ["text", "jsonl", "parquet"])
def test_files_that_are_not_listed_yet_are_added(folder: Path, form: str) -> None:
    sums(folder, "in/c.warc.gz", format=form)
    done = sums(folder, append=True)
    assert done.listed == ("in/c.warc.gz",)
    assert [line.file for line in read_lines(folder / "sums")] == [
        f"in/{name}" for name in ("c.warc.gz", "a.warc", "b/b.arc.gz") for _ in range(3)
    ]
    magic = {"text": b"in/", "jsonl": b'{"', "parquet": b"PAR1"}[form]
    assert (folder / "sums").read_bytes().startswith(magic)


def test_a_file_that_is_listed_is_not_added_by_another_name(folder: Path) -> None:
    sums(folder, "in/a.warc")
    (folder / "link.warc").symlink_to("in/a.warc")
    done = sums(folder, str(folder / "in" / "a.warc"), append=True)
    assert (done.files, done.listed) == (0, (f"{folder.as_posix()}/in/a.warc",))
    done = sums(folder, "link.warc", append=True)
    assert done.listed == ("link.warc",)
    assert len(list(read_lines(folder / "sums"))) == 3


def test_a_file_that_is_listed_relative_to_a_base_is_not_added_again(folder: Path) -> None:
    based = relative_to(inputs_of("in/a.warc"), folder / "in")
    sum_files(based, folder / "sums")
    done = sum_files([Input("a-again.warc", based[0].file), *based], folder / "sums", SumOptions(append=True))
    assert done.listed == ("a-again.warc", "a.warc")


def test_what_another_process_has_added_meanwhile_is_not_added_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums(folder, "in/a.warc")
    check = summing.check_output

    def late(output: Path, **options: Any) -> None:
        monkeypatch.setattr(summing, "check_output", check)
        check(output, **options)
        sums(folder, "in/c.warc.gz", append=True)

    monkeypatch.setattr(summing, "check_output", late)
    done = sums(folder, "in/c.warc.gz", append=True)
    assert (done.files, done.listed) == (0, ("in/c.warc.gz",))
    assert len(list(read_lines(folder / "sums"))) == 6


def test_a_broken_manifest_that_is_added_to_is_to_be_made_anew(folder: Path) -> None:
    sums(folder, "in/a.warc")
    with (folder / "sums").open("a") as file:
        file.write("not a line\n")
    with pytest.raises(DamagedInput, match=r"sums, line 4: .*Create the manifest again\.") as told:
        sums(folder, append=True, keep_going=True)
    assert "--keep-going" not in str(told.value)
    assert sorted(path.name for path in folder.iterdir()) == ["in", "sums"]


def test_a_part_is_not_used_for_other_bytes_with_the_time_of_the_first(folder: Path) -> None:
    path = folder / "in" / "a.warc"
    stat = path.stat()
    with at_end(), pytest.raises(Died):
        sum_files(inputs_of("in/a.warc"), folder / "sums")
    (folder / "sums").unlink()
    data = path.read_bytes()
    other = folder / "other"
    other.write_bytes(data.replace(b" 200 OK", b" 404 OK").replace(b"a.warc/0", b"a.warc/9"))
    other.replace(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    sums(folder, "in/a.warc")
    assert next(read_lines(folder / "sums")).uri == f"{SITE}/a.warc/9"


@pytest.mark.parametrize("name", ["{a}.warc.gz", "PAR1-x.warc.gz", '{"a":1}.warc.gz'])
def test_a_name_that_looks_like_a_format_is_none(folder: Path, name: str) -> None:
    (folder / "in" / "c.warc.gz").rename(folder / name)
    done = sums(folder, name)
    assert done.lines == 3
    assert {line.file for line in read_lines(folder / "sums")} == {name}


def test_only_what_fits_is_added(folder: Path) -> None:
    sums(folder, "in/a.warc")
    with pytest.raises(ArchiveError, match=", not md5"):
        sums(folder, append=True, digests=DigestOptions("md5"))
    lines = (folder / "sums").read_text().splitlines()
    (folder / "sums").write_text("".join(f"{line} 1\n" for line in lines))
    with pytest.raises(ArchiveError, match="later steps"):
        sums(folder, append=True)


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    one, two = inputs_of("in/a.warc", "in/c.warc.gz")
    with pytest.raises(UsageError, match="both have the name x"):
        sum_files([Input("x", one.file), Input("x", two.file)], folder / "sums")


@pytest.mark.parametrize("jobs", sampled([1, 2], [1]))
def test_files_in_a_wacz_are_summed(folder: Path, jobs: int) -> None:
    with zipfile.ZipFile(folder / "x.wacz", "w") as wacz:
        wacz.write(folder / "in" / "c.warc.gz", "archive/stored.warc.gz")
        wacz.write(folder / "in" / "a.warc", "archive/packed.warc", zipfile.ZIP_DEFLATED)
    sums(folder, "x.wacz", jobs=jobs)
    assert [(line.file, line.uri[-1]) for line in read_lines(folder / "sums")] == [
        (f"x.wacz/archive/{name}", str(number))
        for name in ("packed.warc", "stored.warc.gz")
        for number in range(3)
    ]


def test_another_process_with_the_same_output_is_refused(folder: Path) -> None:
    def again() -> None:
        with pytest.raises(ArchiveError, match="Another process"):
            sums(folder, force=True)

    with at_end(again):
        sum_files(inputs_of(), folder / "sums")


def test_the_state_of_a_file_says_what_it_depends_on(folder: Path) -> None:
    def look() -> None:
        (part,) = (folder / "sums.parts").glob("*.json")
        key = json.loads(part.read_text())["key"]
        stat = (folder / "in" / "a.warc").stat()
        place = str(folder / "in" / "a.warc")
        assert key["name"] == "in/a.warc"
        assert key["file"] == [place, stat.st_size, stat.st_ino, stat.st_mtime_ns, None, stat.st_ctime_ns]
        assert key["depends_on"]["algorithm"] == "sha512"

    with at_end(look):
        sum_files(inputs_of("in/a.warc"), folder / "sums", SumOptions(DigestOptions("sha512")))
