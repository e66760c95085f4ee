"""Builds the documentation as a site with search in build/site.

The pages are those of the repository, in the same folders, so that a link means the same in both. docs/README.md is the
navigation. The build fails if a link or an anchor of the site leads nowhere, or if a page would load something from
another host. Needs the extra `docs` (zensical).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
SOURCES = (
    "*.md",
    "LICENSE",
    "docs/**/*.md",
    "docs/**/*.svg",
    "docs/**/*.png",
    "docs/**/*.webp",
    "examples/**/*.*",
)
READMES = ("tests/simulator/README.md", "benchmarks/peers/README.md")
POLICY = "default-src 'self' 'unsafe-inline' data: blob:"
"""What a page of the site may load: nothing from another host."""

_LINK = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)
_LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


def sources() -> list[Path]:
    """Return the files that the site is made of."""
    found = {path for pattern in SOURCES for path in ROOT.glob(pattern)} | {ROOT / name for name in READMES}
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def navigation() -> dict[str, dict[str, str]]:
    """Return the groups of docs/README.md, with titles and pages from the root of the repository."""
    groups = re.split(r"^## (.+)$", (ROOT / "docs/README.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    return {
        group: {title: _from_root(page) for title, page in _LINK.findall(text)}
        for group, text in zip(groups[::2], groups[1::2], strict=True)
    }


def _from_root(page: str) -> str:
    return page.removeprefix("../") if page.startswith("../") else f"docs/{page}"


def settings() -> str:
    """Return the configuration of zensical."""
    groups = [{group: [*map(_entry, pages, pages.values())]} for group, pages in navigation().items()]
    lines = [
        "[project]",
        'site_name = "Holdfast"',
        'site_description = "Checkpoint-and-resume workflows for Python"',
        'docs_dir = "pages"',
        'site_dir = "site"',
        "use_directory_urls = false",
        f"nav = {_toml([{'Home': 'README.md'}, *groups])}",
        "[project.theme]",
        "font = false",
        'features = ["content.code.copy", "navigation.indexes", "navigation.tabs", "navigation.top"]',
        *_palette("(prefers-color-scheme: light)", "default", "dark"),
        *_palette("(prefers-color-scheme: dark)", "slate", "light"),
        "[project.markdown_extensions.tables]",
        "[project.markdown_extensions.pymdownx.superfences]",
        "[project.markdown_extensions.pymdownx.highlight]",
        "[project.markdown_extensions.toc]",
        "permalink = true",
        'slugify = {object = "pymdownx.slugs.slugify", kwds = {case = "lower"}}',
    ]
    return "\n".join(lines) + "\n"


def _entry(title: str, page: str) -> dict[str, object]:
    """Return a page of the navigation, and under a folder's list the pages of that folder."""
    path = ROOT / page
    if path.name != "README.md" or not page.startswith("docs/"):
        return {title: page}
    others = sorted(other.relative_to(ROOT).as_posix() for other in path.parent.glob("*.md") if other != path)
    return {title: [page, *others]}


def _palette(media: str, scheme: str, other: str) -> Iterator[str]:
    yield "[[project.theme.palette]]"
    yield f'media = "{media}"'
    yield f'scheme = "{scheme}"'
    yield f'toggle = {{icon = "lucide/sun-moon", name = "Switch to {other} mode"}}'


def _toml(value: object) -> str:
    """Return lists, tables and texts as inline TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def lay_out(folder: Path) -> None:
    """Copy the pages and write the configuration; marks of our tests on blocks are left out."""
    for path in sources():
        target = folder / "pages" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = re.sub(r"^( *```\w+) [\w-]+$", r"\1", path.read_text("utf-8"), flags=re.MULTILINE)
            target.write_text(text, "utf-8")
        else:
            shutil.copyfile(path, target)
    (folder / "zensical.toml").write_text(settings(), "utf-8")


class Page(HTMLParser):
    """What a page of the site links to, loads and can be linked to by."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {found.get("id") or "", found.get("name") or ""}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        if tag in _LOADS and found.get(_LOADS[tag]) and found.get("rel") != "canonical":
            self.loads.append(found[_LOADS[tag]] or "")


def problems(site: Path) -> list[str]:
    """Return the links, anchors and files of a site's pages that lead nowhere or to another host."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        found += [f"{name} loads {url}" for url in page.loads if re.match(r"(https?:)?//", url)]
        for link in [*page.links, *page.loads]:
            if name != "404.html" and not _leads(path, link, pages):
                found.append(f"{name}: {link} leads nowhere")
    return found


def _leads(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    if re.match(r"[a-z]+:|//", link):
        return True
    name, _, anchor = unquote(link).partition("#")
    target = (path.parent / name.partition("?")[0]).resolve() if name else path
    target = target / "index.html" if target.is_dir() else target
    return target.exists() and (not anchor or target not in pages or anchor in pages[target].anchors)


def forbid_other_hosts(site: Path) -> None:
    """Have browsers refuse what a page of the site would load from another host."""
    tag = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        path.write_text(text.replace("<head>", f"<head>{tag}", 1), "utf-8")


def build(target: Path) -> list[str]:
    """Build the site in a folder, which is replaced, and return what is wrong with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder)
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            return [done.stdout + done.stderr]
        forbid_other_hosts(folder / "site")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder / "site", target)
    return problems(target)


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0]).parse_args()
    wrong = build(ROOT / "build/site")
    if wrong:
        raise SystemExit("\n".join(wrong))
    sys.stdout.write("build/site is ready; to read it: python -m http.server -d build/site\n")


if __name__ == "__main__":
    main()
