"""Install each distribution in a folder into a new environment, and run the example project with it.

    python run_example.py FOLDER

FOLDER/dist holds the wheel and the sdist.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main(folder: Path) -> None:
    distributions = sorted((folder / "dist").iterdir())
    assert {path.suffix for path in distributions} == {".whl", ".gz"}, distributions
    for path in distributions:
        place = folder / path.name.replace(".", "-")
        venv.create(place / "venv", with_pip=True, clear=True)
        programs = place / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
        subprocess.run([programs / "python", "-m", "pip", "install", "-q", path], check=True)
        project = shutil.copytree(ROOT / "example_project", place / "project", dirs_exist_ok=True)
        done = subprocess.run(
            [programs / "scrapy", "crawl", "site"], cwd=project, stderr=subprocess.PIPE, text=True, check=True
        )
        assert "'finish_reason': 'finished'" in done.stderr, done.stderr
        assert list((project / "warcs").glob("*.warc.gz")), done.stderr
        print(f"{path.name}: the example crawl finished")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
