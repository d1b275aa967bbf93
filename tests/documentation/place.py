"""A world that is there: its folder, what stands in it, and programs that run in it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from programs import Server
from servers import free_port

from documentation import site
from documentation.programs import stand_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from documentation.worlds import World

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"

SPIDER = '''\
import scrapy


class SiteSpider(scrapy.Spider):
    """Follows every link of a site; one item a page."""

    name = "site"
    start_urls = ["https://example.com/"]

    def parse(self, response):
        yield {"url": response.url}
        if isinstance(response, scrapy.http.HtmlResponse):
            yield from response.follow_all(css="a")
'''
SETTINGS = """\
BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
NEWSPIDER_MODULE = "shop.spiders"
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
ADDONS = {"scrapy_dedupe.Addon": 500}
"""


@dataclass(frozen=True)
class Ran:
    """How a program ended, and what it printed: stdout and stderr, in their order."""

    code: int
    output: str


class Programs:
    """A folder with a file for each name of a program, and the process that forks for each program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in stand_in.PROGRAMS:
            program = self.bin / name
            program.write_text(
                f'#!/bin/sh\nexec "{sys.executable}" -I -S "{PROGRAMS / "call.py"}" "$0" "$@"\n'
            )
            program.chmod(0o755)
        self._server = Server({**self._environment(), "DOCUMENTED": "{}"})

    def environment(self) -> dict[str, str]:
        return {**self._environment(), "DOCUMENTED_SOCKET": str(self._server.socket)}

    def close(self) -> None:
        self._server.close()

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PATH": f"{self.bin}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{PROGRAMS}:{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUTF8": "1",
            "COLUMNS": "200",
            "SSL_CERT_FILE": str(site.certificate(self.folder)[0]),
            "DOCUMENTED_PROGRAMS": str(self.bin),
        }


@contextlib.contextmanager
def port_of_our_own() -> Iterator[int]:
    """A free port that no other process takes meanwhile, which may be before a program of the page listens there."""
    with socket.socket() as holder:
        # Linux lets a server listen where another socket is bound and does not listen, if both say this.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            port = free_port()
            if sys.platform != "linux":
                break
            with contextlib.suppress(OSError):
                holder.bind(("127.0.0.1", port))
                break
        yield port


