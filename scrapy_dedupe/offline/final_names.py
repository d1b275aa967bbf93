"""Final names of new files: check that nothing blocks them and that the source files did not change.

Records are copied or dropped by their offsets, so a source file that has been replaced or has grown must not be
overwritten, and the new files must not be treated as its complete copy.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.tasks.state import reading, writing
from scrapy_dedupe.tasks.work import facts_of
from scrapy_dedupe.warc.archive_names import is_archive_name
from scrapy_dedupe.warc.files import prove_writable
from scrapy_dedupe.warc.remote import RemoteFile, real_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scrapy_dedupe.tasks.work import FileFacts, SourceFiles
    from scrapy_dedupe.warc.sources import ReadableFile

_MOST_UNLISTED: Final = 1_000


@dataclass(frozen=True, slots=True)
class NewFiles:
    """The new files of a run, by the names of the rewritten files. *others* are files that are only read.

    A new file is written to *folder*, with its path of *names*. Then it is moved to *output* or, if this is None, it replaces
    the old file. ``replaces``: existing files in *output* may be replaced.
    """

    files: Mapping[str, ReadableFile]
    others: Mapping[str, ReadableFile]
    names: Mapping[str, PurePosixPath]
    folder: Path
    output: Path | None
    replaces: bool

    def waiting(self, name: str) -> Path:
        """The path of a new file until it gets its final name."""
        return self.folder / self.names[name]

    def final(self, name: str) -> Path:
        """The final path of a new file."""
        if self.output is None:
            return Path(real_place(self.files[name]))
        return self.output / self.names[name]

    def check(self) -> None:
        """Raise ArchiveError if a new file cannot get its final name."""
        own = {real_place(file): name for name, file in self.files.items()}
        read = {real_place(file): name for name, file in self.others.items()}
        if self.output is None:
            if len(own | read) < len(self.files) + len(self.others):
                raise ArchiveError(
                    "One of the files has two names, by a link, and cannot be replaced under only one of them. Remove one"
                    " name from the manifests."
                )
            for folder in {self.final(name).parent for name in self.files}:
                prove_writable(folder, "The new files")
            return
        prove_writable(self.output, "The new files")
        for identity, name in own.items():
            # The rewritten file would refer to itself, under a name that is not in the new archive.
            if identity in read:
                raise ArchiveError(
                    f"{name} and {read[identity]} are the same file, by a link. Remove one name from the manifests, or write"
                    " both."
                )
        for name in self.files:
            if real_place(self.final(name)) in own | read:
                raise ArchiveError(
                    f"{self.final(name)} is one of the files to be read. Choose another folder, or replace the files with"
                    " --in-place."
                )
            self._check_free(name)

    def move(self, changed: Iterable[str], sources: SourceFiles) -> None:
        """Give the new files of *changed* their final names; a file that is not in the folder any more already has it.

        Raises ArchiveError if a source file has changed, or if a file has been removed since it got its final name.
        """
        unchanged = set(sources.files)
        waiting = []
        for name in changed:
            new = self.waiting(name)
            if self.output is None:
                if new.exists() and _is_replaced(new, self.final(name), sources.job.files[name]):
                    with writing(new):
                        new.unlink()
                if not new.exists():
                    # The file has been replaced, so it differs from the file that was read.
                    unchanged.remove(name)
            if new.exists():
                waiting.append(name)
            elif not self.final(name).exists():
                raise sources.work.removed(self.final(name))
        sources.check_unchanged(name for name in sources.files if name in unchanged)
        for name in waiting:
            if self.output is None:
                sources.check_unchanged([name])
                replace(self.waiting(name), self.final(name))
            else:
                self._check_free(name)
                move(self.waiting(name), self.final(name))

    def unlisted(self) -> tuple[str, ...]:
        """WARC files in the folders of the files that are not among the known files, named as in a manifest.

        They may hold revisits of copies that become revisits. At most 1,000 are returned.
        """
        known = {real_place(file) for file in (*self.files.values(), *self.others.values())}
        folders: dict[str, str] = {}
        for name, file in self.files.items():
            if isinstance(file, Path):
                folders.setdefault(real_place(file.parent), str(PurePosixPath(name).parent))
        found = []
        for folder, name in folders.items():
            with reading(folder):
                entries = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
            for entry in entries:
                path = os.path.join(folder, entry)  # noqa: PTH118 - compared with the known names as text
                if is_archive_name(entry) and real_place(path) not in known:
                    found.append(str(PurePosixPath(name, entry)))
        return tuple(found[:_MOST_UNLISTED])

    def _check_free(self, name: str) -> None:
        final = self.final(name)
        if final.exists() and not (self.replaces and final.is_file()):
            raise ArchiveError(
                f"{final} already exists; {name} would be written to it. Use --force to replace it."
            )


def refuse_unwritable(name: str, file: ReadableFile, *, in_place: bool) -> None:
    """Raise UsageError for a file that cannot be rewritten, or not *in_place*."""
    if not isinstance(file, Path | RemoteFile):
        raise UsageError(
            f"{name} is in a container, such as a WACZ, and cannot be rewritten. Extract its WARC files (unzip), name the"
            " folder with them, and pack the new files with `scrapy dedupe warc pack`."
        )
    if in_place and not isinstance(file, Path):
        raise UsageError(
            f"{name} is remote and cannot be replaced. Write to a folder with -o, or download it first."
        )


def move(new: Path, final: Path) -> None:
    """Move a new file to its final name in the output folder."""
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        whole_file.put_in_place(new, final)


def replace(new: Path, old: Path) -> None:
    """Replace *old* with *new*, keeping its permissions. The two may be on different file systems."""
    with writing(old):
        shutil.copymode(old, new)
        try:
            whole_file.put_in_place(new, old, durable=False)
        except OSError:
            with (
                whole_file.replacing(old, suffix=".dedupe", is_hidden=True) as target,
                new.open("rb") as source,
            ):
                shutil.copyfileobj(source, target, 1 << 20)
                shutil.copymode(old, target.name)
            new.unlink()
        else:
            sync_folder(old.parent)


def _is_replaced(new: Path, old: Path, before: FileFacts) -> bool:
    """Whether *old* has already been replaced: across file systems, a run can be killed before it removes *new*."""
    now = facts_of(old)
    return now.place == before.place and now[:-1] != before[:-1] and filecmp.cmp(new, old, shallow=False)
