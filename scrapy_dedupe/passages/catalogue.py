"""The manifest of an index folder.

The files of an index are never changed, except for two: ``manifest.json``, which is replaced as a whole, and ``lock``
(see `folder_files`)::

    manifest.json              the contents of the index
    lock                       which process is writing
    NAME.segment               a segment (see `segment_layout`)
    *.new                      a temporary file, renamed when it is complete and on the disk

A file belongs to the index if the manifest names it. Any other file with such a name was left by a writer that was
killed, or is no longer needed; the next writer removes it.

The manifest is JSON in UTF-8, with an indent of 1 and a final newline::

    format       "scrapy-dedupe passages"
    version      2
    generation   an integer that grows by at least one with every change, starting at 1
    parameters   tokeniser, blotter, has_texts, key_bits: the fields of `values.Parameters`
    segments     in the order in which they were added, each with the fields of `segment_layout.SegmentEntry`
    deleted      an object that maps a segment name to its deleted documents: one bit per document, the highest bit of a
                 byte first, compressed with zlib, in Base85
    checksum     SHA-256 in hex of the members above, as JSON with sorted keys, no spaces and only ASCII characters

A new index gets a manifest without segments, so a folder that has segments but no manifest has lost its manifest. While
the index is at this first generation, the next writer may replace its parameters.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from scrapy_dedupe.errors import StoreRefused

from .folder_files import LOCK, NEW_SUFFIX, damaged, read_file, reading, write_file
from .segment_layout import SUFFIX, SegmentEntry
from .values import Parameters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT = "scrapy-dedupe passages"
VERSION = 2
MANIFEST = "manifest.json"

# Enough for the deleted documents among 400 million, one bit each.
_MAX_MANIFEST_BYTES = 64 << 20
# Files are removed only if they have a name as made by `segment_name`: users may keep other files in the folder.
_INDEX_FILE_NAME = re.compile(
    rf"[0-9]{{8,19}}(?:-[0-9]{{1,19}})?{re.escape(SUFFIX)}(?:\.new)?|manifest\.json\.new"
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of an index. *deleted* maps a segment name to its deleted documents, encoded."""

    generation: int
    parameters: Parameters
    segments: tuple[SegmentEntry, ...] = ()
    deleted: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_unused(self) -> bool:
        """Whether the index never had a document, so that its parameters can still be replaced."""
        return self.generation == 1 and not self.segments

    @property
    def files(self) -> frozenset[str]:
        """The names of all files of the index, except for the lock."""
        return frozenset({MANIFEST, *(f"{entry.name}{SUFFIX}" for entry in self.segments)})

    def living(self, entry: SegmentEntry) -> NDArray[np.bool_]:
        """For each document of a segment, whether it is not deleted."""
        deleted = self.deleted.get(entry.name)
        if deleted is None:
            return np.ones(entry.documents, np.bool_)
        bits = np.frombuffer(zlib.decompress(base64.b85decode(deleted)), np.uint8)
        return np.unpackbits(bits, count=entry.documents) == 0


def encoded_deleted(is_deleted: NDArray[np.bool_]) -> str:
    """The deleted documents of a segment, as a manifest has them."""
    return base64.b85encode(zlib.compress(np.packbits(is_deleted).tobytes())).decode()


def segment_name(generation: int, number: int = 0) -> str:
    """The name of a segment that is added with the manifest of *generation*; *number* distinguishes several.

    >>> segment_name(12), segment_name(12, 1)
    ('00000012', '00000012-1')
    """
    return f"{generation:08d}-{number}" if number else f"{generation:08d}"


def begin(folder: Path, parameters: Parameters) -> Manifest:
    """The manifest of the index in *folder*, created if there is none. The caller must hold the lock.

    An index that never had a document gets *parameters*. Files left by earlier writers are removed. Raises
    the exceptions of `read_manifest`, `refuse_other_parameters` and `replace_manifest`.
    """
    manifest = read_manifest(folder)
    if manifest is None or (manifest.is_unused and manifest.parameters != parameters):
        manifest = Manifest(1, parameters)
        replace_manifest(folder, manifest)
    refuse_other_parameters(folder, manifest.parameters, parameters)
    remove_orphans(folder, manifest)
    return manifest


