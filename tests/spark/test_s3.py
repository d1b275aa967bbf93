"""Archives in S3 are read by the executors, without a copy, and written by them as whole files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest
from offline.calling import call, done
from offline.outputs import snapshot
from offline.planted import SITE, Copy, Planting, text
from spark import odd_tasks

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline import rewriting
from scrapy_dedupe.spark import uploads

if TYPE_CHECKING:
    from pathlib import Path

    from offline.calling import Called

ENGINE = ("--engine", "spark")
BUCKET = "s3://archive/2019"


@pytest.fixture
def planting() -> Planting:
    """Two files with a page in common."""
    p = Planting()
    for number, name in enumerate(("a.warc.gz", "b c.warc.gz")):
        p.file(name)
        fate = Copy("same-0") if number else None
        p.exchange(name, f"same-{number}", f"{SITE}/same", text("same", 5_000), fate=fate)
        p.exchange(name, f"own-{number}", f"{SITE}/own/{number}", text(f"own-{number}", 5_000))
    return p


@pytest.fixture
def s3(session: Any, s3_url: str | None) -> Any:
    """The file system of a local server with one bucket."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    if s3_url is None:
        pytest.skip("moto is not installed")
    urlopen(Request(f"{s3_url}/moto-api/reset", method="POST")).close()
    system = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    system.mkdir("archive")
    return system


@pytest.fixture
def urls(s3: Any, planting: Planting) -> list[str]:
    """The files in the bucket."""
    for name, file in planting.files.items():
        s3.pipe(f"{BUCKET}/{name}", file.to_bytes())
    return [f"{BUCKET}/{name}" for name in planting.files]


def objects_in(s3: Any, url: str) -> dict[str, bytes]:
    found = {path.partition(url.partition("://")[2])[2].lstrip("/"): s3.cat(path) for path in s3.find(url)}
    return dict(sorted(found.items()))


def test_archives_in_s3_are_summed_compared_and_rewritten(urls: list[str], tmp_path: Path) -> None:
    made = {}
    for name, words in (("near", ()), ("far", ENGINE)):
        done(tmp_path, "warcsum", *urls, "-o", f"{name}.sums", *words)
        done(tmp_path, "warccollres", f"{name}.sums", "--proc", "-o", f"{name}.txt", *words)
        called = done(tmp_path, "warcrefs", f"{name}.txt", "-o", name, *words)
        assert "1 copy became a revisit" in called.out
        made[name] = (tmp_path / f"{name}.txt").read_bytes(), snapshot(tmp_path / name)
    assert sorted(made["near"][1]) == ["a.warc.gz", "b c.warc.gz"]
    assert made["far"] == made["near"]


@pytest.fixture
def folder(planting: Planting, tmp_path: Path) -> Path:
    planting.write(tmp_path / "in")
    done(tmp_path, "dedupe", "in", "-o", "near")
    return tmp_path


def dedupe(folder: Path, url: str, *words: str) -> Called:
    return call(folder, "dedupe", "in", "-o", url, "--work", "work", *ENGINE, *words)


def test_new_files_are_uploaded_and_the_work_is_removed(s3: Any, folder: Path) -> None:
    called = dedupe(folder, "s3://archive/clean")
    assert called.code == 0, called
    assert "The new files are in s3://archive/clean; the old ones are unchanged." in called.out
    assert "To undo it: download the files, then scrapy-dedupe restore COPY -o FOLDER" in called.out
    assert "s3://archive/clean/.dedupe." in called.out
    found = objects_in(s3, "s3://archive/clean")
    near = snapshot(folder / "near")
    report = json.loads(found.pop(".dedupe/report.json"))
    assert report["paths"] == ["s3://archive/clean/a.warc.gz", "s3://archive/clean/b c.warc.gz"]
    del found[".dedupe/job.json"]
    assert found == {name: data for name, data in near.items() if name != ".dedupe/report.json"}
    assert sorted(path.name for path in folder.iterdir()) == ["in", "near"]

    again = dedupe(folder, "s3://archive/clean")
    assert again.code == 3
    assert "s3://archive/clean is not empty: it has a.warc.gz." in again.sentences
    assert dedupe(folder, "s3://archive/clean", "--force").code == 0


