"""Archives in S3 are read by the executors, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from offline.calling import done
from offline.outputs import snapshot
from offline.planted import SITE, Copy, Planting, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENGINE = ("--engine", "spark")
BUCKET = "s3://archive/2019"


@pytest.fixture
def urls(session: Any, s3_address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two files in a bucket of a local server, with a page in common."""
    server_of = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    host, port = s3_address
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    server = server_of(ip_address=host, port=port, verbose=False)
    server.start()
    try:
        s3 = fsspec.filesystem("s3", skip_instance_cache=True)
        s3.mkdir("archive")
        p = Planting()
        for number, name in enumerate(("a.warc.gz", "b.warc.gz")):
            p.file(name)
            fate = Copy("same-0") if number else None
            p.exchange(name, f"same-{number}", f"{SITE}/same", text("same", 5_000), fate=fate)
            p.exchange(name, f"own-{number}", f"{SITE}/own/{number}", text(f"own-{number}", 5_000))
            s3.pipe(f"{BUCKET}/{name}", p.files[name].to_bytes())
        yield [f"{BUCKET}/{name}" for name in p.files]
    finally:
        server.stop()


def test_archives_in_s3_are_summed_compared_and_rewritten(urls: list[str], tmp_path: Path) -> None:
    made = {}
    for name, words in (("near", ()), ("far", ENGINE)):
        done(tmp_path, "warcsum", *urls, "-o", f"{name}.sums", *words)
        done(tmp_path, "warccollres", f"{name}.sums", "--proc", "-o", f"{name}.txt", *words)
        called = done(tmp_path, "warcrefs", f"{name}.txt", "-o", name, *words)
        assert "1 copy became a revisit" in called.out
        made[name] = (tmp_path / f"{name}.txt").read_bytes(), snapshot(tmp_path / name)
    assert sorted(made["near"][1]) == ["a.warc.gz", "b.warc.gz"]
    assert made["far"] == made["near"]
