"""Every file of an index damaged in every way: refused in one sentence or found by `check`, and never a wrong answer.

``DEDUPE_DAMAGES=2000`` flips so many places instead of a few dozen.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from offline.calling import call
from passages.planted import assert_is_right, assert_place_is_right, garden, tokens_of

from scrapy_dedupe.errors import StoreError, StoreRefused
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.passages.checking import check
from scrapy_dedupe.passages.values import Hit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.passages.values import Passage

DAMAGES = int(os.environ.get("DEDUPE_DAMAGES", "24"))
GARDEN = garden(pages=40, each=2)
TEXTS = GARDEN.texts
DELETED = [GARDEN.pages[3].doc_id, GARDEN.pages[20].doc_id]
ASKED = " ".join(TEXTS[span.doc_id] for span in GARDEN.planted[-1].places) + " ".join(GARDEN.planted[0].words)


@pytest.fixture(scope="module", params=["with texts", "without texts"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of three segments, with deleted documents in two of them."""
    folder = tmp_path_factory.mktemp("sound") / "index"
    with PassageIndex(folder, store_text=request.param == "with texts") as index:
        for start in range(0, len(GARDEN.pages), 15):
            for doc_id, text, host in GARDEN.documents[start : start + 15]:
                index.add(doc_id, text, host)
            index.flush()
        assert index.delete_many(DELETED)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "index"))


def files(folder: Path) -> list[Path]:
    """All that matters: what the lock's file says is for people."""
    return sorted(path for path in folder.iterdir() if path.name != "lock")


def asked_of(folder: Path) -> Iterator[Hit | Passage]:
    """What the index answers."""
    with PassageIndex(folder, create=False) as index:
        yield from index.like(ASKED, top=1_000)
        yield from index.extract()


def answered(folder: Path) -> list[Hit | Passage] | None:
    """What the index answers, every word of it compared with the truth; None if it is refused."""
    try:
        told = list(asked_of(folder))
    except StoreRefused as error:
        assert_is_a_sentence_about(folder, error)
        return None
    tokens = tokens_of(ASKED)
    for answer in told:
        for passage in answer.passages if isinstance(answer, Hit) else (answer,):
            words = assert_is_right(passage, TEXTS)
            if isinstance(answer, Hit):
                assert {place.doc_id for place in passage.places} == {answer.doc_id}
                assert passage.asked
                asked = tokens[passage.asked.token_start : passage.asked.token_end]
                assert tuple(word for word, _, _ in asked) == words
    return told


def assert_is_a_sentence_about(folder: Path, error: BaseException) -> None:
    assert "\n" not in str(error)
    assert str(folder) in str(error)


def append_to(folder: Path) -> None:
    with PassageIndex(folder) as index:
        index.add("new", "text")


def like_in(folder: Path) -> None:
    with PassageIndex(folder, create=False) as index:
        index.like(ASKED)


def compact(folder: Path) -> None:
    with PassageIndex(folder, create=False) as index:
        index.compact()


def problems(folder: Path) -> tuple[str, ...]:
    """What a check finds; a refusal is a finding too."""
    try:
        with PassageIndex(folder, create=False) as index:
            return index.check(full=True).problems
    except StoreRefused as error:
        return (str(error),)


def test_a_sound_index_answers_and_is_found_sound(sound: Path) -> None:
    told = answered(sound)
    assert told
    assert len(told) > 5
    assert problems(sound) == ()
    assert len(files(sound)) == 1 + 3