def test_files_in_s3_are_deduplicated_to_s3(s3: Any, urls: list[str], folder: Path) -> None:
    words = ("dedupe", *urls, "-o", "s3://archive/clean", "--work", "work", *ENGINE)
    called = done(folder, *words)
    assert "size before" in called.out
    found = objects_in(s3, "s3://archive/clean")
    for name in ("a.warc.gz", "b c.warc.gz"):
        assert found[name] == (folder / "near" / name).read_bytes()


def test_a_file_in_s3_that_changes_meanwhile_is_named(
    s3: Any, urls: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(rewriting, "rewrite_file", odd_tasks.never_rewritten)
        assert call(folder, "dedupe", *urls, "-o", "out", *ENGINE).code == 3
    s3.pipe(urls[0], s3.cat(urls[0]) + s3.cat(urls[1]))
    called = call(folder, "dedupe", *urls, "-o", "out", *ENGINE)
    assert called.code == 3
    assert f"{urls[0]} has changed since this work began." in called.sentences
    assert [name for name in snapshot(folder / "out") if not name.startswith(".dedupe/")] == []


def test_the_same_command_continues_an_upload(s3: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(uploads, "upload_file", odd_tasks.uploaded_except_b)
        called = dedupe(folder, "s3://archive/clean")
    assert called.code == 3
    assert "b c.warc.gz cannot be written: the connection was lost." in called.sentences
    assert called.err.count("\n") == 1
    assert sorted(objects_in(s3, "s3://archive/clean")) == [".dedupe/job.json", "a.warc.gz"]
    # Another upload would remove it.
    s3.put_tags("archive/clean/a.warc.gz", {"upload": "first"})

    other = dedupe(folder, "s3://archive/elsewhere")
    assert (other.code, "holds other unfinished work: -o was s3://" in other.err) == (3, True)
    assert dedupe(folder, "s3://archive/clean").code == 0
    assert s3.get_tags("archive/clean/a.warc.gz") == {"upload": "first"}
    found = objects_in(s3, "s3://archive/clean")
    assert found["b c.warc.gz"] == (folder / "near/b c.warc.gz").read_bytes()
    assert ".dedupe/report.json" in found


def test_a_server_that_stores_other_bytes_is_noticed(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.register_implementation("forgetful", odd_tasks.ForgetfulFiles, clobber=True)
    source = tmp_path / "a.warc.gz"
    source.write_bytes(b"whole")
    task = uploads.UploadTask(0, source, uploads.Target("forgetful://folder"), "a.warc.gz")
    with pytest.raises(
        ArchiveError, match=r"^forgetful://folder/a\.warc\.gz differs from .* after the upload"
    ):
        uploads.upload_file(task)


def test_a_bucket_that_does_not_exist_is_named_before_the_work(s3: Any, folder: Path) -> None:
    called = dedupe(folder, "s3://nowhere/clean")
    assert called.code == 3
    assert "s3://nowhere/clean/.dedupe/job.json cannot be written: " in called.sentences
    assert called.err.count("\n") == 1
    assert not (folder / "work").exists()


def test_a_damaged_file_uploads_nothing(s3: Any, folder: Path) -> None:
    path = folder / "in/a.warc.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    called = dedupe(folder, "s3://archive/clean")
    assert called.code == 4
    assert "in/a.warc.gz, offset" in called.sentences
    assert list(objects_in(s3, "s3://archive/clean")) == [".dedupe/job.json"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("dedupe", "in", "-o", "s3://archive/clean"), "Only --engine spark writes to a URL."),
        (("dedupe", "in", "-o", "s3://archive/clean", *ENGINE), "Name it with --work."),
        (("restore", "near", "-o", "s3://archive/clean"), "s3://archive/clean is a URL. Name a folder"),
    ],
)
def test_a_url_that_cannot_be_written_is_refused(folder: Path, words: tuple[str, ...], reason: str) -> None:
    called = call(folder, *words)
    assert called.code == 2
    assert reason in called.sentences
    assert not (folder / "s3:").exists()
