"""The whole way through the command line, and the truth about a planted archive."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
from typing import TYPE_CHECKING

import fastwarc.cli
import pytest
import warcio.cli
from archives import called_in_process, cdxj_of
from offline.calling import call, done
from offline.garden import garden
from offline.outputs import assert_deduplicated, assert_restored, read, snapshot
from offline.planted import SITE, Copy, Planting, fates_of, text
from offline.reads import bytes_read, needs_counts

from scrapy_dedupe.offline.manifest import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@pytest.fixture(scope="module")
def planting() -> Planting:
    return garden()


@pytest.fixture(scope="module")
def all_done(tmp_path_factory: pytest.TempPathFactory, planting: Planting) -> Iterator[Path]:
    """The archive below ``in``, deduplicated in one go in ``out`` and step by step in ``stepped``. Tests only read it."""
    folder = tmp_path_factory.mktemp("whole")
    planting.write(folder / "in")
    before = snapshot(folder / "in")
    done(folder, "dedupe", "-r", "in", "-o", "out")
    in_steps(folder)
    assert snapshot(folder / "in") == before
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before


@pytest.fixture
def folder(tmp_path: Path, all_done: Path) -> Path:
    """A copy of it to work in."""
    return shutil.copytree(all_done, tmp_path / "own")


def planted_part(planting: Planting, folder: Path) -> dict[str, bytes]:
    """The archive's files below a folder, whatever else is there."""
    return {name: data for name, data in snapshot(folder).items() if name in planting.files}


def all_files(folder: Path) -> list[str]:
    return [f"in/{name}" for name in snapshot(folder / "in")]


def in_steps(folder: Path) -> None:
    done(folder, "warcsum", "-r", "in", "-o", "sums")
    done(folder, "warccollres", "sums", "-o", "resolved")
    done(folder, "warcsumproc", "resolved", "-o", "numbered")
    # A file with nothing but requests and revisits has no line in the manifest; its references count all the same.
    done(folder, "warcrefs", "numbered", "-o", "stepped", "--files", *all_files(folder))


def test_the_truth_that_is_spelled_by_hand_follows_from_the_rules(planting: Planting) -> None:
    spelled = {
        label: fate
        for label, fate in planting.fates.items()
        if planting.records[label].type in ("response", "request") and "twin" not in label
    }
    by_rule = {
        label: fate
        for label, fate in fates_of(planting).items()
        if planting.records[label].type in ("response", "request") and "twin" not in label
    }
    assert spelled == by_rule
    assert sum(isinstance(fate, Copy) for fate in planting.fates.values()) >= 25


def test_every_copy_becomes_a_revisit_and_nothing_else_changes(all_done: Path, planting: Planting) -> None:
    assert_deduplicated(planting, all_done / "out")
    assert planted_part(planting, all_done / "in") == {
        name: file.to_bytes() for name, file in planting.files.items()
    }


def test_the_steps_one_by_one_give_the_same_bytes_as_all_in_one_go(
    all_done: Path, planting: Planting
) -> None:
    assert planted_part(planting, all_done / "stepped") == planted_part(planting, all_done / "out")


def test_the_comparison_can_number_the_copies_itself(all_done: Path, tmp_path: Path) -> None:
    done(all_done, "warccollres", "sums", "--proc", "-o", tmp_path / "at-once")
    assert (tmp_path / "at-once").read_bytes() == (all_done / "numbered").read_bytes()


def test_several_processes_give_the_same_bytes_as_one(
    all_done: Path, tmp_path: Path, planting: Planting
) -> None:
    done(all_done, "dedupe", "-r", "in", "-o", tmp_path / "quick", "--jobs", "2")
    assert planted_part(planting, tmp_path / "quick") == planted_part(planting, all_done / "out")


def test_comparing_all_bytes_gives_the_same_files(all_done: Path, tmp_path: Path, planting: Planting) -> None:
    compared, out = tmp_path / "compared", all_done / "out"
    done(all_done, "dedupe", "-r", "in", "-o", compared, "--compare", "bytes")
    assert planted_part(planting, compared) == planted_part(planting, out)
    manifests = [(folder / ".dedupe" / "manifest.txt").read_text() for folder in (compared, out)]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize(("summed", "numbered"), [("jsonl", "parquet"), ("parquet", "jsonl")])