@dataclass
class Place:
    """The folder of a page. It is entered: the site is served meanwhile."""

    world: World
    folder: Path
    programs: Programs
    redis_port: int
    variables: dict[str, str] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._groups: list[int] = []
        self.home = self.folder / "home"
        self.home.mkdir(parents=True)
        self._state = self.folder / "state"
        _, context = site.certificate(self.programs.folder)
        known = site.pages()
        plain = self._stack.enter_context(site.server_of(self.home, known))
        secure = site.TlsServer(context)
        secure.pages = plain.pages
        self._stack.enter_context(secure)
        hosts = dict.fromkeys(site.HOSTS, "127.77.0.1")
        places = {"127.77.0.1:80": site.port_of(plain), "127.77.0.1:443": site.port_of(secure)}
        for number, host in enumerate(self.world.machines, 1):
            (self.home / host).mkdir()
            served = self._stack.enter_context(site.server_of(self.home / host))
            hosts[host] = f"127.77.1.{number}"
            places[f"127.77.1.{number}:80"] = site.port_of(served)
        ports = {
            "6379": self.redis_port,
            **{str(port): self._stack.enter_context(port_of_our_own()) for port in self.world.ports},
        }
        network = {"hosts": hosts, "places": places, "ports": ports, "buckets": str(self.folder / "buckets")}
        self.variables = {**self.programs.environment(), "DOCUMENTED": json.dumps(network)}
        for name in self.world.stands:
            getattr(self, f"_{name}")()
        for crawl in self.world.archives:
            self._archive(crawl)
        for command in self.world.prepared:
            self.prepare(command)
        return self

    def __exit__(self, *exc: object) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        self._stack.close()

    # What may stand in a world.

    def _project(self) -> None:
        template = self.programs.folder / "project"
        if not template.exists():
            template.mkdir()
            self.prepare("scrapy startproject shop .", template)
            (template / "shop/spiders/site.py").write_text(SPIDER)
            (template / "shop/settings.py").write_text(SETTINGS)
        shutil.copytree(template, self.home, dirs_exist_ok=True)

    def _archive(self, crawl: str) -> None:
        """A folder of that name with the WARC file and the WACZ of a crawl that no store of the world knows of."""
        template = self.programs.folder / "archives" / crawl
        if not template.exists():
            self.prepare(
                f"scrapy crawl site -s DEDUPE_CRAWL_ID={crawl} -s DEDUPE_STORE_URL=sqlite:///{crawl}.sqlite"
                f" -s DEDUPE_WARC_DIR={crawl} -s DEDUPE_WACZ=True -s DEDUPE_WACZ_DIR={crawl}"
            )
            for file in self.home.glob(f"{crawl}.sqlite*"):
                file.unlink()
            shutil.copytree(self.home / crawl, template)
        shutil.copytree(template, self.home / crawl, dirs_exist_ok=True)

    def _checkout(self) -> None:
        """The files of the repository that pages go to."""
        for name in ("example_project", "pyproject.toml", "tox.ini", ".pre-commit-config.yaml"):
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".scrapy", "warcs", "jobs", "wacz")
                shutil.copytree(source, self.home / name, ignore=ignored)
            else:
                shutil.copy(source, self.home / name)

    @property
    def settings(self) -> Path:
        return self.home / "shop" / "settings.py"

    # Running.

    def run(self, command: str, folder: Path | None = None, wait_s: float = 600) -> Ran:
        """Run a line of bash where the last one has left off; in *folder* alone if one is given."""
        before = f". '{self._state}'\n" if folder is None and self._state.exists() else ""
        after = f"\ncode=$?; {{ export -p; echo cd \"'$PWD'\"; }} > '{self._state}'; exit $code"
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", before + command + ("" if folder else after)],
                cwd=folder or self.home,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self._groups.append(process.pid)
            try:
                code = process.wait(wait_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
                code = process.wait()
            if command.rstrip().endswith("&"):
                self._wait_for_ports(command)
            output.seek(0)
            return Ran(code, output.read())

    def _wait_for_ports(self, command: str, wait_s: float = 120) -> None:
        """A server in the background takes a moment: until its port answers."""
        ports = json.loads(self.variables["DOCUMENTED"])["ports"]
        deadline = time.monotonic() + wait_s
        for word in re.findall(r"\b\d{4,5}\b", command):
            while word in ports:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", ports[word])):
                    break
                assert time.monotonic() < deadline, f"{command}\ndoes not answer"
                time.sleep(0.02)

    def go_home(self) -> None:
        """Let the next line begin in the folder that the page began in."""
        self._state.unlink(missing_ok=True)

    def prepare(self, command: str, folder: Path | None = None) -> None:
        """Run what is to be before, from the home of the world or another *folder*; it has to work."""
        ran = self.run(command, folder or self.home)
        assert ran.code == 0, f"{command}\n{ran.output}"

    def interpreter(self) -> Interpreter:
        """A new interpreter in the home of the world; to be closed."""
        return Interpreter(self)


_LOOP = """
import contextlib, io, json, linecache, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    asked = json.loads(line)
    linecache.cache[asked["file"]] = (len(asked["code"]), None, asked["code"].splitlines(True), asked["file"])
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile("\\n" * asked["above"] + asked["code"], asked["file"], "exec"), names)
        except BaseException:
            error = traceback.format_exc()
    sys.__stdout__.write(json.dumps({"printed": printed.getvalue(), "error": error}) + "\\n")
    sys.__stdout__.flush()
"""


class Interpreter:
    """Executes the scripts of a page, one after another, with the names of those before."""

    def __init__(self, place: Place) -> None:
        self._process = subprocess.Popen(
            [place.programs.bin / "python", "-c", _LOOP],
            cwd=place.home,
            env=place.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def run(self, code: str, file: str = "<script>", above: int = 0) -> tuple[str, str | None]:
        """Execute; gives what was printed, and the traceback of an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"code": code, "file": file, "above": above}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            return "", "the interpreter has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer["printed"], answer["error"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(600)
        self._process.stdout.close()
