"""The site builds with no warning, asks no other host for anything, and has all that there is."""

import functools
import html.parser
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="pip install 'frameworktax[docs]'")

sys.path.insert(0, str(Path(__file__).parents[1] / "browser"))
import report_pages

import frameworktax
from frameworktax.cli.lists import documents

ROOT = Path(__file__).parents[2]
FETCHED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "use": ("href", "xlink:href"),
    "image": ("href", "xlink:href"),
}
"""Attributes whose addresses a browser asks for by itself."""
PASSIVE = {"canonical", "next", "prev", "alternate", "license", "author", "help"}
"""Relations of a link that a browser does not follow by itself."""


class Asked(html.parser.HTMLParser):
    """Collects what a browser would ask for, the places of a page and its text."""

    def __init__(self):
        super().__init__()
        self.addresses, self.places, self.text = [], set(), []

    def handle_starttag(self, tag, attributes):
        said = {name: value or "" for name, value in attributes}
        names = FETCHED.get(tag, ())
        if tag == "link" and not set(said.get("rel", "").split()) <= PASSIVE:
            names = ("href",)
        self.addresses += [said[name] for name in names if name in said]
        self.addresses += re.findall(r"url\(['\"]?([^'\")]+)", said.get("style", ""))
        self.places |= {said[name] for name in ("id", "name") if name in said}

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not re.search("warning|error", ran.stderr, re.IGNORECASE), ran.stderr
    return folder


@pytest.fixture(scope="module")
def page(site):
    @functools.cache
    def read(name):
        found = Asked()
        found.feed((site / name).read_text(encoding="utf-8"))
        return found

    return read


def outside(addresses):
    return [a for a in addresses if re.match(r"(?:[a-z][a-z+.-]*:)?//", a, re.IGNORECASE)]


def test_addresses_of_other_hosts_are_seen():
    seen = Asked()
    seen.feed('<link rel="stylesheet" href="//a/b.css"><script src="https://a/b.js"></script>')
    seen.feed('<a href="https://a">x</a><link rel="canonical" href="https://a"><img src="i.png">')
    assert outside(seen.addresses) == ["//a/b.css", "https://a/b.js"]


def test_no_page_asks_another_host(site, page):
    pages = [path.relative_to(site).as_posix() for path in site.rglob("*.html")]
    assert len(pages) > 20
    assert {name: found for name in pages if (found := outside(page(name).addresses))} == {}
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        asked = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")\s;]+)", text)
        assert outside(asked) == [], style


def test_every_page_of_results_is_in_the_navigation(page, site):
    first = (site / "index.html").read_text(encoding="utf-8")
    for result in (ROOT / "docs" / "results").glob("*.md"):
        assert f'href="results/{result.stem}.html"' in first, result


def test_the_reference_has_every_verb_and_every_option(page):
    from typer.main import get_command

    from frameworktax.cli import app

    reference = page("reference/command-line.html")
    text = "".join(reference.text)
    waiting, seen = [((), get_command(app))], 0
    while waiting:
        path, command = waiting.pop()
        if hasattr(command, "commands"):
            waiting += [((*path, name), c) for name, c in command.commands.items() if not c.hidden]
            continue
        seen += 1
        assert "-".join(path) in reference.places
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(name in text for name in parameter.opts)
    assert seen > 15


def test_the_reference_has_every_public_name_with_its_words(page):
    python = page("reference/python.html")
    text = " ".join("".join(python.text).split())
    for name in set(frameworktax.__all__) - {"__version__"}:
        thing = getattr(frameworktax, name)
        assert {f"frameworktax.{name}", f"{thing.__module__}.{name}"} & python.places, name
        assert thing.__doc__.splitlines()[0].replace("`", "") in text, name
    assert "frameworktax.records.Measurement" in page("reference/records.html").places


def test_schemas_are_those_that_the_command_prints(site, page, here):
    text = "".join(page("reference/documents.html").text)
    for name in documents():
        kept = json.loads((site / "reference" / f"{name}.schema.json").read_text())
        assert kept == here("schema", name).json()
        assert all(field in text for field in kept["properties"])


def test_the_claims_of_the_paper_stand_with_their_places(page):
    file = ROOT / "src" / "frameworktax" / "reproduce" / "numbers" / "claims.toml"
    text = "".join(page("explanation/paper-claims.html").text)
    for name, claim in tomllib.loads(file.read_text()).items():
        assert all(said in text for said in (name, claim["where"], claim["text"]))


def test_links_out_of_the_folder_lead_to_copies(site):
    """Links of method.md to results of benchmarks, of runtimes.md to CONTRIBUTING."""
    assert (site / "repository/benchmarks/results/calibration.json").is_file()
    runtimes = (site / "runtimes.html").read_text(encoding="utf-8")
    assert 'href="repository/CONTRIBUTING.html#from-another-package"' in runtimes


def test_blocks_that_are_files_show_their_names(page):
    assert "before.py" in {text.strip() for text in page("tutorial.html").text}


# --- in a browser -----------------------------------------------------------------------------


@pytest.mark.browser
def test_search_finds_and_asks_no_other_host(site):
    report_pages.needed()
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": print_nothing})
    handler = functools.partial(quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    asked, said = [], []
    try:
        with report_pages.chromium() as browser:
            page = browser.new_page()
            page.set_default_timeout(report_pages.LIMIT_MS)
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(f"{home}index.html")
            found = page.locator(".md-search-result__item").first
            for attempt in range(20):  # what is typed before the page listens is lost
                page.locator("input.md-search__input").fill("")
                page.locator("input.md-search__input").press_sequentially("width-shrunk")
                page.wait_for_timeout(1000 + 500 * attempt)
                if found.is_visible():
                    break
            assert found.is_visible()
            page.goto(f"{home}reference/python.html")
            page.wait_for_load_state("networkidle")
    finally:
        server.shutdown()
        server.server_close()
    own = (home, "data:", "blob:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert said == []


def print_nothing(*_):
    """Take the place of what would log each request."""
