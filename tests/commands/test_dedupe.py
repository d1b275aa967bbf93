from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from offline.outputs import assert_deduplicated, assert_restored
from offline.planted import SITE, Copy, Planting, text

from scrapy_dedupe.crawls import open_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called


@pytest.fixture
def planting(call: Callable[..., Called]) -> Planting:
    """Two files with one page in common below ``in``, in the folder of the call."""
    p = Planting()
    for number, name in enumerate(("a.warc.gz", "deep/b.warc.gz")):
        p.file(name)
        fate = Copy("same-0") if number else None
        p.exchange(
            name, f"same-{number}", f"{SITE}/same", text("same", 5_000), fate=fate, digest_form="sha256"
        )
        p.exchange(
            name, f"own-{number}", f"{SITE}/own/{number}", text(f"own-{number}", 5_000), digest_form="sha256"
        )
    p.write(Path("in"))
    return p


def test_all_is_done_in_one_go(call: Callable[..., Called], planting: Planting) -> None:
    called = call("dedupe", "-r", "in", "-o", "out")
    assert (called.code, called.err) == (0, "")
    assert_deduplicated(planting, Path("out"))
    lines = called.out.splitlines()
    rows = {line[:20].rstrip(): line[20:] for line in lines if "  " in line}
    sizes = {title: rows.pop(title) for title in ("size before", "size after", "saved")}
    assert rows == {
        "files": "2",
        "responses": "4",
        "repeated digests": "1",
        "now revisits": "1",
        "references updated": "1",
    }
    assert all(" kB" in size or " B" in size for size in sizes.values())
    verified, where, undo = lines[-3:]
    assert verified == (
        "Verified: 8 records read again and compared with the old records; 1 revisit leads to the same payload,"
        " 1 replayed as a sample."
    )
    assert where == (
        "The new files are in out; the old ones are unchanged. The manifest and the report are kept in"
        " out/.dedupe."
    )
    assert undo == "To undo it: scrapy-dedupe restore out -o FOLDER"


def test_an_archive_in_one_folder_further_down_is_proved_too(
    call: Callable[..., Called], planting: Planting
) -> None:
    planting.write(Path("old/of/2019"))
    assert call("dedupe", "-r", "old", "-o", "new").code == 0
    assert sorted(str(file) for file in Path("new").rglob("*.gz")) == ["new/a.warc.gz", "new/deep/b.warc.gz"]
    proof = call("verify", "old", "new")
    assert (proof.code, proof.out.splitlines()[-1]) == (0, "Nothing is lost.")
    Path("new/deep/b.warc.gz").unlink()
    proof = call("verify", "old", "new")
    assert proof.code == 4
    assert "old/of/2019/deep/b.warc.gz: there is no such file after" in proof.out


def test_what_is_left_is_told_with_its_reason_and_the_option(
    call: Callable[..., Called], planting: Planting
) -> None:
    out = call("dedupe", "-r", "in", "-o", "out", "--min-size", "6000").out
    assert (
        "copies left         1, not changed:\n             1  smaller than the minimum size (see --min-size)\n"
        in out
    )


def test_in_place_it_says_where_the_manifest_is_and_how_to_undo(
    call: Callable[..., Called], planting: Planting
) -> None:
    lines = call("dedupe", "-r", "in", "--in-place").out.splitlines()
    kept = Path("in/.dedupe").absolute()
    assert lines[-2:] == [
        f"The files were replaced. The manifest and the report are kept in {kept}.",
        "To undo it: scrapy-dedupe restore PATH... --in-place, with the same PATHs",
    ]
    assert sorted(path.name for path in kept.iterdir()) == ["manifest.txt", "report.json"]
    again = call("dedupe", "-r", "in", "--in-place").out.splitlines()
    assert again[-1] == f"No file was changed. The manifest and the report are kept in {kept}."
    assert call("restore", "in", "--in-place").code == 0
    assert_restored(planting, Path("in"))


