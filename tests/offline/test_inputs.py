from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest
from offline.calling import call

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs, left_out, refuse_own_folder, relative_to

RECORD = b"WARC/1.1\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files at two levels."""
    for name in ("in/b.warc", "in/a.warc", "in/deep/c.warc.gz", "in/deep/d.ARC"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(RECORD) if name.endswith("gz") else RECORD)
    (tmp_path / "in" / "notes.txt").write_text("no archive")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*words: str, recursive: bool = False, without: Path | None = None) -> list[str]:
    found = find_inputs(words, faults=Faults(), recursive=recursive, without=without)
    for given in found:
        with given.file.open("rb") as stream:
            assert stream.read(2)
    return [given.name for given in found]


def test_a_folder_stands_for_its_own_files_in_order(folder: Path) -> None:
    assert names("in") == ["in/a.warc", "in/b.warc"]


def test_a_folder_stands_for_all_below_it_if_that_is_asked_for(folder: Path) -> None:
    assert names("in", recursive=True) == ["in/a.warc", "in/b.warc", "in/deep/c.warc.gz", "in/deep/d.ARC"]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["in"], 2),
        (["i*"], 2),
        (["in", "in/deep/c.warc.gz"], 1),
        (["in", "in/deep"], 0),
        (["in/deep", "in"], 0),
        (["in/a.warc"], 0),
    ],
)
def test_what_a_folder_does_not_stand_for_is_counted(folder: Path, words: list[str], left: int) -> None:
    for name in ("in/.dedupe/x.warc", "in/out/x.warc", "in/out/x.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(RECORD)
    found = find_inputs(words, faults=Faults())
    assert left_out(words, found, without=folder / "in" / "out")[0] == left
    assert left_out(["in"], find_inputs(["in"], faults=Faults(), recursive=True))[0] == 0


def test_the_state_of_a_run_is_no_input_and_neither_is_its_output(folder: Path) -> None:
    for name in ("in/.dedupe/x.warc", "in/out/x.warc"):
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(RECORD)
    found = names("in", recursive=True, without=folder / "in" / "out")
    assert not [name for name in found if "x.warc" in name]
    assert "in/out/x.warc" in names("in", recursive=True)


def test_words_keep_their_order_and_a_file_comes_once(folder: Path) -> None:
    assert names("in/b.warc", "in", "./in/a.warc") == ["in/b.warc", "in/a.warc"]


def test_an_absolute_word_gives_absolute_names(folder: Path) -> None:
    assert names(str(folder / "in")) == [f"{folder.as_posix()}/in/a.warc", f"{folder.as_posix()}/in/b.warc"]


def test_a_pattern_is_expanded_here_if_no_shell_did_it(folder: Path) -> None:
    assert names("in/**/*.warc*") == ["in/a.warc", "in/b.warc", "in/deep/c.warc.gz"]


def test_a_file_may_have_a_name_that_looks_like_a_pattern(folder: Path) -> None:
    (folder / "[a].warc").write_bytes(RECORD)
    assert names("[a].warc") == ["[a].warc"]


def test_the_files_in_a_wacz_are_named_below_it(folder: Path) -> None:
    with zipfile.ZipFile(folder / "in" / "x.wacz", "w") as wacz:
        wacz.writestr("archive/one.warc", RECORD)
        wacz.writestr("archive/two.warc.gz", gzip.compress(RECORD), zipfile.ZIP_DEFLATED)
    found = find_inputs(["in/x.wacz"], faults=Faults())
    assert [given.name for given in found] == ["in/x.wacz/archive/one.warc", "in/x.wacz/archive/two.warc.gz"]
    assert all(given.is_member and given.size_bytes for given in found)


def test_a_word_without_a_file_is_refused(folder: Path) -> None:
    for word, why in (("absent.warc", "no file"), ("no*.warc", "no file"), (".", "folder without")):
        with pytest.raises(UsageError, match=why):
            names(word)


@pytest.mark.parametrize("recursive", [False, True])
def test_a_folder_of_wacz_files_alone_says_how_they_are_named(folder: Path, recursive: bool) -> None:
    place = folder / "packed" / "2026" if recursive else folder / "packed"
    place.mkdir(parents=True)
    (place / "x.wacz").touch()
    pattern = r"packed/2026/\*\.wacz" if recursive else r"packed/\*\.wacz"
    with pytest.raises(UsageError, match=rf"with the pattern '{pattern}'.* extract their WARC files first"):
        names("packed", recursive=recursive)
    (place / "x.wacz").unlink()
    with pytest.raises(UsageError, match=r"folder without WARC and ARC files\. Name another") as refusal:
        names("packed", recursive=recursive)
    assert "wacz" not in str(refusal.value).lower()


def test_a_folder_of_links_to_folders_says_that_they_are_not_followed(folder: Path) -> None:
    (folder / "links").mkdir()
    (folder / "links" / "2026").symlink_to(folder / "in")
    with pytest.raises(UsageError, match=r"such as links/2026, are not followed: name the folder"):
        names("links", recursive=True)


def test_what_is_no_archive_is_a_fault(folder: Path) -> None:
    with pytest.raises(DamagedInput, match=r"in/notes\.txt"):
        names("in/*")
    faults = Faults(keep_going=True)
    found = find_inputs(["in/a.warc", "in/notes.txt"], faults=faults)
    assert [given.name for given in found] == ["in/a.warc"]
    assert [fault.place for fault in faults.first] == ["in/notes.txt"]
    assert "in/notes.txt" not in faults.first[0].reason


def test_a_file_that_cannot_be_opened_is_not_passed_over(folder: Path) -> None:
    (folder / "in" / "lost.warc").symlink_to("nowhere")
    with pytest.raises(ArchiveError, match="lost"):
        find_inputs(["in"], faults=Faults(keep_going=True))


def test_names_can_be_given_relative_to_a_folder(folder: Path) -> None:
    found = find_inputs(["in"], faults=Faults(), recursive=True)
    assert [given.name for given in relative_to(found, Path("in"))] == [
        "a.warc", "b.warc", "deep/c.warc.gz", "deep/d.ARC",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"in/a\.warc is not below in/deep"):
        relative_to(found, Path("in/deep"))


@pytest.mark.parametrize("ending", ["zst", "bz2", "xz", "lz4"])
def test_archives_that_cannot_be_read_are_not_passed_over_in_silence(folder: Path, ending: str) -> None:
    path = folder / "in" / f"z.warc.{ending}"
    path.write_bytes(b"\x28\xb5\x2f\xfd rest" if ending == "zst" else b"BZh rest")
    faults = Faults(keep_going=True)
    assert [given.name for given in find_inputs(["in"], faults=faults)] == ["in/a.warc", "in/b.warc"]
    assert [fault.place for fault in faults.first] == [f"in/z.warc.{ending}"]
    with pytest.raises(DamagedInput, match=rf"z\.warc\.{ending}"):
        names("in")


@pytest.mark.parametrize(
    ("words", "recursive", "expected"),
    [
        (["in"], False, ("in/a.warc.gz.open", "in/b.ARC.OPEN")),
        (["in"], True, ("in/a.warc.gz.open", "in/b.ARC.OPEN", "in/deep/c.warc.open")),
        (["in", "in/deep"], False, ("in/a.warc.gz.open", "in/b.ARC.OPEN", "in/deep/c.warc.open")),
        (["in", "in/a.warc.gz.open"], False, ("in/b.ARC.OPEN",)),
        (["in/a.warc"], False, ()),
    ],
)
def test_files_that_a_crawl_has_open_are_left_out_by_name(
    folder: Path, words: list[str], recursive: bool, expected: tuple[str, ...]
) -> None:
    (folder / "in" / "out").mkdir()
    for name in (
        "a.warc.gz.open",
        "b.ARC.OPEN",
        "deep/c.warc.open",
        "out/d.warc.open",
        "e.wacz.open",
        "f.open",
    ):
        (folder / "in" / name).write_bytes(RECORD)
    out = folder / "in" / "out"
    found = find_inputs(words, faults=Faults(), recursive=recursive, without=out)
    assert left_out(words, found, recursive=recursive, without=out)[1] == expected


def test_a_folder_with_nothing_but_open_files_says_so(folder: Path) -> None:
    (folder / "running").mkdir()
    (folder / "running" / "a.warc.gz.open").write_bytes(RECORD)
    with pytest.raises(UsageError, match="a crawl has open, or did not close"):
        find_inputs(["running"], faults=Faults())


@pytest.mark.parametrize(
    ("words", "output", "is_refused"),
    [
        (["in"], "in", True),
        (["in/a.warc"], "in", True),
        (["in/a.warc"], "in/deep/..", True),
        (["in/deep"], "in/deep", True),
        (["in", "in/deep"], "in", True),
        (["in"], "link", True),
        (["in"], "in/deep", False),
        (["in/deep"], "in", False),
        (["in"], "out", False),
    ],
)
def test_the_folder_of_the_inputs_is_no_output(
    folder: Path, words: list[str], output: str, is_refused: bool
) -> None:
    (folder / "link").symlink_to(folder / "in")
    found = find_inputs(words, faults=Faults())
    if is_refused:
        with pytest.raises(ArchiveError, match="with --in-place, or choose another folder") as refused:
            refuse_own_folder(found, Path(output))
        assert "--force" not in str(refused.value)
    else:
        refuse_own_folder(found, Path(output))


@pytest.mark.parametrize("verb", ["warcsum", "near"])
@pytest.mark.parametrize("name", ["in/a.warc", "link.warc", "in/a.wacz"])
def test_an_input_is_not_replaced_by_the_result(folder: Path, verb: str, name: str) -> None:
    (folder / "link.warc").symlink_to("in/a.warc")
    with zipfile.ZipFile(folder / "in/a.wacz", "w") as container:
        container.writestr("archive/a.warc", RECORD)
        container.writestr("datapackage.json", "{}")
    before = (folder / name).read_bytes()
    called = call(folder, verb, "in/a.wacz" if name == "in/a.wacz" else "in/a.warc", "-o", name, "--force")
    assert called.code == 3
    assert (
        called.sentences
        == f"scrapy-dedupe {verb}: {name} is one of the files to read. Name another output.\n"
    )
    assert (folder / name).read_bytes() == before
