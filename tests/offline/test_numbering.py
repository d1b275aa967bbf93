from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_lines import a_line, manifest_lines

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.offline.manifest_lines import ManifestLine, parse_text_line, text_line
from scrapy_dedupe.offline.ordering import by_cluster, number
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.warc.dates import date_key

if TYPE_CHECKING:
    from pathlib import Path


def test_a_new_digest_with_extension_1_is_no_copy_of_the_digest_before() -> None:
    lines = [a_line(offset=n, digest=f"md5:{n:032}", extension=1) for n in range(3)]
    assert [line.copy for line in number(lines)] == [1, 1, 1]


def test_another_extension_of_one_digest_is_another_original() -> None:
    lines = [a_line(offset=n, extension=extension) for n, extension in enumerate([1, 1, 2, 2])]
    assert [line.copy for line in number(lines)] == [1, 2, 1, 2]


def test_a_copy_refers_to_its_original_and_never_to_itself() -> None:
    lines = [a_line(offset=n, uri=f"http://{n}/", date=f"201{n}") for n in range(3)]
    original, *copies = number(lines)
    assert (original.refers_to_uri, original.refers_to_date) == (None, None)
    assert [(copy.refers_to_uri, copy.refers_to_date) for copy in copies] == [("http://0/", "2010")] * 2


def test_digests_are_trusted_where_no_bytes_were_compared() -> None:
    assert [(line.extension, line.copy) for line in number([a_line(), a_line("b")])] == [(1, 1), (1, 2)]


def test_what_columns_8_to_10_said_before_is_not_used() -> None:
    wrong = a_line(offset=5, extension=1, copy=7, refers_to_uri="http://wrong/", refers_to_date="1999")
    assert list(number([wrong])) == [a_line(offset=5, extension=1, copy=1)]


def test_a_record_that_is_listed_twice_is_no_copy_of_itself() -> None:
    with pytest.raises(DamagedInput, match=r"a.warc.gz, offset 0: the manifest lists this record twice"):
        list(number([a_line(), a_line()]))
    faults = Faults(keep_going=True)
    assert [line.copy for line in number([a_line(), a_line(), a_line("b")], faults=faults)] == [1, 2]
    assert faults.count == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.lists(manifest_lines(7), max_size=12, unique_by=lambda line: (line.file, line.offset)))
def test_each_cluster_has_one_original_which_is_the_earliest(
    tmp_path: Path, lines: list[ManifestLine]
) -> None:
    numbered = list(number(by_cluster(lines, tmp_path)))
    assert {(line.file, line.offset) for line in numbered} == {(line.file, line.offset) for line in lines}
    for cluster in {line.cluster for line in lines}:
        first, *copies = (line for line in numbered if line.cluster == cluster)
        assert [first.copy, *(copy.copy for copy in copies)] == list(range(1, len(copies) + 2))
        assert all(date_key(first.date) <= date_key(copy.date) for copy in copies)
        assert all((copy.refers_to_uri, copy.refers_to_date) == (first.uri, first.date) for copy in copies)
    assert [parse_text_line(text_line(line, 10)) for line in numbered] == numbered