@pytest.mark.usefixtures("planting")
def test_the_figures_are_the_same_as_json(call: Callable[..., Called]) -> None:
    result = call("dedupe", "-r", "in", "-o", "out", "--json").json
    assert result["index"] is None
    assert result["deduped"] == json.loads(Path("out/.dedupe/report.json").read_text())
    assert (result["deduped"]["converted"], result["deduped"]["files"]) == (1, 2)


@pytest.mark.usefixtures("planting")
def test_a_dry_run_shows_hosts_and_types(call: Callable[..., Called]) -> None:
    called = call("dedupe", "-r", "in", "--dry-run")
    assert called.code == 0
    assert not Path("out").exists()
    assert "would be revisits   1\n" in called.out
    for name in ("garden.example", "text/html"):
        assert any(line.endswith(f"         1  {name}") for line in called.out.splitlines()), name


@pytest.mark.usefixtures("planting")
def test_the_result_can_be_imported_at_once(call: Callable[..., Called], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'index.sqlite'}"
    called = call("dedupe", "-r", "in", "-o", "out", "--index", "--crawl-id", "spring", "--store", url)
    assert (called.code, called.err) == (0, "")
    assert "2 files imported into" in called.out
    with open_index(url) as index:
        (crawl,) = index.crawls()
        assert crawl.id == "spring"
    assert ": 3 originals, 1 revisit." in called.out


@pytest.mark.usefixtures("planting")
@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("in",), 2, "-o FOLDER"),
        (("in", "-o", "out", "--in-place"), 2, "Give only one of them"),
        (("in", "--in-place", "--convert-arc"), 2, "only works with -o FOLDER"),
        (("in", "-o", "out", "--status", "ok"), 2, "not an HTTP status"),
        (("in", "-o", "out", "--min-size", "-1"), 2, "--min-size is -1"),
        (("in", "-o", "out", "--jobs", "-1"), 2, "--jobs is -1"),
        (("in", "-o", "out", "--crawl-id", "x"), 2, "--index"),
        (("in", "-o", "out", "--index", "--crawl-id", "a b"), 2, "a b"),
        (("in", "--dry-run", "--index"), 2, "no files to import"),
        (("absent", "-o", "out"), 2, "matches no file"),
        (("in", "-o", "in"), 3, "--in-place"),
        (("-r", "in", "-o", "in"), 3, "--in-place"),
        (("in", "-o", "in", "--force"), 3, "--in-place"),
        (("in", "-o", "in/a.warc.gz"), 3, "a.warc.gz"),
    ],
)
def test_wrong_words_are_told_before_anything_is_done(
    call: Callable[..., Called], words: tuple[str, ...], code: int, why: str
) -> None:
    called = call("dedupe", *words)
    assert called.code == code
    assert why in called.err
    assert "Traceback" not in called.err
    assert sorted(path.name for path in Path("in").iterdir()) == ["a.warc.gz", "deep"]
    assert not Path("out").exists()


def test_files_in_folders_below_that_nobody_asked_for_are_counted(
    call: Callable[..., Called], planting: Planting
) -> None:
    called = call("dedupe", "in", "-o", "out")
    assert called.code == 0
    assert "1 WARC or ARC file in subfolders left out; -r includes them." in called.out.splitlines()
    assert call("dedupe", "in", "-o", "out-2", "--json").json["left_below"] == 1
    assert "left out" not in call("dedupe", "-r", "in", "-o", "out-3").out


def test_files_that_a_crawl_has_open_are_named(call: Callable[..., Called], planting: Planting) -> None:
    for name in ("a.warc.gz.open", "deep/b.warc.gz.open"):
        Path("in", name).write_bytes(b"whatever is there by now")
    called = call("dedupe", "-r", "in", "-o", "out")
    assert (called.code, called.err) == (0, "")
    assert (
        "2 files that a crawl has open, or did not close, are left out: in/a.warc.gz.open, in/deep/b.warc.gz.open."
        in called.out.splitlines()
    )
    assert_deduplicated(planting, Path("out"))
    assert call("dedupe", "in", "-o", "out-2", "--json").json["left_open"] == ["in/a.warc.gz.open"]
    assert "has open" not in call("dedupe", "in/a.warc.gz", "-o", "out-3").out