def test_manifests_of_every_format_have_the_same_lines(
    summed: str, numbered: str, all_done: Path, tmp_path: Path
) -> None:
    done(all_done, "warcsum", "-r", "in", "-o", tmp_path / "sums", "--format", summed)
    words = ("warccollres", tmp_path / "sums", "--proc", "-o", tmp_path / "numbered", "--format", numbered)
    done(all_done, *words)
    assert list(read_lines(tmp_path / "numbered")) == list(read_lines(all_done / "numbered"))


def test_a_manifest_may_be_split_between_machines(all_done: Path, tmp_path: Path, planting: Planting) -> None:
    done(all_done, "warcsumsplit", "resolved", "-c", "3", "-o", tmp_path / "part")
    parts = sorted(tmp_path.iterdir())
    assert len(parts) == 3
    numbered = []
    # The last step reads manifests of all formats.
    for part, form in zip(parts, ("text", "jsonl", "parquet"), strict=True):
        numbered.append(tmp_path / f"numbered.{form}")
        done(all_done, "warccollres", part, "--proc", "-o", numbered[-1], "--format", form)
    done(all_done, "warcrefs", *numbered, "-o", tmp_path / "joined", "--files", *all_files(all_done))
    assert planted_part(planting, tmp_path / "joined") == planted_part(planting, all_done / "stepped")


def test_what_was_made_is_undone(all_done: Path, tmp_path: Path, planting: Planting) -> None:
    shutil.copytree(all_done / "out", tmp_path / "out")
    done(tmp_path, "restore", "out", "-o", "back")
    assert_restored(planting, tmp_path / "back")
    assert snapshot(tmp_path / "out") == snapshot(all_done / "out")


def test_in_place_the_files_become_what_they_would_be_elsewhere(folder: Path, planting: Planting) -> None:
    called = done(folder, "dedupe", "-r", "in", "--in-place")
    kept = {".dedupe/manifest.txt", ".dedupe/report.json"}
    assert f"kept in {folder / 'in' / '.dedupe'}." in called.out
    assert planted_part(planting, folder / "in") == planted_part(planting, folder / "out")
    assert set(snapshot(folder / "in")) == set(planting.files) | kept
    # What is kept is no part of the archive.
    assert call(folder, "verify", "out", "in").code == 0
    called = done(folder, "warcsum", "-r", "in", "-o", "in-place", "--json")
    assert called.json["files"] == len(planting.files)
    done(folder, "restore", "in", "--in-place")
    assert_restored(planting, folder / "in")
    assert set(snapshot(folder / "in")) == set(planting.files) | kept


def test_a_revisit_of_what_became_one_earlier_is_told_and_mended_after_a_restoration(tmp_path: Path) -> None:
    p = Planting()
    for name in ("a.warc.gz", "b.warc.gz"):
        p.file(name)
        copy = p.exchange(name, name, f"{SITE}/{name}", text("page", 4_000))
    p.file("late.warc.gz")
    p.revisit("late.warc.gz", "late", f"{SITE}/late", copy)
    p.write(tmp_path / "in")
    late = (tmp_path / "in" / "late.warc.gz").rename(tmp_path / "late.warc.gz")
    done(tmp_path, "dedupe", "in", "--in-place")
    late.rename(tmp_path / "in" / "late.warc.gz")

    told = done(tmp_path, "dedupe", "in", "--in-place")
    assert "1 revisit leads to a payload only by digest, as before;" in told.out
    done(tmp_path, "restore", "in", "--in-place")
    assert_restored(p, tmp_path / "in", fates_of(p))
    told = done(tmp_path, "dedupe", "in", "--in-place")

    assert "by digest" not in told.out
    assert "nowhere" not in told.out
    assert_deduplicated(p, tmp_path / "in", fates_of(p))


def test_a_second_time_there_is_nothing_to_do(all_done: Path, tmp_path: Path, planting: Planting) -> None:
    done(all_done, "dedupe", "-r", "out", "-o", tmp_path / "again")
    # So a restoration gives the same as before.
    assert planted_part(planting, tmp_path / "again") == planted_part(planting, all_done / "out")


