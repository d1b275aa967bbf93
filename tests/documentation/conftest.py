"""The process that runs the programs of all pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from documentation.place import Programs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    started = Programs(tmp_path_factory.mktemp("programs"))
    yield started
    started.close()
