"""The real sites of ``content_quality.py``: documentation packages of Debian, downloaded, extracted and read.

A site is one package, or two versions of one documentation. The versions are either two packages with different names,
or the oldest and the newest version of one package that the package lists of this machine know.

The pages of both versions are on one host, ``http://SITE.example/VERSION/PATH``. The *name* of a page is its path without
the version of its package; pages with the same name are versions of one page. All other digits are part of the name.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import subprocess
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from content_shared import stop
from content_truth import partners
from selectolax.lexbor import LexborHTMLParser

from scrapy_dedupe.content import HostileMarkup, canonical_text
from scrapy_dedupe.content.canonical import version as canonical_version

if TYPE_CHECKING:
    from pathlib import Path

# Pages per version: those with the smallest hashes of their names, the same names in both versions.
MAX_NAMES = {1: 600, 2: 400}
_MAX_BYTES = 400_000
MIN_CHARS = 200

# Also index.html.en
_PAGE = re.compile(r"\.x?html?(\.[a-z]{2}(-[a-z]+)?)?$")

# Part of the names of cached files: raise it if the pages that this module reads change.
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Package:
    """One site. ``new`` is the package of the newer version, if its name differs from ``old``.

    ``has_versions``: the oldest and the newest known version of ``old`` are compared. ``is_renumbered``: its paths have
    numbers that change between versions, so that pages are paired by their text.
    """

    site: str
    generator: str
    old: str
    new: str = ""
    has_versions: bool = False
    is_renumbered: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page with the canonical text *text*. Pages of a site with the same *name* are versions of one page."""

    site: str
    name: str
    version: int
    url: str
    html: str
    text: str


@dataclass(frozen=True, slots=True)
class Site:
    name: str
    generator: str
    pages: list[Page]
    is_renumbered: bool = False
    # Changes with the pages. It is part of the names of cached files.
    key: str = ""


PACKAGES = [
    Package("boost", "hand-written, QuickBook", "libboost1.74-doc", "libboost1.81-doc", is_renumbered=True),
    Package("clang", "Sphinx", "clang-14-doc", "clang-15-doc"),
    Package("llvm", "Sphinx", "llvm-15-doc", "llvm-16-doc"),
    Package("libstdcxx", "Doxygen", "libstdc++-11-doc", "libstdc++-12-doc", is_renumbered=True),
    Package("glibmm", "Doxygen", "libglibmm-2.4-doc", "libglibmm-2.68-doc"),
    Package("pangomm", "Doxygen", "libpangomm-1.4-doc", "libpangomm-2.48-doc"),
    Package("cairomm", "Doxygen", "libcairomm-1.0-doc", "libcairomm-1.16-doc"),
    Package("gtkmm", "Doxygen", "libgtkmm-3.0-doc", "libgtkmm-4.0-doc"),
    Package("sigcxx", "Doxygen", "libsigc++-2.0-doc", "libsigc++-3.0-doc"),
    Package("fltk", "Doxygen", "fltk1.1-doc", "fltk1.3-doc"),
    Package("gtksourceview", "GTK-Doc", "libgtksourceview-3.0-doc", "libgtksourceview-4-doc"),
    Package("collections", "javadoc", "libcommons-collections3-java-doc", "libcommons-collections4-java-doc"),
    Package("biojava", "javadoc", "libbiojava5-java-doc", "libbiojava6-java-doc"),
    Package("javacc", "hand-written", "javacc4-doc", "javacc5-doc"),
    Package("allegro", "texinfo-like", "allegro4-doc", "allegro5-doc"),
    Package("rt", "POD", "rt4-doc-html", "rt5-doc-html"),
    Package("openjdk", "javadoc", "openjdk-17-doc", has_versions=True),
    Package("zookeeper", "javadoc", "libzookeeper-java-doc", has_versions=True),
    Package("webkit2gtk", "gi-docgen", "libwebkit2gtk-4.0-doc", has_versions=True),
    Package("postgresql", "DocBook", "postgresql-doc-15", has_versions=True),
    Package("erlang", "erl_docgen", "erlang-doc", has_versions=True, is_renumbered=True),
    Package("imagemagick", "hand-written, Doxygen", "imagemagick-6-doc", has_versions=True),
    Package("apache2", "XSLT", "apache2-doc", has_versions=True),
    Package("django", "Sphinx", "python-django-doc", has_versions=True),
    Package("python", "Sphinx", "python3.11-doc", has_versions=True),
    Package("evolution", "GTK-Doc", "evolution-data-server-doc", has_versions=True),
    Package("glib", "GTK-Doc", "libglib2.0-doc", has_versions=True),
    Package("lemonldap", "DokuWiki", "lemonldap-ng-doc", has_versions=True),
    Package("libssh", "Doxygen", "libssh-doc", has_versions=True),
    Package("git", "AsciiDoc", "git-doc", has_versions=True),
    Package("libvips", "GTK-Doc", "libvips-doc", has_versions=True),
    Package("libxml2", "XSLT", "libxml2-doc", has_versions=True),
    Package("tomcat", "XSLT", "tomcat10-docs", has_versions=True),
    Package("nodejs", "own", "nodejs-doc", has_versions=True),
    Package("poppler", "GTK-Doc", "libpoppler-glib-doc", has_versions=True),
    Package("ghostscript", "hand-written", "ghostscript-doc", has_versions=True),
    Package("putty", "Halibut", "putty-doc", has_versions=True),
    Package("gtk3", "GTK-Doc", "libgtk-3-doc"),
    Package("gtk4", "gi-docgen", "libgtk-4-doc"),
    Package("gtksourceview5", "gi-docgen", "libgtksourceview-5-doc"),
    Package("cppreference", "MediaWiki", "cppreference-doc-en-html"),
    Package("debian-handbook", "DocBook", "debian-handbook"),
    Package("octave", "texinfo, Doxygen", "octave-doc"),
    Package("twisted", "Sphinx, pydoctor", "twisted-doc"),
    Package("qtbase", "QDoc", "qtbase5-doc-html"),
    Package("qtdeclarative", "QDoc", "qtdeclarative5-doc-html"),
    Package("lilypond", "texinfo", "lilypond-doc-html"),
    Package("installation-guide", "DocBook", "installation-guide-amd64"),
    Package("krb5", "Doxygen, Sphinx", "krb5-doc"),
    Package("ffmpeg", "Doxygen, texinfo", "ffmpeg-doc"),
    Package("icu", "Doxygen", "icu-doc"),
    Package("gegl", "own", "libgegl-doc"),
    Package("maxima", "texinfo", "maxima-doc"),
    Package("yard", "YARD", "yard-doc"),
    Package("gimp", "GTK-Doc", "libgimp2.0-doc"),
    Package("live-manual", "SiSU", "live-manual-html"),
    Package("lens", "Haddock", "libghc-lens-doc"),
    Package("varnish", "Sphinx", "varnish-doc"),
    Package("slurm", "hand-written", "slurm-wlm-doc"),
    Package("fftw", "texinfo", "libfftw3-doc"),
    Package("aptitude", "DocBook", "aptitude-doc-en"),
    Package("exim", "xfpt", "exim4-doc-html"),
]


