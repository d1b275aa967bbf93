from __future__ import annotations

import gzip
import logging
import zipfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.warc import records
from scrapy_dedupe.warc.capture import Capture, digest_text
from scrapy_dedupe.warc.containers import find_files
from scrapy_dedupe.warc.playback import Playback, PlayedOriginal
from scrapy_dedupe.warc.records import Record, new_record_id
from scrapy_dedupe.warc.wacz import WaczResource, pack, write_multi_wacz

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

URL = "http://example.org/page?a=1&b=2"
START = datetime(2026, 11, 28, tzinfo=UTC)


def captured(body: bytes = b"hello", **values: Any) -> Capture:
    seconds = values.pop("seconds", 0)
    known: dict[str, Any] = {
        "url": URL,
        "method": "GET",
        "status": 200,
        "date": START + timedelta(seconds=seconds),
        "request_headers": (),
        "request_body": b"",
        "response_headers": ((b"Content-Type", b"text/html"),),
        "body": body,
        "ip_address": "192.0.2.1",
        "protocol": "HTTP/1.1",
    }
    return Capture(**{**known, **values})


def exchange(capture: Capture, principal: Record | None = None) -> list[Record]:
    if principal is None:
        principal = records.response(capture, digest=capture.payload_digest())
    return [principal, records.request(capture, concurrent_to=principal.id)]


def revisit_of(original: Record, capture: Capture, **values: Any) -> Record:
    known: dict[str, Any] = {
        "digest": capture.payload_digest(),
        "refers_to": original.id,
        "refers_to_uri": original.target_uri,
        "refers_to_date": original.date,
    }
    return records.revisit(capture, **{**known, **values})


def unmodified(*fields: tuple[str, str], seconds: int = 60, block: bytes = b"") -> Record:
    return Record(
        (
            ("WARC-Type", "revisit"),
            ("WARC-Record-ID", new_record_id()),
            ("WARC-Date", f"2026-11-28T00:{seconds // 60:02}:{seconds % 60:02}Z"),
            ("WARC-Target-URI", URL),
            ("WARC-Profile", records.SERVER_NOT_MODIFIED),
            ("Content-Type", "application/http; msgtype=response"),
            *fields,
        ),
        block,
    )


def info(crawl: str) -> Record:
    return records.warcinfo("x", {"isPartOf": crawl}, START)


def without(record: Record, *names: str) -> Record:
    return Record(tuple(field for field in record.headers if field[0] not in names), record.block)


def changed(record: Record, **fields: str) -> Record:
    values = {name.replace("_", "-"): value for name, value in fields.items()}
    return Record(tuple((name, values.get(name, value)) for name, value in record.headers), record.block)


def joined(stored: list[Record]) -> bytes:
    return b"".join(gzip.compress(record.to_bytes()) for record in stored)


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., Playback]]:
    """Gives the playback of files with these records; bytes are a file as it is."""
    made: list[Playback] = []

    def make(*files: list[Record] | bytes) -> Playback:
        paths = []
        for number, stored in enumerate(files):
            paths.append(tmp_path / f"{len(made)}-{number}.warc.gz")
            paths[-1].write_bytes(stored if isinstance(stored, bytes) else joined(stored))
        playback = Playback(find_files(paths))
        made.append(playback)
        damages: list[object] = []
        playback.read(on_damage=damages.append)
        assert not damages
        return playback

    yield make
    for playback in made:
        playback.close()


def body(playback: Playback, *args: Any, **kwargs: Any) -> bytes | None:
    found = playback.find(*(args or ("GET", URL)), **kwargs)
    return found.payload if found is not None else None


# What is found


