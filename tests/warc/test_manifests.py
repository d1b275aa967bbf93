from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_dedupe.errors import ArchiveError, DamagedInput, SettingError
from scrapy_dedupe.warc import manifests
from scrapy_dedupe.warc.manifests import ListedFile, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEX = "0123456789abcdef" * 4


def manifest(path: Path, *resources: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"profile": "multi-wacz-package", "resources": list(resources)}))
    return path


def read(place: object, **options: Any) -> tuple[list[ListedFile], list[str]]:
    faults: list[str] = []
    return list(read_manifest(str(place), on_fault=faults.append, **options)), faults


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def test_each_resource_is_told_with_what_the_manifest_says_of_it(tmp_path):
    path = manifest(
        tmp_path / "all.json",
        {"name": "a.wacz", "path": "sub/a.wacz", "hash": f"sha256:{HEX}", "size": 5, "crawlId": "one"},
        {"path": "./b.wacz", "hash": HEX.upper(), "bytes": 6},
        {"name": "c.wacz", "hash": f"SHA-256:{HEX}"},
        {"name": "d.wacz", "path": "https://example.org/x/y?sig=1", "hash": None, "size": None},
    )
    assert read(path) == (
        [
            ListedFile("a.wacz", str(tmp_path / "sub" / "a.wacz"), HEX, 5, "one"),
            ListedFile("b.wacz", str(tmp_path / "b.wacz"), HEX, 6),
            ListedFile("c.wacz", str(tmp_path / "c.wacz"), HEX),
            ListedFile("d.wacz", "https://example.org/x/y?sig=1"),
        ],
        [],
    )


def test_manifests_in_a_manifest_are_read_from_their_own_folders(tmp_path):
    manifest(tmp_path / "sub" / "inner.JSON", {"path": "a.wacz"}, {"path": "more/inner.json"})
    manifest(tmp_path / "sub" / "more" / "inner.json", {"path": "b.wacz"})
    path = manifest(
        tmp_path / "outer.json", {"path": "c.wacz"}, {"path": "sub/inner.JSON"}, {"path": "d.wacz"}
    )
    listed, faults = read(path)
    assert [one.place.removeprefix(f"{tmp_path}/") for one in listed] == [
        "c.wacz",
        "sub/a.wacz",
        "sub/more/b.wacz",
        "d.wacz",
    ]
    assert not faults