def halves() -> dict[str, str]:
    """The half of each site: *choosing* a rule, or *reporting* how good the chosen rule is.

    Sites with two packages, sites with two versions of a package, and other sites are divided separately, in the order
    of the hashes of their names.
    """
    halves = {}
    for kind in ((True, False), (False, True), (False, False)):
        names = [it.site for it in PACKAGES if (bool(it.new), it.has_versions) == kind]
        names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
        halves.update({name: ("choosing", "reporting")[place % 2] for place, name in enumerate(names)})
    return halves


# Download and extract


def fetch(corpus: Path, packages: list[Package]) -> None:
    """Download and extract the packages that *corpus* does not contain. Packages that Debian no longer has are named."""
    corpus.mkdir(parents=True, exist_ok=True)
    missing = [package for package in packages if not (corpus / package.site / "done").exists()]
    if not missing:
        return
    known = _known_versions([name for package in missing for name in (package.old, package.new) if name])
    for package in missing:
        wanted = _wanted(package, known)
        if wanted is None:
            print(
                f"{package.site}: the package lists do not have {package.old} {package.new}. It is left out."
            )
            continue
        folder = corpus / package.site
        for number, name in enumerate(wanted):
            target = folder / str(number)
            target.mkdir(parents=True, exist_ok=True)
            _run(["apt-get", "-q", "download", name], target)
            (archive,) = target.glob("*.deb")
            _run(["dpkg-deb", "-x", archive.name, "."], target)
            for path in target.rglob("*"):
                if path.is_file() and not _PAGE.search(path.name):
                    path.unlink()
            (target / "version").write_text(archive.name)
        (folder / "done").touch()
        print(f"downloaded {' '.join(wanted)}", flush=True)


def _wanted(package: Package, known: dict[str, list[str]]) -> list[str] | None:
    """The packages to download, as ``NAME=VERSION``, oldest first."""
    names = [package.old, package.new] if package.new else [package.old]
    if any(name not in known for name in names):
        return None
    newest = [f"{name}={known[name][0]}" for name in names]
    if package.has_versions and len(known[package.old]) > 1:
        return [f"{package.old}={known[package.old][-1]}", *newest]
    return newest


def _known_versions(names: list[str]) -> dict[str, list[str]]:
    """The known versions of packages, newest first."""
    try:
        lines = subprocess.run(
            ["apt-cache", "madison", *names], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise stop(f"apt-cache does not work ({error}). The sites are packages of Debian.") from error
    known: dict[str, list[str]] = {}
    for line in lines.splitlines():
        name, version, source = (part.strip() for part in line.split("|"))
        if not source.endswith("Sources") and version not in known.setdefault(name, []):
            known[name].append(version)
    return known


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"").decode().strip().rpartition("\n")[2]
        raise stop(f"{' '.join(command)} failed: {reason or error}. Run apt-get update first.") from error


