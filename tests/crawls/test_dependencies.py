"""What crawls need of each other, and whether it is there: with real files, on both stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recorded_crawls import record_crawl

from scrapy_dedupe.crawls.dependencies import Dependencies
from scrapy_dedupe.crawls.packing import requirements
from scrapy_dedupe.stores.base import Counts, Need, Original, Source

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from scrapy_dedupe.crawls import CrawlIndex


def test_a_crawl_needs_the_warc_file_of_the_crawl_that_its_revisits_refer_to(
    index: CrawlIndex, tmp_path: Path
) -> None:
    (original,) = record_crawl(index, tmp_path, "one", [1, 2])
    record_crawl(index, tmp_path, "two", [2, 3, 3])
    dependencies = Dependencies(index)
    assert dependencies.needs("one") == []
    (needed,) = dependencies.needs("two")
    assert (needed.crawl, needed.state, needed.name) == ("one", "committed", original.name)
    assert (needed.place, needed.is_present, needed.is_missing) == (str(original), True, False)
    assert dependencies.needed_by("one") == ["two"]
    assert dependencies.needed_by("two") == []
    original.unlink()
    (needed,) = Dependencies(index).needs("two")
    assert (needed.is_present, needed.is_missing) == (False, True)


def test_a_container_is_found_by_the_files_in_it_and_is_named_once(index: CrawlIndex, tmp_path: Path) -> None:
    (wacz,) = record_crawl(index, tmp_path, "one", [1, 2], in_wacz=True)
    record_crawl(index, tmp_path, "two", [1, 2])
    dependencies = Dependencies(index)
    (needed,) = dependencies.needs("two")
    assert (needed.name, needed.place, needed.is_present) == ("one.wacz", str(wacz), True)
    (container,) = dependencies.containers("one")
    assert (container.filename, container.place, container.size) == (
        "one.wacz",
        str(wacz),
        wacz.stat().st_size,
    )
    wacz.unlink()
    (needed,) = Dependencies(index).needs("two")
    assert (str(needed.place).rpartition("/archive/")[0], needed.is_present) == (str(wacz), False)


def test_a_container_without_a_place_is_looked_for_in_the_folder_for_wacz_files(
    index: CrawlIndex, tmp_path: Path
) -> None:
    index.start("one")
    index.set_container("one", "one.wacz", "ab" * 32, 5)
    index.commit("one")
    index.start("two")
    index.add("two", [], Counts(1, 1), needs=[Need("one", 0)])
    (needed,) = Dependencies(index, tmp_path).needs("two")
    assert (needed.name, needed.place, needed.is_present, needed.is_missing) == (
        "one.wacz",
        None,
        None,
        False,
    )
    (tmp_path / "one.wacz").write_bytes(b"12345")
    (needed,) = Dependencies(index, tmp_path).needs("two")
    assert (needed.place, needed.is_present) == (str(tmp_path / "one.wacz"), True)


def test_of_two_containers_each_has_its_own_place(index: CrawlIndex, tmp_path: Path) -> None:
    index.start("one")
    for name in ("a.wacz", "b.wacz"):
        index.set_container("one", name, "ab" * 32, 5)
        index.add_file("one", f"{tmp_path}/{name}/archive/x.warc.gz")
    index.commit("one")
    (tmp_path / "b.wacz").write_bytes(b"12345")
    index.start("two")
    index.add("two", [], needs=[Need("one", place, None) for place in (0, 1, 2)])
    needs = Dependencies(index).needs("two")
    assert [(need.name, need.is_present) for need in needs] == [
        ("a.wacz", False),
        ("b.wacz", True),
        (None, None),
    ]


def test_a_crawl_that_the_index_does_not_have_is_missing_even_if_its_file_is_there(
    index: CrawlIndex, tmp_path: Path
) -> None:
    file = tmp_path / "gone.warc.gz"
    file.write_bytes(b"")
    index.start("two")
    index.add("two", [], needs=[Need("gone", 0, str(file))])
    (needed,) = Dependencies(index).needs("two")
    assert (needed.state, needed.is_present, needed.is_missing) == (None, True, True)


def test_dependants_are_those_that_are_not_themselves_among_the_crawls(
    index: CrawlIndex, tmp_path: Path
) -> None:
    record_crawl(index, tmp_path, "one", [1, 2])
    record_crawl(index, tmp_path, "two", [2, 3])
    record_crawl(index, tmp_path, "three", [3, 4], commit=False)
    dependencies = Dependencies(index)
    assert [(other, needed.crawl) for other, needed in dependencies.dependants(["one"])] == [("two", "one")]
    assert [(other, needed.crawl) for other, needed in dependencies.dependants(["one", "two"])] == [
        ("three", "two")
    ]
    assert dependencies.dependants(["one", "two", "three"]) == []


def test_what_a_canceled_crawl_needed_does_not_count(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "one", [1])
    record_crawl(index, tmp_path, "two", [1], commit=False)
    index.cancel("two")
    dependencies = Dependencies(index)
    assert (dependencies.needed_by("one"), dependencies.undecided(["one"])) == ([], [])


def test_of_a_crawl_that_runs_it_is_not_known_what_it_needs(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "one", [1])
    index.start("two")
    assert Dependencies(index).why_unknown("two") is None
    index.mark_incomplete("two", True)
    assert Dependencies(index).undecided(["one"]) == [("two", "is running, or did not end well")]
    assert Dependencies(index).undecided(["one", "two"]) == []


def test_of_a_crawl_that_is_being_imported_it_is_not_known_either(index: CrawlIndex, tmp_path: Path) -> None:
    source = Source("other.warc.gz", "other", "/archive/other.warc.gz")
    more = Source("more.warc.gz", "other", "/archive/more.warc.gz")
    reason = "is being imported, or its import was interrupted"
    index.begin_source(source, "stored")
    assert Dependencies(index).why_unknown("other") == reason
    index.end_source(source, Counts(1, 0, 0, 10))
    assert Dependencies(index).why_unknown("other") is None
    index.begin_source(more, "stored")
    assert Dependencies(index).why_unknown("other") == reason, "a committed crawl that is extended"
    index.drop_source(more)
    assert Dependencies(index).why_unknown("other") is None


def test_files_needed_are_the_places_of_files_and_containers(index: CrawlIndex, tmp_path: Path) -> None:
    (file,) = record_crawl(index, tmp_path, "one", [1])
    (wacz,) = record_crawl(index, tmp_path, "two", [2], in_wacz=True)
    record_crawl(index, tmp_path, "three", [1, 2])
    assert {str(file), str(wacz)} <= Dependencies(index).files_needed("three")


def test_crawls_that_share_a_payload_need_only_the_first(index: CrawlIndex) -> None:
    for crawl in ("one", "two"):
        index.start(crawl)
        index.add(crawl, [Original("ab" * 32, crawl, "20260801120000", "https://example.com/", 99)])
        index.commit(crawl)
    dependencies = Dependencies(index)
    assert [dependencies.needed_by(crawl) for crawl in ("one", "two")] == [[], []]


def test_a_crawl_does_not_need_itself(index: CrawlIndex) -> None:
    index.start("one")
    index.add("one", [], needs=[Need("one", 0, "/archive/one.warc.gz")])
    dependencies = Dependencies(index)
    assert (dependencies.needs("one"), dependencies.needed_by("one")) == ([], [])


def test_of_two_files_with_one_name_the_one_that_is_gone_counts(index: CrawlIndex, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "x.warc.gz").write_bytes(b"")
    index.start("two")
    places = [str(tmp_path / folder / "x.warc.gz") for folder in ("a", "b")]
    index.add("two", [], needs=[Need("one", 0, place) for place in places])
    (needed,) = Dependencies(index).needs("two")
    assert (needed.place, needed.is_present) == (places[1], False)


def test_a_container_that_is_not_packed_is_not_what_is_needed(index: CrawlIndex, tmp_path: Path) -> None:
    (file,) = record_crawl(index, tmp_path, "one", [1], commit=False)
    index.add_container("one", "one.wacz")
    index.commit("one")
    record_crawl(index, tmp_path, "two", [1])
    (needed,) = Dependencies(index).needs("two")
    assert (needed.name, needed.place) == (file.name, str(file))


def test_a_container_is_not_taken_for_another_whose_name_ends_like_it(
    index: CrawlIndex, tmp_path: Path
) -> None:
    (tmp_path / "another-one.wacz").write_bytes(b"12345")
    index.start("one")
    index.set_container("one", "one.wacz", "ab" * 32, 5)
    index.add_file("one", f"{tmp_path}/another-one.wacz/archive/x.warc.gz")
    (container,) = Dependencies(index).containers("one")
    assert (container.place, container.is_present) == (None, None)


def test_a_file_at_a_url_is_named_without_its_query(index: CrawlIndex) -> None:
    index.start("two")
    index.add("two", [], needs=[Need("one", 0, "https://example.org/a/x.warc.gz?version=2")])
    (needed,) = Dependencies(index).needs("two")
    assert str(needed) == "one (x.warc.gz)"


def test_a_container_that_another_crawl_tells_the_name_of_is_found_by_that_name(
    index: CrawlIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.wacz", "b.wacz"):
        (tmp_path / name).write_bytes(b"12345")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "b.wacz").write_bytes(b"12345")
    index.start("one")
    for name in ("a.wacz", "b.wacz"):
        index.set_container("one", name, "ab" * 32, 5)
        index.add_file("one", f"{tmp_path}/there/{name}/archive/x.warc.gz")
    index.commit("one")
    index.start("two")
    index.add("two", [], needs=[Need("one", 0, "b.wacz")])
    (needed,) = Dependencies(index).needs("two")
    place = str(tmp_path / "there" / "b.wacz")
    assert (needed.name, needed.place, needed.is_present) == ("b.wacz", place, True)
    assert Dependencies(index).files_needed("two") == {place}
    assert [needed.filename for needed in requirements(index, "two")] == ["b.wacz"]
    (tmp_path / "there" / "b.wacz").unlink()
    (needed,) = Dependencies(index).needs("two")
    assert (needed.place, needed.is_present) == (place, False)


def test_a_bare_name_is_not_looked_for_in_the_working_folder(
    index: CrawlIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("c.wacz", "x.warc.gz"):
        (tmp_path / name).write_bytes(b"12345")
    index.start("one")
    index.add_file("one", "/nowhere/x.warc.gz")
    index.commit("one")
    index.start("two")
    index.add("two", [], needs=[Need("one", 0, "c.wacz"), Need("one", 0, "x.warc.gz")])
    needs = [(needed.name, needed.place, needed.is_present) for needed in Dependencies(index).needs("two")]
    assert needs == [("c.wacz", None, None), ("x.warc.gz", "/nowhere/x.warc.gz", False)]


def test_a_container_that_was_imported_under_the_same_id_is_not_needed_of_another(
    index: CrawlIndex,
) -> None:
    index.start("all")
    index.set_container("all", "base.wacz", "ab" * 32, 5)
    index.add("all", [], needs=[Need("base", 0, "base.wacz")])
    dependencies = Dependencies(index)
    assert (dependencies.needs("all"), dependencies.needed_by("base")) == ([], [])
    assert requirements(index, "all") == []


def test_a_container_that_was_imported_under_another_id_is_needed_of_that_crawl(
    index: CrawlIndex, tmp_path: Path
) -> None:
    place = tmp_path / "one.wacz"
    place.write_bytes(b"12345")
    index.start("m1")
    index.set_container("m1", "one.wacz", "ab" * 32, 5)
    index.add_file("m1", f"{place}/archive/x.warc.gz")
    index.commit("m1")
    index.start("m2")
    index.add("m2", [], needs=[Need("one", 0, "one.wacz"), Need("m1", 0, f"{place}/archive/x.warc.gz")])
    index.commit("m2")
    dependencies = Dependencies(index)
    (needed,) = dependencies.needs("m2")
    assert (needed.crawl, needed.name, needed.is_missing) == ("m1", "one.wacz", False)
    assert (dependencies.crawls_needed("m2"), dependencies.needed_by("m1")) == (["m1"], ["m2"])
    assert [(needed.crawl, needed.filename) for needed in requirements(index, "m2")] == [("m1", "one.wacz")]


def test_a_container_with_a_name_of_its_manifest_is_required_under_its_file_name(index: CrawlIndex) -> None:
    source = Source("c2", "m2", "/archive/c2.wacz", True, "ab" * 32, 5)
    index.queue_sources([source])
    claimed = index.claim_source()
    assert claimed is not None
    index.begin_source(claimed, "stored")
    index.end_source(claimed, Counts())
    index.start("three")
    index.add("three", [], needs=[Need("m2", 0, "/archive/c2.wacz/archive/x.warc.gz")])
    assert [(needed.crawl, needed.filename) for needed in requirements(index, "three")] == [("m2", "c2.wacz")]