def test_a_flipped_byte_anywhere_is_found_and_never_gives_a_wrong_answer(folder: Path, sound: Path) -> None:
    rng = random.Random(5)
    truth = answered(sound)
    assert truth
    for path in files(folder):
        data = path.read_bytes()
        places = {
            0,
            7,
            8,
            len(data) // 2,
            len(data) - 1,
            *(rng.randrange(len(data)) for _ in range(DAMAGES // 4)),
        }
        for at in sorted(places):
            bit = 1 << rng.randrange(8)
            path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
            try:
                assert problems(folder)
                # What is damaged is refused where an answer needs it, and nothing is missing from an answer.
                assert answered(folder) in (None, truth)
            except Exception as error:
                error.add_note(f"{path.name}, byte {at} of {len(data)}, bit {bit}")
                raise
        path.write_bytes(data)
    assert answered(folder) == truth


def test_no_flip_in_a_whole_index_is_missed_by_the_check(tmp_path: Path) -> None:
    """Byte by byte, with the zeros between the parts of a file."""
    folder = tmp_path / "index"
    with PassageIndex(folder, store_text=False) as index:
        for doc_id, text, host in GARDEN.documents[:2]:
            index.add(doc_id, text[:600], host)
        index.flush()
        index.delete(GARDEN.documents[0][0])
    assert check(folder).problems == ()
    for path in files(folder):
        data = path.read_bytes()
        for at in range(len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            try:
                assert check(folder).problems, (path.name, at)
            except StoreRefused:
                continue
        path.write_bytes(data)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(1, len(data))]


def cut_at_the_end(data: bytes, rng: random.Random) -> bytes:
    return data[:-1]


def empty(data: bytes, rng: random.Random) -> bytes:
    return b""


def longer(data: bytes, rng: random.Random) -> bytes:
    return data + bytes(rng.randrange(1, 5_000))


def zeros(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes(len(data) - at)


def noise(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(len(data))


def shifted(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + 1 :] + b"\0"


WAYS = (cut, cut_at_the_end, empty, longer, zeros, noise, shifted)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_damaged_file_is_found_and_never_gives_a_wrong_answer(
    folder: Path, way: Callable[[bytes, random.Random], bytes]
) -> None:
    rng = random.Random(9)
    for path in files(folder):
        data = path.read_bytes()
        for _ in range(max(1, DAMAGES // 20)):
            damaged = way(data, rng)
            if damaged.rstrip(b"\n") == data.rstrip(
                b"\n"
            ):  # the manifest is a text, and the same without its last newline
                continue
            path.write_bytes(damaged)
            try:
                assert problems(folder)
                answered(folder)
            except Exception as error:
                error.add_note(f"{path.name}, {way.__name__}: {len(damaged)} of {len(data)} bytes")
                raise
        path.write_bytes(data)


def test_a_missing_file_is_refused_by_its_name(folder: Path) -> None:
    for path in files(folder):
        aside = path.rename(folder.parent / path.name)
        (found, *_) = problems(folder)
        assert path.name in found or path.name == "manifest.json"
        assert answered(folder) is None
        aside.rename(path)
    assert answered(folder)


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link", "unreadable"])
def test_something_else_in_the_place_of_a_file_is_refused_and_never_waited_for(
    folder: Path, kind: str
) -> None:
    for path in files(folder):
        data = path.read_bytes()
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "dangling link":
            path.symlink_to(folder / "nowhere")
        else:
            path.write_bytes(data)
            path.chmod(0)
            if os.access(path, os.R_OK):
                pytest.skip("this user may read everything")
        with pytest.raises(StoreError) as raised:
            like_in(folder)
        assert "\n" not in str(raised.value)
        assert problems(folder)
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
        path.write_bytes(data)


def test_files_that_changed_places_are_found(folder: Path) -> None:
    first, second, *_ = (path for path in files(folder) if path.suffix == ".segment")
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    assert problems(folder)
    answered(folder)


def test_a_damaged_index_is_never_written_to(folder: Path) -> None:
    """A merge or an append that went over the damage would make it look sound."""
    for path in files(folder):
        if path.suffix != ".segment":
            continue
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        before = {file.name: file.read_bytes() for file in files(folder)}
        with pytest.raises(StoreRefused):
            compact(folder)
        assert {file.name: file.read_bytes() for file in files(folder)} == before
        path.write_bytes(data)


def test_a_flip_is_not_carried_into_a_compacted_index(folder: Path) -> None:
    rng = random.Random(3)
    for path in files(folder):
        if path.suffix != ".segment":
            continue
        data = path.read_bytes()
        for _ in range(max(2, DAMAGES // 10)):
            at = rng.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
            trial = Path(shutil.copytree(folder, folder.parent / "trial"))
            try:
                with PassageIndex(trial, create=False) as index:
                    index.compact()
            except StoreRefused:
                pass
            else:
                assert problems(trial), (path.name, at)
            shutil.rmtree(trial)
        path.write_bytes(data)


# Manifests


@pytest.mark.parametrize("number", [0, 1, 99, -1, "1", None, 1.5])
def test_another_version_is_refused_with_its_number(folder: Path, number: object) -> None:
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    assert '"version": 2' in text
    manifest.write_text(text.replace('"version": 2', f'"version": {json.dumps(number)}', 1))
    with pytest.raises(StoreRefused) as raised:
        like_in(folder)
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        "null",
        "not JSON",
        '{"format": "something else", "version": 1}',
        '{"name": "a web page", "icons": []}',
        "[" * 100_000,
        '{"version": 1' + "0" * 5_000 + "}",
        "\0" * 500,
        '"\ud800"',
    ],
    ids=["empty", "{}", "[]", "null", "no JSON", "format", "icons", "deep", "large", "zeros", "surrogate"],
)
def test_a_manifest_of_something_else_is_refused(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content, errors="surrogatepass")
    before = {path.name: path.read_bytes() for path in files(folder)}
    with pytest.raises(StoreRefused) as raised:
        append_to(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)
    assert {path.name: path.read_bytes() for path in files(folder)} == before


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "a/b", "", ".", "..", "a\0b", "x" * 300, 7, None]
)
def test_a_manifest_that_names_files_elsewhere_is_refused(folder: Path, name: object) -> None:
    manifest = folder / "manifest.json"
    value = json.loads(manifest.read_text())
    changed = json.dumps(value).replace(json.dumps(value["segments"][0]["name"]), json.dumps(name))
    manifest.write_text(changed)
    with pytest.raises(StoreRefused):
        like_in(folder)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("Dear diary")
    with pytest.raises(StoreRefused, match="notes"):
        append_to(tmp_path / "notes")
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["diary.txt"]


def test_the_command_line_tells_a_damaged_index_in_one_sentence(folder: Path) -> None:
    path = next(path for path in files(folder) if path.suffix == ".segment")
    path.write_bytes(b"")
    (folder.parent / "asked.txt").write_text(ASKED)
    for words in (("like", "asked.txt"), ("extract",), ("inspect",), ("compact",)):
        called = call(folder.parent, "passages", *words, "--root", "index")
        assert called.code == 3, (words, called)
        assert called.sentences.count("\n") == 1
        assert path.name in called.err
    called = call(folder.parent, "passages", "check", "--root", "index")
    assert called.code in (3, 4)
    assert path.name in called.out + called.sentences


def test_places_of_the_truth_are_right() -> None:
    """The comparison itself tells a place that is off by one."""
    span = GARDEN.planted[0].places[0]
    assert assert_place_is_right(span, TEXTS)  # type: ignore[arg-type]
    wrong = type(span)(span.doc_id, span.token_start, span.token_end, span.char_start + 1, span.char_end)
    with pytest.raises(AssertionError):
        assert_place_is_right(wrong, TEXTS)  # type: ignore[arg-type]