def test_an_output_that_is_there_is_not_touched(folder: Path) -> None:
    for words in (
        ("warcsum", "-r", "in", "-o", "sums"),
        ("warccollres", "sums", "-o", "resolved"),
        ("warcsumproc", "resolved", "-o", "numbered"),
        ("warcrefs", "numbered", "-o", "stepped"),
        ("restore", "in", "-o", "stepped"),
        ("dedupe", "-r", "in", "-o", "stepped"),
    ):
        before = snapshot(folder)
        called = call(folder, *words)
        assert called.code == 3, (words, called)
        assert called.sentences.count("\n") == 1
        assert snapshot(folder) == before, words


def test_both_archives_are_compared_record_by_record(folder: Path, planting: Planting) -> None:
    assert call(folder, "verify", "in", "out").code == 0
    name = "crawl a/first.warc.gz"
    path = folder / "out" / name
    whole = path.read_bytes()
    members = [seen.stored for seen in read(path)]
    labels = [record.label for record in planting.files[name].records]
    at = {label: number for number, label in enumerate(labels)}

    def without(number: int) -> list[bytes]:
        return members[:number] + members[number + 1 :]

    def instead(number: int, member: bytes) -> list[bytes]:
        return [*members[:number], member, *members[number + 1 :]]

    damages = {
        "a record is missing": without(at["oak-again"]),
        "a record that was untouched is missing": without(at["fir"]),
        "the request is missing": without(at["oak-again?"]),
        "two records have changed places": [*members[:2], members[4], members[3], *members[5:], members[2]],
        "the original became its copy": instead(at["oak"], members[at["oak-again"]]),
        "a record occurs twice": [*members, members[-1]],
    }
    for what, changed in damages.items():
        path.write_bytes(b"".join(changed))
        called = call(folder, "verify", "in", "out")
        assert called.code == 4, what
        assert name in called.out + called.err, (what, called)
    path.write_bytes(whole)
    (folder / "out" / "arc" / "plain.arc").unlink()
    assert call(folder, "verify", "in", "out").code == 4


# Two blocks with one MD5 (Wang and others, 2004). They differ in the highest bit of six bytes, and what follows them
# does not matter.
COLLISION = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f8955ad340609f4b30283e488832571415a"
    "085125e8f7cdc99fd91dbdf280373c5bd8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
)
OTHER_BITS = (19, 45, 59, 83, 109, 123)


def test_pages_that_a_weak_digest_takes_for_one_are_told_apart(tmp_path: Path) -> None:
    other = bytearray(COLLISION)
    for place in OTHER_BITS:
        other[place] ^= 0x80
    one, two = (block + text("rest", 3_000) for block in (COLLISION, bytes(other)))
    assert one != two
    assert hashlib.md5(one).digest() == hashlib.md5(two).digest()
    p = Planting()
    p.file("a.warc.gz")
    for number, body in enumerate((one, two, one, two)):
        fate = Copy(f"weak-{number - 2}") if number >= 2 else None
        p.exchange("a.warc.gz", f"weak-{number}", f"{SITE}/{number}", body, fate=fate, digest_form="md5")
    p.write(tmp_path / "in")
    done(tmp_path, "warcsum", "-r", "in", "-o", "sums", "--hash", "md5")
    assert len({line.split(" ")[5] for line in (tmp_path / "sums").read_text().splitlines()}) == 1
    done(tmp_path, "warccollres", "sums", "--proc", "-o", "numbered")
    lines = [line.split(" ") for line in (tmp_path / "numbered").read_text().splitlines()]
    assert {line[3][-1]: line[6:8] for line in lines} == {
        "0": ["1", "1"], "1": ["2", "1"], "2": ["1", "2"], "3": ["2", "2"],
    }  # fmt: skip
    done(tmp_path, "warcrefs", "numbered", "-o", "out")
    assert_deduplicated(p, tmp_path / "out")
    for how in ("digest", "bytes"):
        called = done(tmp_path, "dedupe", "-r", "in", "-o", how, "--hash", "md5", "--compare", how)
        assert "of unequal bytes    1\n" in called.out
        assert_deduplicated(p, tmp_path / how)
        assert (tmp_path / how / ".dedupe" / "manifest.txt").read_bytes() == (
            tmp_path / "numbered"
        ).read_bytes()


