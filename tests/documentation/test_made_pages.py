"""A page with a mistake fails, and one without passes: the harness sees what it is there to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from documentation import synopses
from documentation.blocks import Block, blocks_of
from documentation.console import difference, lines_of
from documentation.pages import run_page
from documentation.python_blocks import kind_of
from documentation.worlds import PROJECT, World

if TYPE_CHECKING:
    from pathlib import Path

    from documentation.place import Programs


def page_of(folder: Path, *blocks: str) -> Path:
    """A page with these blocks, each ``LANGUAGE\\nTEXT``; a mark goes before the language."""
    parts = ["Title\n=====\n"]
    for block in blocks:
        head, _, text = block.partition("\n")
        mark, _, language = head.rpartition("|")
        lines = "\n".join(f"    {line}" if line else "" for line in text.splitlines())
        comment = f".. run: {mark}\n\n" if mark else ""
        parts.append(f"Prose.\n\n{comment}.. code-block:: {language}\n\n{lines}\n")
    page = folder / "page.rst"
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("console\n$ scrapy-dedupe stats --all", "unrecognized arguments: --all"),
        ("console\n$ false\n$ true", "ended with 1 instead of 0"),
        ("exit 3|console\n$ true", "ended with 0 instead of 3"),
        ("console\n$ echo one two\none three", "does not print: one three"),
        ('console\n$ pip install "scrapy-dedupe[everything]"', "no such extra"),
        ("console\n$ pip install scrapy-dedup", "no such package"),
        ("console\n$ curl http://elsewhere.test/", "no page names the host"),
        ("console\n$ echo digraph | dot -Tsvg", "ended with 1"),
        ("python\nprint(1 + 1)\n# 3", "printed is not 3"),
        ("python\nfrom scrapy_dedupe.content import Dedup", "cannot import name 'Dedup'"),
        ("python\n>>> 1 + 1\n3", "Expected:"),
        ("python\nDEDUPE_CONTENT_ENABLE = False", "there is no setting DEDUPE_CONTENT_ENABLE"),
        ("json\n{'a': 1}", "Expecting property name"),
        ("perl\nprint 1", "perl is not run"),
    ],
)
def test_a_mistake_is_told(block: str, told: str, tmp_path: Path, programs: Programs, redis_url: str) -> None:
    page = page_of(tmp_path, block)
    with pytest.raises(AssertionError) as failed:
        run_page(page, World(), tmp_path / "world", programs, redis_url)
    assert told in str(failed.value)
    assert f"{page}:" in str(failed.value)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ('python\nDEDUPE_ACTION_EXACT = "dropp"', "DEDUPE_ACTION_EXACT"),
        ("python\ndef parse(self, response):\n    yield response.nothing", "ERROR: Spider error"),
        ("python\ndef parse(self, response):\n    pass\ndef later(self, response):\n    pass", "never called in a crawl: later"),
        ('python\nverdict = response.meta["dedup"]', "ERROR: Spider error"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_project_is_told(
    block: str, told: str, tmp_path: Path, programs: Programs, redis_url: str
) -> None:
    with pytest.raises(AssertionError) as failed:
        run_page(page_of(tmp_path, block), World(PROJECT), tmp_path / "world", programs, redis_url)
    assert told in str(failed.value)


def test_lines_go_on_where_the_last_one_has_left_off(
    tmp_path: Path, programs: Programs, redis_url: str
) -> None:
    page = page_of(
        tmp_path,
        "console\n$ mkdir below && cd below\n$ export NAME=heron",
        'console\n$ echo "$NAME" > bird.txt && \\\n  cat bird.txt\nheron',
        "python\nfrom pathlib import Path\nbird = Path('below/bird.txt').read_text()",
        "python\nprint(bird.strip())\n# heron",
        "exit 2|console\n$ scrapy-dedupe nothing",
        "home|console\n$ ls\nbelow",
    )
    run_page(page, World(), tmp_path / "world", programs, redis_url)


def test_hosts_of_examples_are_served(tmp_path: Path, programs: Programs, redis_url: str) -> None:
    page = page_of(
        tmp_path,
        "console\n$ curl https://www.example.org/news\n<!doctype html><title>News</title>...",
        "python\nimport redis\nprint(redis.Redis.from_url('redis://localhost:6379/0').ping())\n# True",
        "console\n$ python -m http.server 8000 --bind 127.0.0.1 > log 2>&1 &\n$ curl -s http://localhost:8000/log",
    )
    run_page(page, World(ports=(8000,)), tmp_path / "world", programs, redis_url)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (["3 pages in 0.5 s"], "12 pages in 17.25 s"),
        (["site-20261128093000-5f0c2a17  done"], "site-20261129010203-0123abcd   done"),
        (["<urn:uuid:563969d1-0f1a-45b5-879c-98550a174790>"], "<urn:uuid:00000000-1111-2222-3333-444444444444>"),
        (["one", "…", "four"], "zero\none\ntwo\nthree\nfour\nfive"),
        (["a … z"], "a b c z"),
        ([], "whatever"),
    ],
)  # fmt: skip
def test_output_may_differ_in_what_varies(shown: list[str], printed: str) -> None:
    assert difference(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed", "missing"),
    [
        (["one", "three"], "one\ntwo\nthree", "three"),
        (["3 pages"], "3 pages more", "3 pages"),
        (["b", "a"], "a\nb", "a"),
        (["words"], "", "words"),
    ],
)
def test_output_that_is_otherwise_is_told(shown: list[str], printed: str, missing: str) -> None:
    assert difference(shown, printed) == missing


def test_prompts_continuations_and_output_are_told_apart() -> None:
    lines = lines_of("$ one \\\n    two\nshown\n\nhost1$ three\n> four\n")
    assert [(line.command, line.machine, line.shown) for line in lines] == [
        ("one \\\n    two", None, ["shown"]),
        ("three\nfour", "host1", []),
    ]
    with pytest.raises(ValueError, match="begins with a prompt"):
        lines_of("scrapy crawl site")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import os\nJOBDIR = 'jobs'", "settings"),
        (">>> 1\n1", "doctest"),
        ("def parse(self, response):\n    yield 1", "methods"),
        ("async def start(self):\n    yield 1", "methods"),
        ("class A(scrapy.Spider):\n    name = 'a'", "spider"),
        (
            "class A:\n    @classmethod\n    def from_crawler(cls, crawler):\n        return cls()",
            "component",
        ),
        ("yield response.follow(link)", "fragment"),
        ("response.meta['dedupe']", "fragment"),
        ("class A:\n    pass\nprint(A())", "script"),
        ("def double(n):\n    return 2 * n", "script"),
    ],
)
def test_python_is_told_by_what_it_is(text: str, kind: str, tmp_path: Path) -> None:
    assert kind_of(Block(tmp_path, 1, "python", text)) == kind
    assert kind_of(Block(tmp_path, 1, "python", text, ("as script",))) == "script"


def test_blocks_of_markdown_and_restructured_text(tmp_path: Path) -> None:
    markdown, restructured = tmp_path / "a.md", tmp_path / "a.rst"
    markdown.write_text("Text\n\n<!-- run: exit 3 -->\n```console\n$ a\n```\n\n```\nplain\n```\n")
    restructured.write_text(
        "Text\n\n.. run: exit 3\n\n.. code-block:: console\n    :caption: A title\n\n    $ a\n\n      b\n\nText::\n\n    plain\n"
        "\n.. code-block:: toml\n   :caption: folder/x.toml\n\n   a = 1\n"
    )
    assert [(b.language, b.text, b.line, b.marks, b.caption) for b in blocks_of(markdown)] == [
        ("console", "$ a", 5, ("exit 3",), None),
        ("text", "plain", 9, (), None),
    ]
    assert [(b.language, b.text, b.line, b.marks, b.caption) for b in blocks_of(restructured)] == [
        ("console", "$ a\n\n  b", 8, ("exit 3",), None),
        ("text", "plain", 14, (), None),
        ("toml", "a = 1", 19, (), "folder/x.toml"),
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("$ scrapy dedupe status", "names a verb that there is not"),
        ("$ scrapy dedupe purge ID… [--dryrun]", "--dryrun"),
        ("$ scrapy-dedupe verify BEFORE AFTER [--sample N [--sed S]]", "--sed"),
    ],
)
def test_a_synopsis_with_a_mistake_is_told(line: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=told):
        synopses.check(Block(tmp_path, 1, "console", line))
