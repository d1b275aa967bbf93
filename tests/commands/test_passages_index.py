from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from passages.raw_archives import response
from programs import run_program
from waiting import wait_until

from scrapy_dedupe.commands.passages.index import BLOTTERS, TOKENISERS
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.passages.blots import BLOTTERS as ALL_BLOTTERS
from scrapy_dedupe.passages.catalogue import read_manifest
from scrapy_dedupe.passages.tokens import TOKENISERS as ALL_TOKENISERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called

# A shell that runs the tests in the background lets its programs ignore Ctrl-C.
PROGRAM = """
import signal, sys
from scrapy_dedupe.commands.console import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
WORDS = " ".join(f"word{number}" for number in range(40))


def write(path: str, data: bytes | str) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data.encode() if isinstance(data, str) else data)


def line(url: str, text: str) -> str:
    return json.dumps({"url": url, "text": text}) + "\n"


def documents(root: str = "index") -> list[str]:
    with PassageIndex(root, create=False) as index:
        return [document.doc_id for document in index.documents]


def text_of(doc_id: str, root: str = "index") -> str:
    with PassageIndex(root, create=False) as index:
        return index.text(doc_id)


def test_files_pages_and_lines_are_indexed_by_what_they_say(call: Callable[..., Called]) -> None:
    write("docs/a.txt", f"{WORDS}\n")
    write("docs/b.html", f"<title>B</title><script>no</script><p>{WORDS}<br>end")
    write("docs/c.jsonl", line("http://c/", f"  {WORDS} c"))
    body = gzip.compress(f"<p>{WORDS} é".encode("latin-1"))
    write("docs/d.warc", response("http://d/", body, content_type="text/html;charset=latin1", coding="gzip"))
    write("docs/e.png", b"\x89PNG\0")
    called = call("passages", "index", "docs", "--root", "index", "--json")
    assert (called.code, called.err) == (0, "")
    result = called.json
    assert (result["documents"], result["texts"], result["copies"], result["replaced"]) == (4, 4, 0, 0)
    assert result["skipped"] == {"binary": 1}
    assert result["tokens"] == 40 + 42 + 41 + 41
    assert result["text_bytes"] == sum(len(text_of(doc_id).encode()) for doc_id in documents())
    assert {doc_id: text_of(doc_id) for doc_id in documents()} == {
        "docs/a.txt": f"{WORDS}\n",
        "docs/b.html": f"B {WORDS} end",
        "http://c/": f"  {WORDS} c",
        "http://d/": f"{WORDS} é",
    }


def test_several_jobs_keep_the_order_of_the_documents(call: Callable[..., Called]) -> None:
    for number in range(30):
        write(f"docs/{number:02}.txt", f"{WORDS} {number} " * 600)
    assert call("passages", "index", "docs", "--root", "index", "--jobs", "2").code == 0
    assert documents() == [f"docs/{number:02}.txt" for number in range(30)]


def test_equal_texts_are_stored_once(call: Callable[..., Called]) -> None:
    for name in "abc":
        write(f"docs/{name}.txt", WORDS)
    result = call("passages", "index", "docs", "--root", "index", "--json").json
    assert (result["documents"], result["texts"], result["copies"]) == (3, 1, 2)


def test_an_index_that_has_documents_is_added_to_with_append_alone(call: Callable[..., Called]) -> None:
    write("a.txt", WORDS)
    write("b.txt", WORDS + " b")
    assert call("passages", "index", "a.txt", "--root", "index").code == 0
    refused = call("passages", "index", "b.txt", "--root", "index")
    assert refused.code == 3
    assert "already has 1 document. Add to it with --append" in refused.err
    assert documents() == ["a.txt"]
    write("a.txt", WORDS + " new")
    result = call(
        "passages", "index", "a.txt", "b.txt", "b.txt", "--root", "index", "--append", "--json"
    ).json
    assert (result["documents"], result["replaced"], result["unchanged"]) == (2, 1, 1)
    assert text_of("a.txt") == WORDS + " new"


def test_a_text_that_is_replaced_in_the_same_run_is_told(call: Callable[..., Called]) -> None:
    write("a.jsonl", line("d", f"{WORDS} first") + line("d", f"{WORDS} second"))
    called = call("passages", "index", "a.jsonl", "--root", "index", "--json")
    result = called.json
    assert (result["documents"], result["replaced"], result["unchanged"]) == (2, 1, 0)
    assert (result["texts"], result["copies"]) == (1, 0)
    assert text_of("d") == f"{WORDS} second"
    shown = call("passages", "index", "a.jsonl", "--root", "other").out
    assert "2 documents added, 1 replacing an older text." in shown


def test_a_host_is_written_as_those_of_urls_are(call: Callable[..., Called]) -> None:
    write("a.txt", WORDS)
    assert call("passages", "index", "a.txt", "--root", "index", "--host", "Docs.Example:8080").code == 0
    with PassageIndex("index", create=False) as index:
        assert [document.host for document in index.documents] == ["docs.example"]


def test_other_indexes_below_a_folder_are_no_documents(call: Callable[..., Called]) -> None:
    write("docs/a.txt", WORDS)
    write("docs/manifest.json", "{}")
    assert call("passages", "index", "docs", "--root", "docs/old").code == 0
    called = call("passages", "index", "docs", "--root", "index")
    assert called.code == 0
    assert "Skipped: 1 folders of other passage indexes." in called.out
    assert documents() == ["docs/a.txt", "docs/manifest.json"]


def test_an_archive_that_a_crawl_has_open_is_told(call: Callable[..., Called]) -> None:
    write("warcs/a.txt", WORDS)
    write("warcs/a.warc.gz.open", b"\x1f\x8b")
    called = call("passages", "index", "warcs", "--root", "index")
    assert called.code == 4
    assert "1 archive of a running or killed crawl skipped." in called.err
    assert "warc salvage repairs such a file" in called.out


def test_an_index_whose_documents_are_all_deleted_is_as_empty(call: Callable[..., Called]) -> None:
    write("a.txt", WORDS)
    call("passages", "index", "a.txt", "--root", "index")
    call("passages", "delete", "a.txt", "--root", "index")
    assert call("passages", "index", "a.txt", "--root", "index").code == 0


def test_of_two_captures_of_a_url_the_later_one_counts(call: Callable[..., Called]) -> None:
    write("a.warc", response("http://a/", b"<p>old") + response("http://a/", b"<p>new"))
    assert call("passages", "index", "a.warc", "--root", "index").code == 0
    assert text_of("http://a/") == "new"


def test_damage_ends_the_work_and_leaves_the_index_as_it_was(call: Callable[..., Called]) -> None:
    write("a.jsonl", line("a", WORDS))
    write("b.jsonl", line("b", WORDS) + "{no json\n" + line("c", WORDS))
    call("passages", "index", "a.jsonl", "--root", "index")
    called = call("passages", "index", "b.jsonl", "--root", "index", "--append")
    assert (called.code, called.out) == (4, "")
    assert "b.jsonl, line 2: it is not valid JSON" in called.err
    assert "--keep-going skips it" in called.err
    assert documents() == ["a"]


def test_an_index_that_was_not_begun_well_is_begun_again(call: Callable[..., Called]) -> None:
    write("docs/a.jsonl", line("a", WORDS))
    write("docs/b.warc.gz", gzip.compress(response("http://b/", b"<p>b"))[:-20])
    assert call("passages", "index", "docs", "--root", "index").code == 4
    assert documents() == []
    Path("docs/b.warc.gz").unlink()
    assert call("passages", "index", "docs", "--root", "index").code == 0
    assert documents() == ["a"]


@pytest.mark.parametrize("options", [(), ("--keep-going",)])
def test_work_that_brought_no_document_does_not_say_how_the_index_is_made(
    call: Callable[..., Called], options: tuple[str, ...]
) -> None:
    write("a.jsonl", line("a", WORDS))
    write("b.jsonl", "{no json\n")
    made = ("--tokeniser", "cjk", "--no-text")
    assert call("passages", "index", "b.jsonl", "--root", "index", *made, *options).code == 4
    assert call("passages", "index", "a.jsonl", "--root", "index").code == 0
    assert text_of("a") == WORDS
    with PassageIndex("index", create=False) as index:
        assert index.parameters.tokeniser == "words/1"
    assert call("passages", "index", "b.jsonl", "--root", "index", "--append", *made).code == 3


def test_a_merge_that_fails_is_told_and_costs_no_document(call: Callable[..., Called]) -> None:
    for number in range(7):
        with PassageIndex("index") as index:
            index.add(f"d{number}", " ".join(f"w{number}-{word}" for word in range(60)))
    damaged = min(Path("index").glob("*.segment"))
    manifest = read_manifest(Path("index"))
    assert manifest is not None
    data = bytearray(damaged.read_bytes())
    data[manifest.segments[0].sections["posts"][0]] ^= 1
    damaged.write_bytes(bytes(data))
    write("a.jsonl", line("b", f"{WORDS} b") + line("a", WORDS))
    called = call("passages", "index", "a.jsonl", "--root", "index", "--append")
    assert called.code == 4
    assert "the documents were added, but small segments could not be merged: " in called.err
    assert damaged.name in called.err
    assert documents()[-1] == "a"
    deleted = call("passages", "delete", "a", "--root", "index", "--json")
    assert (deleted.code, deleted.json["documents"], deleted.json["missing"]) == (4, 1, [])
    assert damaged.name in deleted.json["not_merged"]
    assert "small segments could not be merged: " in deleted.err


def test_with_keep_going_what_is_whole_is_indexed_and_the_rest_is_told(call: Callable[..., Called]) -> None:
    write("b.jsonl", line("b", WORDS) + "{no json\n" + line("c", WORDS))
    called = call("passages", "index", "b.jsonl", "--root", "index", "--keep-going")
    assert called.code == 4
    assert "b.jsonl, line 2: it is not valid JSON" in called.out
    assert "1 fault in the input skipped." in called.err
    assert documents() == ["b", "c"]


def test_hostile_markup_is_told_and_the_work_goes_on(call: Callable[..., Called]) -> None:
    write("docs/a.html", "<div>" * 60_000)
    write("docs/b.html", "<p>b")
    called = call("passages", "index", "docs", "--root", "index")
    assert called.code == 4
    assert "docs/a.html: Parsing the page would take too long" in called.out
    assert "1 document left out." in called.err
    assert documents() == ["docs/b.html"]


def test_of_many_that_are_passed_over_it_says_how_many_are_not_shown(call: Callable[..., Called]) -> None:
    write("a.jsonl", "".join(line(f"d{number}", WORDS) for number in range(1_500)))
    shown = call("passages", "index", "a.jsonl", "--root", "index", "--max-bytes", "100")
    assert shown.code == 4
    assert len([row for row in shown.out.splitlines() if "more than 100 bytes" in row]) == 20
    assert "... and 1,480 more; see --json." in shown.out


def test_a_document_over_the_limit_is_told(call: Callable[..., Called]) -> None:
    write("docs/a.txt", "a" * 101)
    write("docs/b.txt", "b" * 100)
    called = call("passages", "index", "docs", "--root", "index", "--max-bytes", "100")
    assert called.code == 4
    assert "docs/a.txt: it has more than 100 bytes" in called.out
    assert documents() == ["docs/b.txt"]


def test_wrong_encodings_are_replaced_counted_and_told(call: Callable[..., Called]) -> None:
    write("a.txt", b"caf\xe9 au lait")
    called = call("passages", "index", "a.txt", "--root", "index")
    assert called.code == 4
    assert "1 document with characters replaced." in called.err
    assert text_of("a.txt") == "caf\ufffd au lait"


def test_lines_come_from_standard_input_under_other_names(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": "a", "body": "b"}')))
    words = ("passages", "index", "-", "--url-field", "id", "--text-field", "body", "--root", "index")
    assert call(*words).code == 0
    assert (documents(), text_of("a")) == (["a"], "b")


def test_ids_hosts_and_the_default_folder(call: Callable[..., Called]) -> None:
    write("docs/a.txt", WORDS)
    assert call("passages", "index", "docs", ".", "--base", ".", "--host", "me").code == 0
    with PassageIndex(".scrapy/dedupe/passages", create=False) as index:
        assert [(document.doc_id, document.host) for document in index.documents] == [("docs/a.txt", "me")]
    # The index is below the folder that is indexed, and is no document.
    result = call("passages", "index", "docs", ".", "--base", ".", "--host", "me", "--append", "--json").json
    assert (result["documents"], result["unchanged"], result["skipped"]) == (0, 1, {})


def test_parameters_are_those_that_were_asked_for_and_stay(call: Callable[..., Called]) -> None:
    write("a.txt", WORDS)
    words = ("passages", "index", "a.txt", "--root", "index")
    made = ("--tokeniser", "code", "--k", "5", "--window", "4", "--no-text")
    assert call(*words, *made).code == 0
    with PassageIndex("index", create=False) as index:
        parameters = index.parameters
    assert (parameters.tokeniser, parameters.has_texts) == ("code/1", False)
    assert (parameters.blotter["k"], parameters.blotter["window"]) == (5, 4)
    assert call(*words, "--append").code == 0
    refused = call(*words, "--append", "--tokeniser", "words")
    assert refused.code == 3
    assert "words" in refused.err
    assert "code" in refused.err


def test_all_tokenisers_and_blotters_can_be_named() -> None:
    assert {f"{name}/1" for name in TOKENISERS} == set(ALL_TOKENISERS)
    assert {f"{name}/1" for name in BLOTTERS} == set(ALL_BLOTTERS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nothing",), "'nothing' matches nothing"),
        ((".", "--jobs", "-1"), "--jobs is -1"),
        ((".", "--max-bytes", "0"), "--max-bytes is 0"),
        ((".", "--k", "0"), "k = 0"),
        ((".", "--blotter", "xor", "--window", "3"), "xor"),
        ((".", "--host", "a\0b"), "is not a host name"),
        ((".", "--host", "https://a.example/"), "is not a host name"),
        ((".", "--host", "two words"), "is not a host name"),
        ((".", "--host", "a" * 9_000), "9,000 bytes"),
        (("a.txt", "--base", "elsewhere"), "is not below elsewhere"),
    ],
)
def test_wrong_use_is_told_and_makes_no_index(
    call: Callable[..., Called], words: tuple[str, ...], sentence: str
) -> None:
    write("a.txt", WORDS)
    called = call("passages", "index", *words, "--root", "index")
    assert called.code == 2
    assert sentence in called.err
    assert called.err.count("\n") == 1
    assert not Path("index").exists()


def test_a_second_writer_is_told_who_the_first_one_is(call: Callable[..., Called]) -> None:
    write("a.txt", WORDS)
    with PassageIndex("index") as index, index.writing("a test"):
        called = call("passages", "index", "a.txt", "--root", "index")
    assert called.code == 3
    assert f"process {os.getpid()}" in called.err
    assert "a test" in called.err


def test_a_folder_that_is_something_else_is_refused(call: Callable[..., Called]) -> None:
    write("docs/a.txt", WORDS)
    called = call("passages", "index", "docs", "--root", "docs")
    assert called.code == 3
    assert "docs" in called.err
    assert Path("docs/a.txt").read_text() == WORDS


def test_ctrl_c_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "index"
    with PassageIndex(root) as index:
        index.add("before", WORDS)
    words = ["passages", "index", "-", "--root", str(root), "--append"]
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    lines = line("new", WORDS)
    # More than a batch, so that the work has begun.
    program.stdin.write(lines * ((3 << 20) // len(lines)))
    program.stdin.flush()
    wait_until((root / "lock").read_text)
    program.send_signal(signal.SIGINT)
    _, told = program.communicate(timeout=240)
    assert program.returncode == -signal.SIGINT
    assert told == "scrapy-dedupe passages index: stopped; the index was not changed.\n"
    assert documents(str(root)) == ["before"]


def test_scrapy_has_the_verb_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(WORDS)
    done = run_program("scrapy", "dedupe", "passages", "index", "a.txt", "--jobs", "2", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 document added" in done.stdout
    assert documents(str(tmp_path / ".scrapy/dedupe/passages")) == ["a.txt"]