# Read


def load(corpus: Path, package: Package) -> Site | None:
    """The pages of a site. None if *corpus* does not have it. What was read is kept in the folder ``cache``."""
    folder = corpus / package.site
    if not (folder / "done").exists():
        return None
    sides = sorted(path for path in folder.iterdir() if path.is_dir())
    archives = [(side / "version").read_text() for side in sides]
    what = (_FORMAT, canonical_version("text"), asdict(package), archives, MAX_NAMES, _MAX_BYTES, MIN_CHARS)
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
    cached = corpus / "cache" / f"{package.site}-{key}.json"
    if cached.exists():
        pages = [Page(package.site, *fields) for fields in json.loads(cached.read_text())]
    else:
        pages = _read_pages(package, sides)
        cached.parent.mkdir(exist_ok=True)
        partial = cached.with_suffix(".part")
        partial.write_text(json.dumps([(p.name, p.version, p.url, p.html, p.text) for p in pages]))
        partial.replace(cached)
    return Site(package.site, package.generator, pages, package.is_renumbered, key)


def _read_pages(package: Package, sides: list[Path]) -> list[Page]:
    found = [_named_files(package, side) for side in sides]
    if package.is_renumbered:
        return _read_renumbered(package, found)
    pages = []
    for name in _chosen({name for files in found for name in files}, len(sides)):
        for number, files in enumerate(found):
            if name in files and (page := _read_page(package, name, number, *files[name])) is not None:
                pages.append(page)
    return pages


def _named_files(package: Package, side: Path) -> dict[str, tuple[str, Path]]:
    """The paths of the pages of one version, below the folder of all of them and in full, by the names of the pages."""
    paths = sorted(
        path
        for path in side.rglob("*.*htm*")
        if _PAGE.search(path.name) and path.is_file() and not path.is_symlink()
    )
    if not paths:
        return {}
    root = os.path.commonpath([path.parent for path in paths])
    below = [str(path.relative_to(root)) for path in paths]
    return {_name_of(package, path): (path, full) for path, full in zip(below, paths, strict=True)}


def _read_renumbered(package: Package, found: list[dict[str, tuple[str, Path]]]) -> list[Page]:
    """Pages of which those that are versions of one page by their text have one name."""
    sides = [
        [page for name in files if (page := _read_page(package, name, number, *files[name])) is not None]
        for number, files in enumerate(found)
    ]
    old, new = sides
    pairs = partners([page.text for page in old], [page.text for page in new])
    old = [replace(page, name=f"1/{page.name}") for page in old]
    new = [replace(page, name=f"2/{page.name}") for page in new]
    for first, second in pairs.items():
        new[second] = replace(new[second], name=old[first].name)
    chosen = set(_chosen({page.name for page in (*old, *new)}, 2))
    return [page for page in (*old, *new) if page.name in chosen]


def _chosen(names: set[str], versions: int) -> list[str]:
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[: MAX_NAMES[versions]]


def _name_of(package: Package, path: str) -> str:
    """The path of a page without the version of its package.

    >>> _name_of(Package("boost", "", "libboost1.74-doc", "libboost1.81-doc"), "boost_1_74/2020-1.74.html")
    'boost_/2020-.html'
    >>> _name_of(Package("it", "", "libit3-java-doc", "libit4-java-doc"), "org/it4/Map4.html")
    'org/it/Map4.html'
    """
    if not package.new:
        return path
    for version in _versions_of(package):
        if "." in version:
            path = re.sub(rf"(?<!\d){'[._]'.join(version.split('.'))}(?!\d)", "", path)
        else:
            path = re.sub(rf"(?<=[a-z]){version}(?=/)", "", path)
    return path


def _versions_of(package: Package) -> list[str]:
    """The numbers in which the names of the two packages differ."""
    old, new = (re.findall(r"\d+(?:\.\d+)*", name) for name in (package.old, package.new))
    return [number for pair in zip(old, new, strict=False) if pair[0] != pair[1] for number in pair]


def _read_page(package: Package, name: str, number: int, path: str, full: Path) -> Page | None:
    if full.stat().st_size > _MAX_BYTES:
        return None
    from scrapy.http import HtmlResponse

    url = f"http://{package.site}.example/{number + 1}/{path}"
    markup = HtmlResponse(
        "http://a.example", headers={b"Content-Type": b"text/html"}, body=full.read_bytes()
    ).text
    try:
        text = canonical_text(markup)
    except HostileMarkup:
        return None
    if len(text) < MIN_CHARS:
        return None
    return Page(package.site, name, number, url, shorten(markup, text), text)


def shorten(markup: str, text: str) -> str:
    """A page with the same title and canonical text, which takes less time to parse. *markup* itself if none is found."""
    title_node = LexborHTMLParser(markup).css_first("title")
    title = "" if title_node is None else " ".join(title_node.text().split())
    rest = text.removeprefix(title)
    short = f"<!DOCTYPE html><title>{html.escape(title)}</title><body>{html.escape(rest)}"
    return short if canonical_text(short) == text else markup
