"""Commands that write to one folder: only one at a time, and none removes the unfinished work of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deduped_files import Archive, Page
from offline.planted import SITE, Planting, text
from offline.test_rewriting import manifest

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline.arc_conversion import ConversionOptions, convert_files
from scrapy_dedupe.offline.output_folder import held_output
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.restoring import RestoreOptions, restore
from scrapy_dedupe.offline.rewriting import rewrite
from scrapy_dedupe.offline.steps import StepOptions, run_steps
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.tasks.work import Job, WorkFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BODY = b"<p>a lake</p>" * 200


class Sources:
    """Files for each command; all of them write to the folder ``out``."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.warcs = Archive({"a.warc.gz": [Page(1, BODY), Page(2, BODY)]}).write(folder / "in")
        p = Planting()
        p.file("old.arc.gz", "arc gzip")
        p.arc_capture("old.arc.gz", "old", f"{SITE}/old", text("old", 3_000))
        p.write(folder / "arcs")
        self.arc = folder / "arcs" / "old.arc.gz"

    def dedupe(self, watch: NoProgress) -> None:
        inputs = find_inputs([str(self.warcs)], faults=Faults())
        run_steps(inputs, self.out, StepOptions(), faults=Faults(), watch=watch)

    def dedupe_with_work(self, watch: NoProgress) -> None:
        inputs = find_inputs([str(self.warcs)], faults=Faults())
        work = self.out.with_name("work")
        run_steps(inputs, self.out, StepOptions(work=work), faults=Faults(), watch=watch)

    def warcrefs(self, watch: NoProgress) -> None:
        rewrite(manifest(self.warcs), None, Places([str(self.warcs)]), self.out, watch=watch)

    def restore(self, watch: NoProgress) -> None:
        restore([str(self.warcs)], self.out, options=RestoreOptions(), watch=watch)

    def arc2warc(self, watch: NoProgress) -> None:
        options = ConversionOptions()
        convert_files(
            [str(self.arc)], self.out, options=options, recursive=False, jobs=1, keep_going=False, watch=watch
        )


COMMANDS: dict[str, Callable[[Sources, NoProgress], None]] = {
    "dedupe": Sources.dedupe,
    "dedupe --work": Sources.dedupe_with_work,
    "warcrefs": Sources.warcrefs,
    "restore": Sources.restore,
    "arc2warc": Sources.arc2warc,
}


class Meanwhile(NoProgress):
    """Calls a function once, when the first part of the work begins."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.do = do
        self.is_done = False

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        if not self.is_done:
            self.is_done = True
            self.do()


@pytest.mark.parametrize("running", COMMANDS)
def test_only_one_command_at_a_time_writes_to_a_folder(running: str, tmp_path: Path) -> None:
    sources = Sources(tmp_path)

    def others() -> None:
        for command in COMMANDS.values():
            with pytest.raises(ArchiveError, match=r"Another process is working in .*out/\.dedupe"):
                command(sources, NoProgress())

    watch = Meanwhile(others)
    COMMANDS[running](sources, watch)
    assert watch.is_done
    assert [path.name for path in sources.out.glob("*.warc.gz")]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("unfinished", "command"),
    [(".dedupe", "dedupe"), (".dedupe/warcrefs", "warcrefs"), (".restore", "restore")],
)
def test_unfinished_work_of_another_command_is_refused(
    name: str, unfinished: str, command: str, tmp_path: Path
) -> None:
    if name.partition(" ")[0] == command:
        return
    sources = Sources(tmp_path)
    work = sources.out / unfinished
    with WorkFolder(work, command=command) as left:
        left.begin(Job({}, {}))
    before = (work / "job.json").read_bytes()
    with pytest.raises(
        ArchiveError, match=rf"out/{unfinished} has unfinished work of {command}\. Repeat that"
    ):
        COMMANDS[name](sources, NoProgress())
    assert (work / "job.json").read_bytes() == before
    assert not [*sources.out.glob("*.warc.gz")]


def test_the_lock_of_a_folder_leaves_nothing(tmp_path: Path) -> None:
    with held_output(tmp_path / "out"):
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".dedupe"]
    assert not [*tmp_path.iterdir()]
    (tmp_path / "out").mkdir()
    with held_output(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]