@pytest.mark.parametrize(
    ("resource", "wrong"),
    [
        ("a.wacz", "'a.wacz' as its resource 2, which is not an object"),
        (None, "None as its resource 2"),
        ([["a"]], "as its resource 2"),
        ({}, "no path in its resource 2. Add it."),
        ({"path": ""}, "no path in its resource 2"),
        ({"path": 7}, "names 7 as a path, which is not a valid path"),
        ({"path": "a\0.wacz"}, "as a path, which is not a valid path"),
        ({"path": "\ud800.wacz"}, "as a path, which is not a valid path"),
        ({"path": "../a.wacz"}, "pass it by name; import accepts it with --allow-outside."),
        ({"path": "x/../../a.wacz"}, "not below its own folder"),
        ({"path": "/etc/passwd"}, "'/etc/passwd', which is not below its own folder"),
        ({"path": "file:///etc/passwd"}, "'file:///etc/passwd', which is not below its own folder"),
        ({"path": "FILE:///etc/passwd"}, "not below its own folder"),
        ({"path": "file://elsewhere/a.wacz"}, "names a file of the machine elsewhere"),
        ({"path": "file:/etc/passwd"}, "not below its own folder"),
        ({"path": "local:///etc/passwd"}, "not below its own folder"),
        ({"path": "simplecache::file:///etc/passwd"}, "not below its own folder"),
        ({"path": "zip://a::file:///etc/x.zip"}, "not below its own folder"),
        ({"path": "https://a/x::file:///etc/passwd"}, "not below its own folder"),
        ({"path": "reference://x"}, "not below its own folder"),
        ({"path": "mailto:a.wacz"}, "not below its own folder"),
        ({"path": "out/a.wacz"}, "not below its own folder"),
        ({"path": "a.wacz", "name": "x/a.wacz"}, "with the name 'x/a.wacz', which is not a file name"),
        ({"path": "a.wacz", "name": "..\\a.wacz"}, "which is not a file name"),
        ({"path": "a.wacz", "name": ".."}, "which is not a file name"),
        ({"path": "a.wacz", "name": "a\nb"}, "which is not a file name"),
        ({"path": "a.wacz", "name": "a\udfff"}, "which is not a file name"),
        ({"path": "a.wacz", "name": 5}, "with the name 5, which is not a file name"),
        ({"path": "."}, "not below its own folder"),
        ({"path": "http://["}, "with the name '', which is not a file name"),
        ({"path": "a.wacz", "hash": "sha256:00"}, "with the hash 'sha256:00', which is not a SHA-256 in hex"),
        ({"path": "a.wacz", "hash": f"md5:{HEX}"}, "which is not a SHA-256"),
        ({"path": "a.wacz", "hash": HEX + "0"}, "which is not a SHA-256"),
        ({"path": "a.wacz", "hash": 5}, "with the hash 5"),
        ({"path": "a.wacz", "size": "5"}, "with the size '5', which is not a number of bytes"),
        ({"path": "a.wacz", "size": -1}, "not a number of bytes"),
        ({"path": "a.wacz", "size": True}, "not a number of bytes"),
        ({"path": "a.wacz", "size": 1.5}, "not a number of bytes"),
        ({"path": "a.wacz", "bytes": 2**63}, "not a number of bytes"),
        ({"path": "a.wacz", "crawlId": 7}, "with the crawlId 7, which is not a valid string"),
        ({"path": "a.wacz", "crawlId": "\ud800"}, "which is not a valid string"),
        ({"path": "missing.json"}, "which is skipped: "),
        ({"path": "first.wacz", "name": "second.wacz", "hash": "0"}, "not a SHA-256"),
    ],
)
def test_an_entry_that_is_refused_takes_no_other_with_it(tmp_path, resource, wrong):
    folder = tmp_path / "folder"
    path = manifest(folder / "m.json", {"path": "first.wacz"}, resource, {"path": "last.wacz"})
    (folder / "out").symlink_to(tmp_path)
    listed, faults = read(path)
    assert [one.name for one in listed] == ["first.wacz", "last.wacz"]
    (fault,) = faults
    assert fault.startswith(f"{path} names ")
    assert wrong in fault
    assert len(fault) < 1000


def test_files_outside_can_be_allowed(tmp_path):
    inside = manifest(
        tmp_path / "folder" / "m.json",
        {"path": "../a.wacz"},
        {"path": "/somewhere/b.wacz"},
        {"path": "file:///somewhere/c%20d.wacz"},
        {"path": "local:///e.wacz"},
    )
    listed, faults = read(inside, allow_outside=True)
    assert [one.place for one in listed] == [
        str(tmp_path / "a.wacz"),
        "/somewhere/b.wacz",
        "/somewhere/c d.wacz",
        "local:///e.wacz",
    ]
    assert not faults


def test_a_file_url_below_the_folder_is_a_path(tmp_path):
    listed, faults = read(manifest(tmp_path / "m.json", {"path": (tmp_path / "a.wacz").as_uri()}))
    assert ([one.place for one in listed], faults) == ([str(tmp_path / "a.wacz")], [])


# Cycles and depth


def test_a_manifest_that_names_itself_is_told_once(tmp_path):
    path = manifest(tmp_path / "m.json", {"path": "m.json"}, {"path": "./x/../m.json"}, {"path": "a.wacz"})
    listed, faults = read(path)
    assert [one.name for one in listed] == ["a.wacz"]
    assert ["names itself" in fault for fault in faults] == [True, True]


def test_a_cycle_of_two_ends(tmp_path):
    one = manifest(tmp_path / "1.json", {"path": "a.wacz"}, {"path": "2.json"}, {"path": "b.wacz"})
    manifest(tmp_path / "2.json", {"path": "c.wacz"}, {"path": "1.json"}, {"path": "d.wacz"})
    listed, faults = read(one)
    assert [one.name for one in listed] == ["a.wacz", "c.wacz", "d.wacz", "b.wacz"]
    (fault,) = faults
    assert fault.startswith(f"{tmp_path / '2.json'} names ")
    assert "names itself" in fault