def manifest_stamp(folder: Path) -> tuple[object, ...]:
    """A value that changes with every change of the index in *folder*.

    Raises FileNotFoundError if there is no manifest, StoreUnavailable and StoreRefused as `read_manifest` does.
    """
    path = folder / MANIFEST
    with reading(path):
        found = path.stat()
    # Two replacements in a row may get the same inode, time and size, so the content is needed: it has the generation.
    # The content is not enough either: an index that was removed and created again may have the same manifest.
    return found.st_dev, found.st_ino, found.st_mtime_ns, read_file(path, _MAX_MANIFEST_BYTES)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the index in *folder*; None if the folder does not exist or is empty.

    Raises StoreRefused if the folder holds other things, or an index that is damaged or of another version;
    StoreUnavailable if it cannot be read.
    """
    path = folder / MANIFEST
    try:
        data = read_file(path, _MAX_MANIFEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        _refuse_other_content(folder)
        return None
    try:
        return _manifest_of(json.loads(data), path)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, "is not valid JSON of a manifest") from error


def replace_manifest(folder: Path, manifest: Manifest) -> None:
    """Atomically replace the manifest of the index; the change survives a crash. Raises StoreUnavailable.

    All files that *manifest* names must already be on the disk. Raises StoreRefused for a manifest that is too large to be
    read again.
    """
    value = {
        "format": FORMAT,
        "version": VERSION,
        "generation": manifest.generation,
        "parameters": asdict(manifest.parameters),
        "segments": [asdict(entry) for entry in manifest.segments],
        "deleted": dict(manifest.deleted),
    }
    value["checksum"] = _checksum(value)
    data = json.dumps(value, indent=1).encode() + b"\n"
    if len(data) > _MAX_MANIFEST_BYTES:
        raise StoreRefused(
            f"The index {folder} has too many deleted documents: its manifest would have {len(data)} bytes, and at most"
            f" {_MAX_MANIFEST_BYTES} are read. It is unchanged; compact it with `scrapy-dedupe passages compact` first."
        )
    write_file(folder / MANIFEST, data)


def refuse_other_parameters(folder: Path, has: Parameters, asked: Parameters) -> None:
    """Raise StoreRefused if the index in *folder* has other parameters than those requested."""
    if has == asked:
        return
    words = (
        ("the tokeniser", has.tokeniser, asked.tokeniser),
        ("the blotter", _blotter_words(has), _blotter_words(asked)),
        ("keys of", f"{has.key_bits} bits", f"{asked.key_bits} bits"),
        ("stored texts", "yes" if has.has_texts else "no", "yes" if asked.has_texts else "no"),
    )
    differing = [(what, old, new) for what, old, new in words if old != new]
    old = ", ".join(f"{what} {old}" for what, old, _ in differing)
    new = ", ".join(f"{what} {new}" for what, _, new in differing)
    raise StoreRefused(
        f"The index {folder} was made with {old}; {new} was requested. Request the parameters of the index, or create"
        " another index with --root."
    )


def orphans(folder: Path, *manifests: Manifest) -> list[str]:
    """The names of the index files in the folder that no manifest names."""
    belonging = frozenset().union(*(manifest.files for manifest in manifests))
    with reading(folder):
        names = {path.name for path in folder.iterdir()} - belonging
        return sorted(filter(_INDEX_FILE_NAME.fullmatch, names))


def remove_orphans(folder: Path, *manifests: Manifest) -> list[str]:
    """Remove the index files that no manifest names, and return their names. The caller must hold the lock.

    *manifests* must include the one on the disk. Files that cannot be removed are left for the next writer.
    """
    if not manifests:
        raise ValueError("at least one manifest is needed to know which files belong to the index")
    removed = []
    for name in orphans(folder, *manifests):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
            removed.append(name)
    return removed


def _refuse_other_content(folder: Path) -> None:
    """Raise StoreRefused if a folder without a manifest is not empty."""
    try:
        with reading(folder):
            names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise StoreRefused(
            f"{folder} is not a folder. Name a folder for the passage index with --root."
        ) from error
    # A writer that was killed before its first manifest leaves at most these two files.
    names = sorted(name for name in names if name not in (LOCK, MANIFEST + NEW_SUFFIX))
    if not names:
        return
    if any(_INDEX_FILE_NAME.fullmatch(name) for name in names):
        raise StoreRefused(
            f"The passage index {folder} has lost its {MANIFEST}. Restore it from a backup, or empty the folder and"
            " index again."
        )
    raise StoreRefused(
        f"The folder {folder} is not a passage index: it contains {names[0]!r} but no {MANIFEST}. Name another"
        " folder with --root."
    )


def _manifest_of(value: object, path: Path) -> Manifest:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise StoreRefused(
            f"{path} is not the manifest of a passage index. It was not changed; name another folder with --root."
        )
    version = value.get("version")
    if version != VERSION and isinstance(version, int):
        raise StoreRefused(
            f"{path} has format version {version}, and this version of scrapy-dedupe reads {VERSION}. Use the version"
            " that wrote it, or index again into another folder."
        )
    if value.pop("checksum", None) != _checksum(value):
        raise damaged(path, "has a wrong checksum")
    parameters = Parameters(**value["parameters"])
    segments = tuple(SegmentEntry(**entry) for entry in value["segments"])
    return Manifest(value["generation"], parameters, segments, value["deleted"])


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _blotter_words(parameters: Parameters) -> str:
    return json.dumps(parameters.blotter, sort_keys=True)