def test_an_answer_tells_all_that_is_known_of_it(play, tmp_path):
    capture = captured(response_headers=((b"X-N\xe9", b"\xff"), (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")))
    stored = exchange(capture)
    first = info("x")
    found = play([first, *stored]).find("GET", URL)
    assert (found.url, found.status, found.payload) == (URL, 200, b"hello")
    assert found.headers == (*capture.response_headers, (b"Content-Length", b"5"))
    assert (found.ip_address, found.protocol, found.truncated) == ("192.0.2.1", "HTTP/1.1", None)
    assert (found.record_id, found.type, found.date) == (stored[0].id, "response", "2026-11-28T00:00:00.000Z")
    assert found.file == str(tmp_path / "0-0.warc.gz")
    assert found.offset == len(joined([first]))
    assert found.digest == f"sha256:{digest_text(b'hello', 'sha256')}"
    assert found.refers_to is None


def test_method_url_and_body_all_count(play):
    playback = play(
        exchange(captured(b"get"))
        + exchange(captured(b"q1", method="POST", request_body=b"q=1"))
        + exchange(captured(b"q2", method="POST", request_body=b"q=2"))
        + exchange(captured(b"other", url="http://example.org/other"))
    )
    assert body(playback) == b"get"
    assert body(playback, "POST", URL, b"q=1") == b"q1"
    assert body(playback, "post", URL, b"q=2") == b"q2"
    assert body(playback, "POST", URL, b"q=3") is None
    assert body(playback, "PUT", URL) is None
    assert body(playback, "GET", "http://example.org/") is None
    assert body(playback, "GET", "https://example.org/other") is None


def test_the_newest_whole_capture_is_the_answer(play):
    newest_first = play(exchange(captured(b"new", seconds=9)), exchange(captured(b"old")))
    assert body(newest_first) == b"new"
    cut = exchange(captured(b"cut", seconds=99, truncated="length"))
    part = exchange(captured(b"part", seconds=99, status=206))
    playback = play(cut + part + exchange(captured(b"whole")))
    assert body(playback) == b"whole"
    found = play(cut).find("GET", URL)
    assert (found.payload, found.truncated) == (b"cut", "length")


def test_the_order_of_the_query_and_the_fragment_do_not_matter(play):
    playback = play(exchange(captured()))
    assert body(playback, "GET", "http://example.org/page?b=2&a=1#top") == b"hello"
    assert body(playback, "GET", "http://EXAMPLE.org/p%61ge?a=1&b=2") == b"hello"
    assert body(playback, "GET", "http://example.org/page?a=1&b=3") is None


def test_the_url_itself_comes_before_its_canonical_form(play):
    other = "http://example.org/page?b=2&a=1"
    playback = play(exchange(captured(b"own")) + exchange(captured(b"other", url=other, seconds=9)))
    assert body(playback) == b"own"
    assert body(playback, "GET", other) == b"other"


def test_the_same_cookies_are_preferred_in_the_newest_crawl_alone(play):
    def visit(crawl_body: bytes, cookies: bytes, seconds: int) -> list[Record]:
        headers = ((b"Cookie", cookies),) if cookies else ()
        return exchange(captured(crawl_body, request_headers=headers, seconds=seconds))

    old = [info("old"), *visit(b"old, out", b"", 0), *visit(b"old, in", b"id=1; lang=de", 1)]
    new = [info("new"), *visit(b"new, out", b"", 100), *visit(b"new, in", b"id=1; lang=de", 101)]
    playback = play(old, new)
    assert body(playback) == b"new, out"
    assert body(playback, cookies=b"lang=de; id=1") == b"new, in"
    assert body(playback, cookies=b"id=7") == b"new, in", "the newest"

    # The newest crawl asked with cookies only; an older one must not answer instead.
    playback = play(old, [info("new"), *visit(b"new, in", b"id=1", 101)])
    assert body(playback) == b"new, in"


@pytest.mark.parametrize("is_one_file", [True, False])
@pytest.mark.parametrize("is_named_by_the_response", [True, False])
def test_a_request_far_from_its_response_is_found_by_their_ids(play, is_one_file, is_named_by_the_response):
    words = [b"%d" % number for number in range(20)]
    responses, requests = [], []
    for word in words:
        response, request = exchange(captured(word, method="POST", request_body=b"q=" + word))
        if is_named_by_the_response:
            request = without(request, "WARC-Concurrent-To")
            response = Record((*response.headers, ("WARC-Concurrent-To", request.id)), response.block)
        responses.append(response)
        requests.append(request)
    # The date of a request tells nothing here.
    requests = [changed(request, WARC_Date="2025-01-01T00:00:00Z") for request in requests]
    playback = play([*responses, *requests]) if is_one_file else play(responses, requests)
    assert [body(playback, "POST", URL, b"q=" + word) for word in words] == words
    assert body(playback) is None


def test_a_response_without_a_request_answers_get(play):
    playback = play([records.response(captured(), digest=captured().payload_digest())])
    assert body(playback) == b"hello"
    assert body(playback, "HEAD", URL) is None


def test_an_interim_response_and_other_records_are_no_answer(play):
    stored = [
        *exchange(captured(b"", status=103)),
        changed(exchange(captured(b"meta"))[0], WARC_Type="metadata"),
        changed(exchange(captured(b"mail"))[0], WARC_Target_URI="mailto:a@example.org"),
    ]
    playback = play(stored)
    assert body(playback) is None
    assert body(playback, "GET", "mailto:a@example.org") is None


def test_the_length_is_made_true_and_the_transfer_coding_goes(play):
    packed = gzip.compress(b"hello", mtime=0)
    block = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\nContent-Length: 7\r\n"
        b"X-A: 1\r\ncontent-length: 8\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed)
    )
    found = play([Record(exchange(captured())[0].headers, block)]).find("GET", URL)
    assert found.payload == packed
    length = str(len(packed)).encode()
    assert found.headers == ((b"Content-Encoding", b"gzip"), (b"Content-Length", length), (b"X-A", b"1"))


def test_the_length_of_what_has_no_body_is_kept(play):
    capture = captured(b"", method="HEAD", response_headers=((b"Content-Length", b"123"),))
    found = play(exchange(capture)).find("HEAD", URL)
    assert (found.payload, found.headers) == (b"", ((b"Content-Length", b"123"),))


def test_the_protocol_has_the_name_that_http_gives_it(play):
    def protocol(record: Record) -> str | None:
        return play([record]).find("GET", URL).protocol

    record = exchange(captured(protocol="h2"))[0]
    assert protocol(record) == "h2"
    assert protocol(without(record, "WARC-Protocol")) == "HTTP/1.1", "what the status line says"


def test_an_arc_file_answers_too(play):
    block = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\nhello"
    version = b"1 0 InternetArchive\nURL IP-address Archive-date Content-type Archive-length\n"
    data = b"filedesc://a.arc 0.0.0.0 20110301000000 text/plain %d\n%b\n" % (len(version), version)
    data += b"%b 192.0.2.7 20110302030405 text/html %d\n%b\n" % (URL.encode(), len(block), block)
    found = play(data).find("GET", URL)
    assert (found.payload, found.ip_address, found.protocol) == (b"hello", "192.0.2.7", "HTTP/1.0")
    assert (found.record_id, found.digest, found.date) == (None, None, "2011-03-02T03:04:05Z")


# Revisits


def test_a_revisit_has_its_own_head_and_the_payload_of_its_original(play):
    (original, request) = exchange(captured(url="http://example.org/other"))
    later = captured(response_headers=((b"X-Own", b"1"),), seconds=60)
    revisit = revisit_of(original, later)
    found = play([info("first"), original, request], exchange(later, revisit)).find("GET", URL)
    assert (found.payload, found.type, found.record_id) == (b"hello", "revisit", revisit.id)
    assert found.headers == ((b"X-Own", b"1"), (b"Content-Length", b"5"))
    assert found.refers_to == PlayedOriginal(original.id, "http://example.org/other", original.date, "first")
    assert found.url == URL


def test_a_revisit_without_a_head_has_that_of_its_original(play):
    original = exchange(captured(status=203))[0]
    revisit = revisit_of(original, captured(seconds=60))
    found = play([original, Record(revisit.headers, b"")]).find("GET", URL)
    assert (found.status, found.payload, found.type) == (203, b"hello", "revisit")
    assert found.headers == ((b"Content-Type", b"text/html"), (b"Content-Length", b"5"))


@pytest.mark.parametrize(
    "gone", [(), ("WARC-Refers-To",), ("WARC-Refers-To-Target-URI", "WARC-Refers-To-Date")]
)
def test_an_original_is_found_by_id_by_url_or_by_its_digest(play, gone):
    original = exchange(captured(url="http://example.org/other"))[0]
    revisit = without(revisit_of(original, captured(seconds=60)), *gone)
    assert body(play([revisit], [original])) == b"hello"
    by_digest = without(revisit, "WARC-Refers-To", "WARC-Refers-To-Target-URI")
    assert body(play([by_digest], [original])) == b"hello"


def test_among_captures_of_the_url_the_nearest_in_time_is_the_original(play):
    other = "http://example.org/other"
    stored = [exchange(captured(url=other, seconds=seconds))[0] for seconds in (0, 100, 200)]
    revisit = without(revisit_of(stored[0], captured(seconds=300)), "WARC-Refers-To", "WARC-Payload-Digest")
    digest = ("WARC-Payload-Digest", f"SHA-256:{digest_text(b'hello', 'sha256').upper()}")
    revisit = changed(
        Record((*revisit.headers, digest), revisit.block), WARC_Refers_To_Date="2026-11-28T00:01:50Z"
    )
    found = play(stored, [revisit]).find("GET", URL)
    assert found.refers_to == PlayedOriginal(stored[1].id, other, stored[1].date, None)


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
@pytest.mark.parametrize("has_digest", [True, False])
def test_an_original_with_another_kind_of_digest_is_counted_out(play, algorithm, has_digest):
    capture = captured()
    original = records.response(capture, digest=f"sha1:{capture.payload_digest('sha1')}")
    if not has_digest:
        original = without(original, "WARC-Payload-Digest")
    digest = f"{algorithm}:{capture.payload_digest(algorithm)}"
    revisit = revisit_of(original, captured(seconds=60), digest=digest)
    assert body(play([original, revisit])) == b"hello"


def test_an_original_with_another_payload_is_none(play, caplog):
    original = exchange(captured(b"changed"))[0]
    wrong = revisit_of(original, captured(b"hello", url="http://example.org/x", seconds=60))
    playback = play([original, wrong])
    assert body(playback, "GET", "http://example.org/x") is None
    assert playback.unresolved == 1
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "http://example.org/x" in told
    assert f"refers to {URL}" in told


def test_behind_a_revisit_without_original_the_next_older_capture_answers(play):
    old = exchange(captured(b"old"))
    lost = exchange(captured(b"lost", url="http://example.org/lost"))[0]
    playback = play(
        old, exchange(captured(b"lost", seconds=60), revisit_of(lost, captured(b"lost", seconds=60)))
    )
    found = playback.find("GET", URL)
    assert (found.payload, found.type) == (b"old", "response")
    assert playback.unresolved == 1


def test_the_content_coding_is_that_of_the_payload(play):
    zipped = gzip.compress(b"hello", mtime=0)
    original = exchange(captured(zipped, response_headers=((b"Content-Encoding", b"gzip"),)))[0]
    plain = captured(zipped, response_headers=((b"Content-Encoding", b"br"), (b"X-A", b"1")), seconds=60)
    found = play([original, revisit_of(original, plain)]).find("GET", URL)
    assert found.payload == zipped
    length = str(len(zipped)).encode()
    assert found.headers == ((b"X-A", b"1"), (b"Content-Length", length), (b"Content-Encoding", b"gzip"))


# Not modified


def test_not_modified_answers_a_conditional_request_alone(play):
    whole = exchange(captured())
    stored_304 = exchange(captured(b"", status=304, seconds=60, response_headers=((b"ETag", b"1"),)))
    playback = play(whole + stored_304)
    assert body(playback) == b"hello"
    found = playback.find("GET", URL, is_conditional=True)
    assert (found.status, found.payload, found.headers) == (304, b"", ((b"ETag", b"1"),))
    assert body(play(stored_304)) is None


@pytest.mark.parametrize("block", [b"", b"HTTP/1.1 304 Not Modified\r\nETag: 1\r\n\r\n"])
@pytest.mark.parametrize("by", ["id", "url", "nothing"])
def test_a_revisit_that_was_not_modified_stands_for_its_original(play, block, by):
    original, request = exchange(captured())
    fields = {
        "id": (("WARC-Refers-To", original.id),),
        "url": (("WARC-Refers-To-Target-URI", URL), ("WARC-Refers-To-Date", original.date)),
        "nothing": (),
    }[by]
    revisit = unmodified(*fields, block=block)
    playback = play([original, request, revisit])
    found = playback.find("GET", URL)
    assert (found.status, found.payload, playback.unresolved) == (200, b"hello", 0)
    assert found.headers[0] == (b"Content-Type", b"text/html")
    assert found.type == ("response" if by == "nothing" else "revisit")

    found = playback.find("GET", URL, is_conditional=True)
    assert (found.status, found.payload, found.record_id) == (304, b"", revisit.id)


def test_not_modified_without_anything_older_is_no_answer(play):
    playback = play([unmodified(("WARC-Refers-To-Target-URI", URL))])
    assert body(playback) is None
    assert playback.unresolved == 1
    assert playback.find("GET", URL, is_conditional=True).status == 304


# Files


def test_records_that_share_a_member_are_found_and_it_is_told(play, caplog):
    stored = [record for n in range(3) for record in exchange(captured(b"%d" % n, url=f"http://a/{n}"))]
    revisit = revisit_of(stored[0], captured(b"0", seconds=60))
    data = gzip.compress(b"".join(record.to_bytes() for record in [*stored, revisit]))
    playback = play(data)
    assert [body(playback, "GET", f"http://a/{n}") for n in range(3)] == [b"0", b"1", b"2"]
    assert body(playback) == b"0"
    assert sum("several records in one gzip member" in record.message for record in caplog.records) == 1


def test_damaged_places_are_told_and_the_rest_is_found(tmp_path):
    parts = [joined(exchange(captured(b"%d" % n, url=f"http://a/{n}"))[:1]) for n in range(3)]
    parts[1] = parts[1][:-8] + bytes(8)
    (tmp_path / "a.warc.gz").write_bytes(b"".join(parts))
    damages = []
    with Playback([tmp_path / "a.warc.gz"]) as playback:
        assert playback.read(on_damage=damages.append) == 2
        assert [body(playback, "GET", f"http://a/{n}") for n in range(3)] == [b"0", None, b"2"]
    assert [damage.offset for damage in damages] == [len(parts[0])]


def test_reading_ends_when_nobody_wants_it(tmp_path):
    (tmp_path / "a.warc.gz").write_bytes(joined(exchange(captured()) * 5))
    answers = iter([True, True, False])
    with Playback([tmp_path / "a.warc.gz"]) as playback:
        assert playback.read(on_damage=print, is_wanted=lambda: next(answers)) == 2
        assert not playback.is_complete


def test_a_file_that_goes_away_is_told(tmp_path):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(joined(exchange(captured())))
    with Playback([path]) as playback:
        playback.read(on_damage=print)
        path.write_bytes(b"")
        with pytest.raises(DamagedInput, match=r"a\.warc\.gz, offset 0"):
            playback.find("GET", URL)
        path.unlink()
        with pytest.raises(ArchiveError, match="can no longer be read"):
            playback.find("GET", URL)
    with Playback([path]) as playback, pytest.raises(ArchiveError, match="cannot be read"):
        playback.read(on_damage=print)


@pytest.mark.parametrize("url", ["http://[", "http://a:b:c/", "http://\udc80/", "http://a/%", "", "#", "x"])
def test_an_odd_url_is_only_missing(play, url):
    stored = changed(exchange(captured())[0], WARC_Target_URI="http://[::")
    playback = play([stored])
    assert body(playback, "GET", url) is None
    assert body(playback, "GET", "http://[::") == b"hello"


def test_packed_crawls_answer_for_each_other(tmp_path):
    original, request = exchange(captured(url="http://example.org/other"))
    later = captured(seconds=60)
    crawls = {"one": [original, request], "two": exchange(later, revisit_of(original, later))}
    resources = []
    for name, stored in crawls.items():
        file = tmp_path / f"{name}.warc.gz"
        file.write_bytes(joined([info(name), *stored]))
        target = tmp_path / f"{name}.wacz"
        packed = pack([file], target, page_of=lambda record: None, crawl=name, software="tests")
        resources.append(WaczResource(target.name, target.name, packed.sha256, packed.size_bytes, name))
    write_multi_wacz(tmp_path / "two.multi-wacz.json", resources)
    with Playback(find_files([tmp_path / "two.multi-wacz.json"])) as playback:
        playback.read(on_damage=pytest.fail)
        found = playback.find("GET", URL)
    assert (found.payload, found.type) == (b"hello", "revisit")
    assert found.file == str(tmp_path / "two.wacz" / "archive" / "two.warc.gz")
    assert (found.refers_to.record_id, found.refers_to.crawl) == (original.id, "one")


# Whatever was recorded

paths = st.text(st.characters(codec="utf-8", exclude_characters="#"), max_size=6)
exchanges = st.builds(
    captured,
    st.binary(max_size=60),
    url=paths.map(lambda path: f"http://example.org/{path}"),
    method=st.sampled_from(["GET", "POST", "PUT"]),
    request_body=st.sampled_from([b"", b"a", b"b"]),
    status=st.sampled_from([200, 201, 302, 404, 500]),
    response_headers=st.lists(
        st.tuples(
            st.from_regex(rb"X-[a-z]{1,5}", fullmatch=True), st.from_regex(rb"[!-~\xff]*", fullmatch=True)
        ),
        max_size=3,
    ).map(tuple),
    seconds=st.integers(0, 10**6),
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(exchanges, max_size=12), st.sampled_from(["members", "one member", "plain", "wacz"]), st.data()
)
def test_whatever_was_recorded_is_found_with_equal_bytes(tmp_path_factory, captures, form, data):
    stored: list[Record] = []
    responses: dict[bytes, Record] = {}
    expected: dict[tuple[str, str, bytes], Capture] = {}
    for capture in captures:
        original = responses.get(capture.body)
        if original is not None and capture.body and data.draw(st.booleans()):
            principal = revisit_of(original, capture)
        else:
            principal = records.response(capture, digest=capture.payload_digest())
            responses.setdefault(capture.body, principal)
        stored += exchange(capture, principal)
        key = (capture.method, capture.target_uri, capture.request_body)
        if key not in expected or expected[key].date <= capture.date:
            expected[key] = capture
    folder = tmp_path_factory.mktemp("all")
    plain = b"".join(record.to_bytes() for record in stored)
    name, content = {
        "members": ("a.warc.gz", joined(stored)),
        "one member": ("a.warc.gz", gzip.compress(plain)),
        "plain": ("a.warc", plain),
        "wacz": ("a.warc.gz", joined(stored)),
    }[form]
    path = folder / name
    path.write_bytes(content)
    if form == "wacz":
        path = folder / "a.wacz"
        with zipfile.ZipFile(path, "w") as packed:
            packed.write(folder / name, f"archive/{name}")
    with Playback(find_files([path])) as playback:
        assert playback.read(on_damage=pytest.fail) == len(captures)
        for capture in captures:
            wanted = expected[capture.method, capture.target_uri, capture.request_body]
            found = playback.find(capture.method, capture.url, capture.request_body)
            assert found is not None
            assert (found.status, found.payload, found.url) == (wanted.status, wanted.body, wanted.target_uri)
            assert found.headers[:-1] == wanted.response_headers
            assert found.headers[-1] == (b"Content-Length", b"%d" % len(wanted.body))
        assert playback.unresolved == 0