def test_a_manifest_that_two_others_name_is_read_once(tmp_path):
    manifest(tmp_path / "shared.json", {"path": "a.wacz"})
    for name in ("1.json", "2.json"):
        manifest(tmp_path / name, {"path": "shared.json"}, {"path": "a.wacz", "hash": HEX})
    listed, faults = read(manifest(tmp_path / "all.json", {"path": "1.json"}, {"path": "2.json"}))
    assert ([one.name for one in listed], faults) == (["a.wacz"], [])


def test_a_hundred_levels_are_too_many(tmp_path):
    for number in range(100):
        manifest(tmp_path / f"{number}.json", {"path": f"{number + 1}.json"}, {"path": f"{number}.wacz"})
    listed, faults = read(tmp_path / "0.json")
    assert [one.name for one in listed] == [f"{number}.wacz" for number in reversed(range(9))]
    (fault,) = faults
    assert "nested in 9 other manifests" in fault


def test_too_many_manifests_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "_MAX_MANIFESTS", 3)
    for number in range(5):
        manifest(tmp_path / f"{number}.json", {"path": f"{number}.wacz"})
    listed, faults = read(manifest(tmp_path / "m.json", *({"path": f"{number}.json"} for number in range(5))))
    assert [one.name for one in listed] == ["0.wacz", "1.wacz"]
    assert all("3 manifests were read before it" in fault for fault in faults)
    assert len(faults) == 3


# Names


def test_one_name_is_one_file(tmp_path):
    path = manifest(
        tmp_path / "m.json",
        {"path": "1/a.wacz", "hash": HEX},
        {"path": "1/a.wacz"},
        {"path": "2/a.wacz"},
        {"path": "1/a.wacz", "hash": "f" * 64},
        {"path": "3/b.wacz", "name": "a.wacz"},
    )
    listed, faults = read(path)
    assert listed == [ListedFile("a.wacz", str(tmp_path / "1" / "a.wacz"), HEX)]
    assert [("with another hash" in fault, "its own name" in fault) for fault in faults] == [
        (False, True),
        (True, True),
        (False, True),
    ]


# Elsewhere


def test_a_manifest_elsewhere_is_read_with_what_lies_beside_it(memory):
    memory.pipe(
        "/top/sub/m.json", json.dumps({"resources": [{"path": "a b.wacz"}, {"path": "x/n.json"}]}).encode()
    )
    memory.pipe(
        "/top/sub/x/n.json", json.dumps({"resources": [{"path": "../c.wacz"}, {"path": "c.wacz"}]}).encode()
    )
    listed, faults = read("memory://top/sub/m.json")
    assert [(one.name, one.place) for one in listed] == [
        ("a b.wacz", "memory://top/sub/a b.wacz"),
        ("c.wacz", "memory://top/sub/x/c.wacz"),
    ]
    (fault,) = faults
    assert fault.startswith("memory://top/sub/x/n.json names '../c.wacz', which is not below its own folder")


@pytest.mark.parametrize(
    ("path", "place", "outside"),
    [
        ("a.wacz", "memory://host/top/a.wacz", "memory://host/top/a.wacz"),
        ("a.wacz?sig=/../x", "memory://host/top/a.wacz?sig=/../x", "memory://host/top/a.wacz?sig=/../x"),
        ("/top/a.wacz", "memory://host/top/a.wacz", "memory://host/top/a.wacz"),
        ("../a.wacz", None, "memory://host/a.wacz"),
        ("x/../../a.wacz", None, "memory://host/a.wacz"),
        ("%2e%2e/a.wacz", None, "memory://host/top/%2e%2e/a.wacz"),
        ("..\\a.wacz", None, None),
        ("/other/a.wacz", None, "memory://host/other/a.wacz"),
        ("//evil/a.wacz", None, None),
        ("file:///etc/a.wacz", None, "/etc/a.wacz"),
        ("https://other/a.wacz", "https://other/a.wacz", "https://other/a.wacz"),
    ],
)
def test_a_manifest_elsewhere_names_no_file_of_this_machine_and_none_above_it(memory, path, place, outside):
    memory.pipe("/host/top/m.json", json.dumps({"resources": [{"path": path}]}).encode())
    listed, faults = read("memory://host/top/m.json")
    assert [one.place for one in listed] == ([place] if place else [])
    assert len(faults) == (place is None)
    listed, faults = read("memory://host/top/m.json", allow_outside=True)
    assert [one.place for one in listed] == ([outside] if outside else [])
    assert len(faults) == (outside is None)


