"""Where new files go."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.tasks.inputs import output_names


@pytest.mark.parametrize(
    ("names", "places"),
    [
        ([], []),
        (["in/a.warc"], ["a.warc"]),
        (["a.warc", "b.warc"], ["a.warc", "b.warc"]),
        (["in/2019/a.warc", "in/2020/a.warc"], ["2019/a.warc", "2020/a.warc"]),
        (["in/a.warc", "in/deep/er/b.warc"], ["a.warc", "deep/er/b.warc"]),
        (["/x/in/a.warc", "/x/on/a.warc"], ["in/a.warc", "on/a.warc"]),
        (["../one/a.warc", "../two/a.warc"], ["one/a.warc", "two/a.warc"]),
        (["in/x/../a.warc", "in/b.warc"], ["a.warc", "b.warc"]),
    ],
)
def test_files_lie_as_below_the_folder_that_they_share(names: list[str], places: list[str]) -> None:
    assert output_names(names) == dict(zip(names, map(PurePosixPath, places), strict=True))


def test_no_name_leads_out_of_the_output_folder() -> None:
    for names in (["../a.warc", "in/b.warc"], ["/x/a.warc", "in/b.warc"]):
        places = output_names(names).values()
        assert len(set(places)) == 2
        assert not any(".." in place.parts or place.is_absolute() for place in places)


def test_two_names_of_one_place_are_refused() -> None:
    with pytest.raises(ArchiveError, match=r"in/a\.warc and \./in/a\.warc would both be written to a\.warc"):
        output_names(["in/a.warc", "./in/a.warc"])


def test_a_file_in_the_folder_of_the_work_is_refused() -> None:
    with pytest.raises(ArchiveError, match="is reserved for unfinished work"):
        output_names([".dedupe/a.warc", "b.warc"])
