"""The site of the documentation: its navigation, the check of what was built, and the whole site, built once."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path

from tests.docs.test_docs import PAGES, ROOT, name_of

_spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs/make_site.py")
assert _spec is not None and _spec.loader is not None
make_site = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_site)


def test_the_navigation_has_six_groups_and_every_page() -> None:
    groups = make_site.navigation()
    pages = [page for group in groups.values() for page in group.values()]

    assert [*groups] == [
        "Start here",
        "Write workflows",
        "Operate runs",
        "Store runs",
        "Run a fleet",
        "Look things up",
    ]
    assert len(pages) == len({*pages}), "a page has one place"
    assert [page for page in pages if not (ROOT / page).exists()] == []
    missing = {*map(name_of, PAGES)} - {*pages, "README.md", "docs/README.md"}
    assert [name for name in sorted(missing) if f"{Path(name).parent}/README.md" not in pages] == []


def test_the_site_has_the_pages_of_the_repository_in_the_same_folders(tmp_path: Path) -> None:
    make_site.lay_out(tmp_path)
    settings = tomllib.loads((tmp_path / "zensical.toml").read_text("utf-8"))["project"]

    assert all((tmp_path / "pages" / name_of(page)).exists() for page in PAGES)
    assert "no-run" not in (tmp_path / "pages/docs/howto/workflow-files.md").read_text("utf-8")
    assert settings["nav"][0] == {"Home": "README.md"} and len(settings["nav"]) == 7


def test_a_built_site_is_checked_for_dead_links_and_other_hosts(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(
        "<head></head><h1 id='top'>1</h1><a href='two.html#there'>a</a><a href='two.html#gone'>b</a>"
        "<a href='gone.html'>c</a><a href='https://example.org/'>d</a><img src='//cdn.example.org/x.png'>"
    )
    (tmp_path / "two.html").write_text("<h1 id='there'>2</h1><a href='one.html'>back</a>")

    assert make_site.problems(tmp_path) == [
        "one.html loads //cdn.example.org/x.png",
        "one.html: two.html#gone leads nowhere",
        "one.html: gone.html leads nowhere",
    ]
    make_site.forbid_other_hosts(tmp_path)
    assert "default-src 'self'" in (tmp_path / "one.html").read_text()


def test_the_built_site_has_a_search_no_dead_link_and_nothing_of_another_host(tmp_path: Path) -> None:
    """A browser that honours the pages' policy loads nothing from elsewhere, whatever their scripts ask for."""
    site = tmp_path / "site"

    assert make_site.build(site) == []

    found = json.loads((site / "search.json").read_text("utf-8"))
    assert "heartbeat" in json.dumps(found)
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {"index.html", "docs/quickstart.html", "docs/howto/coming-from-dbos.html"} <= pages
    assert all(make_site.POLICY in (site / page).read_text("utf-8") for page in pages)
    sheets = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheets)
