"""Every kind of bad input through the command line: what is named, what is done with the rest, what is not written."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from itertools import product
from typing import TYPE_CHECKING

import pytest
from offline.calling import PROGRAM, call, done
from offline.outputs import assert_deduplicated, read, snapshot
from offline.planted import SITE, Copy, Planting, text
from sampling import sampled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BAD = "b/bad.warc"


def planting(kind: str) -> Planting:
    """A good file with the originals, and one to be damaged, with four copies of its own and a good file behind it."""
    p = Planting()
    p.file("a/good.warc.gz")
    for number in range(4):
        p.exchange("a/good.warc.gz", f"first-{number}", f"{SITE}/first/{number}", text(f"{number}", 4_000))
    bad = BAD + (".gz" if kind == "gzip" else "")
    for name, word in ((bad, "second"), ("c/good.warc", "third")):
        p.file(name, kind if word == "second" else "plain")
        p.warcinfo(name)
        for number in range(4):
            p.exchange(
                name,
                f"{word}-{number}",
                f"{SITE}/{word}/{number}",
                text(f"{number}", 4_000),
                fate=Copy(f"first-{number}"),
            )
    return p


def cut(members: list[bytes], at: int) -> bytes:
    return b"".join(members)[:-40]


def flipped(members: list[bytes], at: int) -> bytes:
    member = bytearray(members[at])
    member[len(member) // 2] ^= 0x55
    return b"".join([*members[:at], bytes(member), *members[at + 1 :]])


def longer(members: list[bytes], at: int) -> bytes:
    """A Content-Length that is 300 too large."""
    number = re.findall(rb"\r\nContent-Length: (\d+)\r\n\r\n", members[at])[0]
    wrong = b"\r\nContent-Length: %d\r\n\r\n" % (int(number) + 300)
    member = re.sub(rb"\r\nContent-Length: \d+\r\n\r\n", wrong, members[at], count=1)
    return b"".join([*members[:at], member, *members[at + 1 :]])


def littered(members: list[bytes], at: int) -> bytes:
    return b"".join([*members[:at], b"this is no record\r\n" * 3, *members[at:]])


def bare(members: list[bytes], at: int) -> bytes:
    return b"<html>an error page of some server</html>\n" * 30


def squeezed(members: list[bytes], at: int) -> bytes:
    return gzip.compress(b"".join(map(gzip.decompress, members)))


def empty(members: list[bytes], at: int) -> bytes:
    return b""


# Name: kind of file, what is done to it, and the numbers of the responses that are lost by it (None: all).
DAMAGES: dict[str, tuple[str, Callable[[list[bytes], int], bytes], set[int] | None]] = {
    "truncated member": ("gzip", cut, set()),
    "truncated plain file": ("plain", cut, set()),
    "flipped byte": ("gzip", flipped, {1}),
    "wrong length": ("plain", longer, {1}),
    "garbage between members": ("gzip", littered, set()),
    "garbage between plain records": ("plain", littered, set()),
    "no gzip under .gz": ("gzip", bare, None),
    "one member for all": ("gzip", squeezed, None),
    "empty file": ("gzip", empty, None),
}


class Broken:
    """An archive with one damaged file."""

    def __init__(self, folder: Path, what: str) -> None:
        kind, damage, lost = DAMAGES[what]
        self.p = planting(kind)
        self.folder = folder
        self.p.write(folder / "in")
        (self.name,) = (name for name in self.p.files if name.startswith(BAD))
        self.path = folder / "in" / self.name
        file = self.p.files[self.name]
        at = [record.label for record in file.records].index("second-1")
        self.path.write_bytes(damage(file.members(), at))
        lost = {0, 1, 2, 3} if lost is None else lost
        self.good = {f"first-{number}" for number in range(4)} | {f"third-{number}" for number in range(4)}
        self.good |= {f"second-{number}" for number in range(4) if number not in lost}
        # In a plain file nobody can say what lies inside a record that is damaged in the middle.
        is_left = kind == "plain" and damage is not cut
        self.copies = {"second-0"} if is_left else {label for label in self.good if label[:6] == "second"}


@pytest.fixture(params=DAMAGES)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Broken:
    return Broken(tmp_path, request.param)


def test_the_first_fault_ends_a_summing_and_no_manifest_is_written(broken: Broken) -> None:
    called = call(broken.folder, "warcsum", "-r", "in", "-o", "sums")
    assert called.code == 4
    assert broken.name in called.sentences
    assert called.sentences.count("\n") == 1
    assert "offset" in called.err or not broken.path.stat().st_size
    assert not (broken.folder / "sums").exists()


def test_a_summing_that_is_to_go_on_names_the_fault_and_lists_every_good_record(broken: Broken) -> None:
    called = call(broken.folder, "warcsum", "-r", "in", "-o", "sums", "--keep-going")
    assert called.code == 4
    assert broken.name in called.out + called.sentences
    lines = (broken.folder / "sums").read_text().splitlines()
    uris = {line.split(" ")[3] for line in lines}
    assert uris == {broken.p.records[label].uri.decode() for label in broken.good}


def test_the_first_fault_ends_a_deduplication_and_nothing_is_in_the_output(broken: Broken) -> None:
    before = snapshot(broken.folder / "in")
    called = call(broken.folder, "dedupe", "-r", "in", "-o", "out")
    assert called.code == 4
    assert broken.name in called.sentences
    assert not [
        name for name in snapshot(broken.folder) if name.startswith("out/") and "/.dedupe/" not in name
    ]
    called = call(broken.folder, "dedupe", "-r", "in", "--in-place")
    assert called.code == 4
    after = {name: data for name, data in snapshot(broken.folder / "in").items() if ".dedupe" not in name}
    assert after == before


@pytest.mark.parametrize(
    ("broken", "in_place"),
    sampled(
        product(DAMAGES, (False, True)),
        [*product(DAMAGES, [False]), ("flipped byte", True), ("wrong length", True)],
    ),
    indirect=["broken"],
)
def test_a_deduplication_that_is_to_go_on_converts_good_copies_and_keeps_every_bad_byte(
    broken: Broken, in_place: bool
) -> None:
    damaged = broken.path.read_bytes()
    how = ["--in-place"] if in_place else ["-o", "out"]
    called = call(broken.folder, "dedupe", "-r", "in", *how, "--keep-going")
    assert called.code == 4, called
    assert broken.name in called.out + called.sentences
    out = broken.folder / ("in" if in_place else "out")
    good = Planting()
    good.files = {name: file for name, file in broken.p.files.items() if name != broken.name}
    good.records = {record.label: record for file in good.files.values() for record in file.records}
    good.fates = {label: fate for label, fate in broken.p.fates.items() if label in good.records}
    assert_deduplicated(good, out)
    after = (out / broken.name).read_bytes()
    copies = broken.copies
    if not copies:
        assert after == damaged
        return
    # All that is not a copy, or a request of one, is there byte for byte: the damaged stretch, too.
    file = broken.p.files[broken.name]
    position = changed = 0
    for record, member in zip(file.records, file.members(), strict=True):
        if record.label.rstrip("?") in copies and (start := damaged.find(member, position)) >= 0:
            between = damaged[position:start]
            assert between in after
            assert member not in after
            position = start + len(member)
            changed += 1
    assert damaged[position:] in after
    assert changed >= 2 * len(copies) - 1
    # What was damaged is still damaged, and nothing else is.
    called = call(broken.folder, "warcsum", out / broken.name, "-o", "after", "--keep-going")
    assert called.code == 4
    left = {line.split(" ")[3] for line in (broken.folder / "after").read_text().splitlines()}
    good = {label for label in broken.good if label.startswith("second")}
    assert left == {broken.p.records[label].uri.decode() for label in good - copies}
    called = call(broken.folder, "restore", out, "-o", "back", "--keep-going")
    assert called.code == 4, called
    restored = broken.folder / "back" / broken.name
    assert call(broken.folder, "warcsum", restored, "-o", "restored", "--keep-going").code == 4
    back = {line.split(" ")[3] for line in (broken.folder / "restored").read_text().splitlines()}
    assert back == {broken.p.records[label].uri.decode() for label in good}


@pytest.fixture
def summed(tmp_path: Path) -> Path:
    planting("gzip").write(tmp_path / "in")
    done(tmp_path, "warcsum", "-r", "in", "-o", "sums")
    done(tmp_path, "warccollres", "sums", "--proc", "-o", "numbered")
    return tmp_path


def edited(path: Path, change: Callable[[list[str]], list[str]], *, only: str = "second/1") -> None:
    lines = [line.split(" ") for line in path.read_text().splitlines()]
    changed = [change(line) if only in line[3] else line for line in lines]
    path.write_text("".join(" ".join(line) + "\n" for line in changed))


MISMATCHES: dict[str, Callable[[list[str]], list[str]]] = {
    "offset": lambda line: [line[0], str(int(line[1]) + 7), *line[2:]],
    "offset of another": lambda line: [line[0], "0", *line[2:]],
    "offset behind the end": lambda line: [line[0], "99999999", *line[2:]],
    "URI": lambda line: [*line[:3], SITE + "/elsewhere", *line[4:]],
    "date": lambda line: [*line[:4], "2001-01-01T00:00:00Z", *line[5:]],
}


@pytest.mark.parametrize("what", sampled(MISMATCHES, ["offset of another", "URI"]))
def test_a_manifest_that_does_not_match_the_files_is_a_fault(what: str, summed: Path) -> None:
    for manifest, words in (
        ("sums", ("warccollres", "sums", "-o", "new")),
        ("numbered", ("warcrefs", "numbered", "-o", "new")),
    ):
        edited(summed / manifest, MISMATCHES[what])
        called = call(summed, *words)
        assert called.code == 4, (words, called)
        assert "bad.warc.gz" in called.sentences, words
        assert not [name for name in snapshot(summed) if name.startswith("new") and "/.dedupe/" not in name]
        called = call(summed, *words, "--keep-going")
        assert called.code == 4, (words, called)
        assert "bad.warc.gz" in called.out + called.sentences
        if words[0] == "warcrefs":
            found = read(summed / "new" / f"{BAD}.gz")
            # A line that claims the place of another record leaves that one, too.
            least = 2 if what == "offset of another" else 3
            assert least <= sum(seen.get(b"WARC-Type") == b"revisit" for seen in found) <= 3
            shutil.rmtree(summed / "new")
        else:
            (summed / "new").unlink()


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line[:5],
        lambda line: [*line, "more"],
        lambda line: [line[0], "12x", *line[2:]],
        lambda line: [line[0], "-1", *line[2:]],
        lambda line: [*line[:5], "sha256:xyz", *line[6:]],
        lambda line: [*line[:4], "yesterday", *line[5:]],
    ],
    ids=["too few columns", "too many columns", "no number", "negative", "no digest", "no date"],
)
def test_a_line_that_is_none_is_named_by_its_number(
    change: Callable[[list[str]], list[str]], summed: Path
) -> None:
    for manifest, words in (
        ("sums", ("warccollres", "sums", "-o", "new")),
        ("numbered", ("warcrefs", "numbered", "-o", "new")),
    ):
        lines = (summed / manifest).read_text().splitlines()
        number = next(number for number, line in enumerate(lines, 1) if "second/1" in line)
        edited(summed / manifest, change)
        called = call(summed, *words)
        assert called.code == 4, (words, called)
        assert f"{manifest}, line {number}" in called.sentences
        assert not [name for name in snapshot(summed) if name.startswith("new") and "/.dedupe/" not in name]


def test_a_file_that_is_not_where_the_manifest_says_stands_in_the_way(summed: Path) -> None:
    (summed / "in" / "a" / "good.warc.gz").rename(summed / "elsewhere.warc.gz")
    for words in (("warccollres", "sums", "-o", "new"), ("warcrefs", "numbered", "-o", "new")):
        called = call(summed, *words)
        assert called.code in (3, 4), called
        assert "in/a/good.warc.gz" in called.sentences
        assert "--root" in called.err
        assert not [name for name in snapshot(summed) if name.startswith("new") and "/.dedupe/" not in name]
    (summed / "map").write_text("in/a/good.warc.gz elsewhere.warc.gz\n")
    done(summed, "warcrefs", "numbered", "-o", "new", "--paths", "map")
    p = planting("gzip")
    assert_deduplicated(p, summed / "new")


def test_a_file_that_was_changed_after_the_summing_makes_no_revisit_of_other_bytes(summed: Path) -> None:
    """The copy has become another page of the same URI and date in the meantime."""
    p = planting("gzip")
    name = f"{BAD}.gz"
    members = []
    for record, member in zip(p.files[name].records, p.files[name].members(), strict=True):
        if record.label == "second-1":
            plain = gzip.decompress(member)
            changed = plain.replace(b"oak", b"OAK").replace(b"elm", b"ELM")
            assert changed != plain
            member = gzip.compress(changed, 0)
        members.append(member)
    # The file's later members move; the manifest names them where they were.
    (summed / "in" / name).write_bytes(b"".join(members))
    before = snapshot(summed / "in")
    called = call(summed, "warcrefs", "numbered", "-o", "new")
    assert called.code == 4, called
    assert snapshot(summed / "in") == before
    assert not [name for name in snapshot(summed) if name.startswith("new/") and "/.dedupe/" not in name]


def test_a_page_of_other_bytes_at_the_same_place_is_no_copy(tmp_path: Path) -> None:
    p = Planting()
    p.file("a.warc", "plain")
    p.exchange("a.warc", "one", f"{SITE}/one", text("same", 4_000))
    copy = p.exchange("a.warc", "two", f"{SITE}/two", text("same", 4_000))
    p.write(tmp_path / "in")
    done(tmp_path, "warcsum", "-r", "in", "-o", "sums")
    done(tmp_path, "warccollres", "sums", "--proc", "-o", "numbered")
    path = tmp_path / "in" / "a.warc"
    changed = copy.block.replace(b"oak", b"OAK")
    path.write_bytes(path.read_bytes().replace(copy.block, changed))
    before = snapshot(tmp_path / "in")
    for how in (("-o", "new"), ("--in-place",)):
        called = call(tmp_path, "warcrefs", "numbered", *how)
        assert called.code == 4, called
        assert "a.warc" in called.sentences
        assert {
            name: data for name, data in snapshot(tmp_path / "in").items() if ".dedupe" not in name
        } == before
        assert not (tmp_path / "new" / "a.warc").exists()


def has_small_disks() -> bool:
    words = ["unshare", "--mount", "--map-root-user", "true"]
    return (
        bool(shutil.which("unshare"))
        and not subprocess.run(words, check=False, capture_output=True).returncode
    )


@pytest.mark.skipif(not has_small_disks(), reason="needs a namespace with mounts of its own")
@pytest.mark.parametrize(
    "verb", sampled(["warcsum", "warccollres", "warcrefs", "dedupe", "restore"], ["dedupe"])
)
def test_a_full_disk_is_told_in_one_sentence_and_leaves_no_part_of_a_file(verb: str, tmp_path: Path) -> None:
    p = Planting()
    for name in "ab":
        p.file(f"{name}.warc", "plain")
        for number in range(60):
            body = os.urandom(3_000) + text(f"{number}", 3_000)
            p.exchange(f"{name}.warc", f"{name}-{number}", f"{SITE}/{name}/{number}" + "x" * 200, body)
    p.write(tmp_path / "in")
    if verb in ("warccollres", "warcrefs"):
        done(tmp_path, "warcsum", "-r", "in", "-o", "sums")
        done(tmp_path, "warccollres", "sums", "--proc", "-o", "numbered")
    if verb == "restore":
        done(tmp_path, "dedupe", "-r", "in", "-o", "deduped")
    words = {
        "warcsum": ("warcsum", "-r", "in", "-o", "disk/sums"),
        "warccollres": ("warccollres", "sums", "-o", "disk/numbered"),
        "warcrefs": ("warcrefs", "numbered", "-o", "disk/out"),
        "dedupe": ("dedupe", "-r", "in", "-o", "disk/out"),
        "restore": ("restore", "deduped", "-o", "disk/out"),
    }[verb]
    (tmp_path / "disk").mkdir()
    size = "28k" if verb in ("warcsum", "warccollres") else "400k"
    script = (
        f"mount -t tmpfs -o size={size} none disk && "
        '{ "$@"; code=$?; find disk -type f -not -path "*/.dedupe/*" -not -path "*.parts/*" -not -path "*/.restore/*"; exit $code; }'
    )
    shell = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *PROGRAM, *words]
    ran = subprocess.run(shell, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert ran.returncode == 3, ran
    assert ran.stderr.count("\n") == 1
    assert "disk" in ran.stderr
    assert "No space left" in ran.stderr or "full" in ran.stderr
    assert not ran.stdout
