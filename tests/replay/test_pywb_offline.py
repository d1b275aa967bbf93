"""pywb shows the same of an archive before and after its copies became revisits."""

from __future__ import annotations

import gzip
import shutil
from typing import TYPE_CHECKING

import pytest
from offline.calling import done
from offline.garden import garden
from offline.planted import Copy, Planting, Pointed, Record
from replay.wayback import IS_MISSING, Shown, Wayback

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(IS_MISSING, reason="pywb is not there; use tox -e replay")


@pytest.fixture
def wayback(tmp_path: Path) -> Iterator[Wayback]:
    folder = tmp_path / "replay"
    folder.mkdir()
    wayback = Wayback(folder)
    yield wayback
    wayback.stop()


def flat(planting: Planting, folder: Path, to: Path) -> list[Path]:
    """The archive's files under names of their own, since pywb puts all into one folder."""
    to.mkdir()
    paths = []
    for number, name in enumerate(planting.files):
        path = to / f"{number}-{name.rpartition('/')[2].replace(' ', '-')}"
        shutil.copyfile(folder / name, path)
        paths.append(path)
    return paths


def moment_of(record: Record) -> str:
    return record.date[:19].translate(None, b"-:T").decode()


def decoded(record: Record) -> bytes:
    """The payload as pywb shows it to somebody who accepts no content coding."""
    is_gzip = b"Content-Encoding: gzip" in record.head
    return gzip.decompress(record.payload) if is_gzip else record.payload


def is_not_found(shown: Shown) -> bool:
    """Whether pywb has no such capture, and says so on a page of its own."""
    return shown.status >= 400 and not shown.exchange


def test_every_capture_is_shown_as_before(wayback: Wayback, tmp_path: Path) -> None:
    planting = garden()
    planting.write(tmp_path / "in")
    done(tmp_path, "dedupe", "-r", "in", "-o", "out")
    done(tmp_path, "restore", "out", "-o", "back")
    for folder in ("in", "out", "back"):
        wayback.add(folder, flat(planting, tmp_path / folder, tmp_path / f"flat-{folder}"))
    wayback.start()
    captures = [record for record in planting.records.values() if record.type in ("response", "revisit")]
    converted = compared = 0
    for capture in captures:
        asked = moment_of(capture), capture.uri.decode()
        before: Shown = wayback.get("in", *asked)
        after: Shown = wayback.get("out", *asked)
        back: Shown = wayback.get("back", *asked)
        # Of two captures of one URL in one second either may be shown, for both have one body.
        ambiguous = sum(asked == (moment_of(other), other.uri.decode()) for other in captures) > 1
        fate = planting.fates.get(capture.label)
        if is_not_found(before):
            # pywb's own page, which has the name of the collection in it.
            assert is_not_found(back), capture.label
        else:
            assert back.body == before.body, capture.label
        if isinstance(fate, Pointed):
            # Some of these could not be shown before, since they did not say the URI of what they refer to.
            assert (after.status, after.exchange, after.body) == (200, capture.label, capture.payload)
            continue
        if is_not_found(before):
            assert is_not_found(after), capture.label
            assert after.status == before.status, capture.label
            converted += isinstance(fate, Copy) and not ambiguous
            continue
        assert (after.status, after.coding, after.body) == (before.status, before.coding, before.body), (
            capture.label
        )
        if not ambiguous:
            assert after == before == back, capture.label
        if isinstance(fate, Copy) and not ambiguous:
            converted += 1
            compared += before.exchange == capture.label and after.body == decoded(capture)
    assert converted >= 15
    assert compared >= 0.8 * converted


def test_a_revisit_of_a_record_that_became_one_is_shown(wayback: Wayback, tmp_path: Path) -> None:
    planting = garden()
    planting.write(tmp_path / "in")
    done(tmp_path, "dedupe", "-r", "in", "-o", "out")
    wayback.add("out", flat(planting, tmp_path / "out", tmp_path / "flat"))
    wayback.start()
    for label in ("e-copy", "e-copy-id", "e-copy-uri", "e-rose"):
        revisit = planting.records[label]
        shown = wayback.get("out", moment_of(revisit), revisit.uri.decode())
        assert (shown.status, shown.exchange, shown.body) == (200, label, revisit.payload), label