def test_the_query_of_a_manifest_is_no_part_of_its_folder(memory):
    memory.pipe("/host/m.json?sig=a/b", json.dumps({"resources": [{"path": "a.wacz"}]}).encode())
    listed, _ = read("memory://host/m.json?sig=a/b")
    assert [one.place for one in listed] == ["memory://host/a.wacz"]


# What is no manifest


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"resources": {"path": "a"}}',
        b"[" * 100_000,
        b"\xff\xfe\xfd",
        b'{"resources": 9' + b"9" * 5000,
    ],
)
def test_what_is_no_manifest_is_told(tmp_path, text):
    (tmp_path / "m.json").write_bytes(text)
    with pytest.raises(DamagedInput, match=r"m\.json is not a multi-WACZ JSON"):
        read(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"null", "it is not a JSON object"),
        (b"[]", "it is not a JSON object"),
        (b"1", "it is not a JSON object"),
        (b"{}", "it has none"),
        (
            b'{"resources": 9' + b"9" * 5000 + b"}",
            "it is JSON that is not supported (a number has too many digits)",
        ),
    ],
)
def test_why_something_is_no_manifest_is_said_in_words(tmp_path, text, why):
    (tmp_path / "m.json").write_bytes(text)
    with pytest.raises(DamagedInput) as caught:
        read(tmp_path / "m.json")
    assert str(caught.value).endswith(f'a list "resources" with a "path" each: {why}.')


def test_a_pipe_or_a_device_is_no_manifest(tmp_path):
    os.mkfifo(tmp_path / "m.json")
    (tmp_path / "z.json").symlink_to("/dev/zero")
    for name in "mz":
        with pytest.raises(ArchiveError, match="is a pipe or a device, not a regular file"):
            read(tmp_path / f"{name}.json")


def test_a_manifest_that_is_not_there_or_too_large_is_told(tmp_path, monkeypatch):
    with pytest.raises(ArchiveError, match=r"m\.json cannot be read: No such file"):
        read(tmp_path / "m.json")
    with pytest.raises(ArchiveError, match="it does not exist"):
        read("memory://no/such/m.json")
    with pytest.raises(SettingError, match="no protocol nonsense"):
        read("nonsense://host/m.json")
    monkeypatch.setattr(manifests, "MAX_JSON_BYTES", 20)
    with pytest.raises(DamagedInput, match="longer than 20 bytes"):
        read(manifest(tmp_path / "m.json", {"path": "a.wacz"}))


words = st.sampled_from(["path", "name", "hash", "size", "bytes", "crawlId"])
values = (
    st.none()
    | st.integers()
    | st.text(st.characters(exclude_categories=()), max_size=6)
    | st.sampled_from(
        [
            "a.wacz",
            "../a.wacz",
            "/a",
            "x/y",
            "a.json",
            "file:///x",
            "http://a/b",
            "http://[",
            "file://[x",
            "::",
            HEX,
        ]
    )
)
anything = st.recursive(values, lambda inner: st.lists(inner) | st.dictionaries(words, inner), max_leaves=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(words, values) | anything), st.booleans())
def test_no_manifest_breaks_the_reader(tmp_path, resources, allow_outside):
    path = manifest(tmp_path / "m.json", *resources, {"path": "last-of-all.wacz"})
    listed, _ = read(path, allow_outside=allow_outside)
    assert listed[-1].name == "last-of-all.wacz"
    for one in listed:
        assert one.name.encode()
        assert one.place.encode()
        assert allow_outside or "://" in one.place or one.place.startswith(str(tmp_path))
