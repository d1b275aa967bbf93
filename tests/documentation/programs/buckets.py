"""What stands for S3 in a world: a driver of fsspec whose buckets are folders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem


class Buckets(LocalFileSystem):
    """``s3://bucket/key`` is the file bucket/key below the folder ``buckets`` of the world."""

    protocol = "s3"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(auto_mkdir=True, **kwargs)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        name = os.fspath(path)
        if not name.startswith("s3://"):
            return super()._strip_protocol(path)
        folder = json.loads(os.environ["DOCUMENTED"])["buckets"]
        return str(Path(folder) / name.removeprefix("s3://")).rstrip("/")