def test_stored_digests_that_are_not_those_of_the_bytes_lose_nothing(tmp_path: Path) -> None:
    p = Planting()
    p.file("a.warc.gz")
    for number, name in enumerate(("one", "two", "one")):
        fate = Copy("lie-0") if number == 2 else None
        p.exchange(
            "a.warc.gz", f"lie-{number}", f"{SITE}/{number}", text(name, 3_000), digest_of="lie", fate=fate
        )
    p.write(tmp_path / "in")
    done(tmp_path, "warcsum", "-r", "in", "-o", "trusting", "--hash", "sha1")
    done(tmp_path, "warccollres", "trusting", "--proc", "-o", "numbered")
    called = call(tmp_path, "warcrefs", "numbered", "-o", "out")
    assert called.code == 4
    assert "--recompute" in called.sentences
    assert not (tmp_path / "out" / "a.warc.gz").exists()
    assert call(tmp_path, "warcsum", "-r", "in", "-o", "verified", "--hash", "sha1", "--verify").code == 4
    done(tmp_path, "warcsum", "-r", "in", "-o", "sums", "--hash", "sha1", "--recompute")
    done(tmp_path, "warccollres", "sums", "--proc", "-o", "numbered", "--force")
    done(tmp_path, "warcrefs", "numbered", "-o", "fine")
    assert_deduplicated(p, tmp_path / "fine")
    done(tmp_path, "restore", "fine", "-o", "back")
    assert_restored(p, tmp_path / "back")


def judged(path: Path) -> tuple[int, set[str], int]:
    """What warcio and fastwarc say of a file: exit code, ids of records at fault, exit code."""
    code, out = called_in_process(warcio.cli.main, "check", str(path))
    faults = {line.split()[3] for line in out.splitlines() if "WARC-Record-ID" in line}
    return code, faults, called_in_process(fastwarc.cli.main, "check", str(path))[0]


def test_other_programs_find_no_fault_that_was_not_there_before(all_done: Path, planting: Planting) -> None:
    clean = 0
    for name, file in planting.files.items():
        if file.kind.startswith("arc"):
            continue
        before, after = judged(all_done / "in" / name), judged(all_done / "out" / name)
        assert after[0] <= before[0], name
        assert after[1] <= before[1], name
        assert after[2] <= before[2], name
        clean += after[0] == after[2] == 0
    assert clean >= 4


def test_an_index_made_by_another_program_lists_every_capture(all_done: Path, planting: Planting) -> None:
    name = "crawl a/first.warc.gz"
    indexes = []
    for place in ("in", "out"):
        lines = [line.split(" ", 2) for line in cdxj_of(all_done / place / name).splitlines()]
        indexes.append([(key, time, json.loads(rest)) for key, time, rest in lines])
    before, after = indexes
    assert [(key, time, entry["url"]) for key, time, entry in after] == [
        (key, time, entry["url"]) for key, time, entry in before
    ]
    revisits = [entry for *_, entry in after if entry["mime"] == "warc/revisit"]
    labels = [record.label for record in planting.files[name].records]
    assert len(revisits) == sum(isinstance(planting.fates.get(label), Copy) for label in labels)


def archive_of(folder: Path, bodies: Sequence[bytes]) -> int:
    """Write an archive of responses with these bodies; the size of its files."""
    p = Planting()
    for name in ("a.warc.gz", "b.warc.gz"):
        p.file(name)
    for number, body in enumerate(bodies):
        name = "a.warc.gz" if number < len(bodies) // 2 else "b.warc.gz"
        p.exchange(name, f"page-{number}", f"{SITE}/{number}", body)
    p.write(folder)
    return sum(map(len, snapshot(folder).values()))


@needs_counts
def test_of_repeated_payloads_little_is_read_again(tmp_path: Path) -> None:
    rng = random.Random(5)
    bodies = [rng.randbytes(30_000) for _ in range(30)]
    whole_bytes = archive_of(tmp_path / "in", bodies + [body for body in bodies[:10] for _ in range(7)])
    kept_bytes = sum(map(len, bodies))
    assert kept_bytes < 0.31 * whole_bytes
    # The first run also reads modules.
    archive_of(tmp_path / "small", bodies[:2])
    done(tmp_path, "dedupe", "small", "-o", "small out", "--sample", "0")
    before = bytes_read()
    done(tmp_path, "dedupe", "in", "-o", "out", "--sample", "0")
    read_bytes = bytes_read() - before
    # All of it for the rows; then what is kept is copied, and the new files are verified.
    buffers = 12 * io.DEFAULT_BUFFER_SIZE  # of opened files
    assert whole_bytes + kept_bytes < read_bytes < 1.2 * (whole_bytes + 2 * kept_bytes) + buffers
