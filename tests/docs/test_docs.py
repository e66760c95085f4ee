"""The documentation: every Python block runs, every link leads somewhere, nothing public is left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.events import EVENT_ALIASES, EVENT_TYPES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINKING = sorted([*PAGES, *ROOT.glob("examples/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
LINK = re.compile(r"(?:\[[^\]]*\]\(|<(?:a|img)\b[^>]*\s(?:href|src)=\")([^)\s\"]+)")
KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH", "SYSTEMROOT")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def script_of(page: Path) -> str:
    """The page's Python blocks on the lines where the page has them, all other lines empty."""
    lines, fence, indent = [], "", 0
    for line in page.read_text("utf-8").splitlines():
        stripped = line.strip()
        if fence:
            closed = stripped == "```"
            lines.append(line[indent:] if fence == "```python" and not closed else "")
            fence = "" if closed else fence
            continue
        if stripped.startswith("```"):
            fence, indent = stripped, len(line) - len(line.lstrip())
        lines.append("")
    assert not fence, f"{name_of(page)}: a block is not closed"
    return "\n".join(lines) + "\n"


WITH_CODE = [page for page in PAGES if script_of(page).strip()]


def environment() -> dict[str, str]:
    """Without the settings of whoever runs the tests, but measured if they are."""
    return {key: value for key, value in os.environ.items() if key in KEPT or key.startswith("COVERAGE_")}


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_python_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Pages about PostgreSQL find the URL of a new store in the environment."""
    script = tmp_path / f"page_{page.stem}.py"
    script.write_text(script_of(page), "utf-8")
    (tmp_path / "cwd").mkdir()
    needs_server = "JOBS_URL" in script_of(page)
    jobs = {"JOBS_URL": request.getfixturevalue("postgres_url")} if needs_server else {}

    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path / "cwd",
        env=environment() | jobs,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, f"line numbers are those of {name_of(page)}\n{done.stdout}{done.stderr}"


def test_a_page_s_script_has_its_blocks_on_the_lines_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "text\n\n```python\na = 1\n```\n- item\n  ```python\n  b = 2\n  ```\n```python no-run\nc\n```\n"
    )

    assert script_of(page).splitlines() == ["", "", "", "a = 1", "", "", "", "b = 2", "", "", "", ""]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_tells_nothing_of_the_machine_it_was_written_on(page: Path) -> None:
    text = page.read_text("utf-8")

    assert str(ROOT) not in text and str(Path.home()) + "/" not in text and "environ({" not in text


def test_there_are_pages_with_code() -> None:
    assert len(WITH_CODE) >= 12


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)


def dead_links(page: Path) -> list[str]:
    """The relative links and pictures of a page that lead to no file, or to no heading of it."""
    found = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_the_relative_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_dead_links_anchors_and_pictures_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c\n## Twice\n## Twice\n[ok](#a-b-c) [ok](page.md#twice-1) [ok](https://example.org/x)\n"
        '[1](#no) [2](page.md#twice-2) ![3](no.svg)\n[4\nlines](no.md) <img width="1" src="no.png">\n'
        "```sh\n# no heading\n[x](y)\n```\n[5](#no-heading)\n"
    )

    assert dead_links(page) == ["#no", "page.md#twice-2", "no.svg", "no.md", "no.png", "#no-heading"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings; a heading that comes again gets a number."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return {*found}


def test_the_readme_leads_to_every_page_or_to_the_list_it_is_on() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [
            page.parent / link.partition("#")[0]
            for link in LINK.findall(page.read_text("utf-8"))
            if "://" not in link
        ]

    assert {name_of(page) for page in PAGES if page not in reached} == set()


def test_the_readme_has_two_programs_and_six_groups_of_links_and_little_else() -> None:
    """The commands that it shows are called by test_tutorials.py."""
    text = (ROOT / "README.md").read_text("utf-8")
    programs = re.findall(r'^```(?:python|yaml) title="(.+)"$', text, flags=re.MULTILINE)

    assert programs == ["report.py", "report.yaml"]
    assert len(re.findall(r"^- \*\*", text.partition("## More")[2], flags=re.MULTILINE)) == 6
    assert len(text.splitlines()) < 170


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    """If docs/peers.md was made anew, copy its figures and date to README.md."""
    pages = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/peers.md"))
    shown, measured = ([[*map(str.strip, line.split("|"))] for line in page.splitlines()] for page in pages)
    names = {
        "chain of 100 trivial steps, each synced to disk": "chain of 100 trivial steps",
        "resume at step 50 of 100 in a new process": "resume at step 50 of 100 in a new process",
        "disk after 200 steps, each adding a message of 500 B": "200 steps, each adding a message of 500 B",
    }
    rows = [row for row in shown if len(row) > 2 and row[1] in names]

    assert len(rows) == 3
    for _, name, ours, *factors, _ in rows:
        found = [row for row in measured if row[1:3] == [names[name], "SQLite"]]
        peers = [[re.findall(r"\*\*(.+)\*\*", row[column]) for column in (4, 6, 7)] for row in found]
        assert (ours, [[factor] for factor in factors]) in [
            (row[3].partition(" ±")[0], each) for row, each in zip(found, peers, strict=True)
        ], name


def test_the_reference_has_every_public_name() -> None:
    reference = (ROOT / "docs/reference/api.md").read_text("utf-8")

    assert [name for name in public_names() if f"`{name}`" not in reference] == []


def public_names() -> list[str]:
    return [name for name in holdfast.__all__ if type(getattr(holdfast, name)).__name__ != "module"]


def test_the_page_on_events_has_every_event_and_every_alias() -> None:
    """S0.12, S0.13, S3.14-S3.19: one canonical set, aliases documented."""
    page = (ROOT / "docs/howto/events.md").read_text("utf-8")

    for name in EVENT_TYPES:
        assert f"| `{name}` |" in page, name
    for alias, name in EVENT_ALIASES.items():
        assert f"| `{alias}` | `{name}` |" in page, alias


def test_the_reference_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs/make_reference.py", "--check"],
        capture_output=True,
        text=True,
        env=environment(),
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_on_the_architecture_has_every_folder_and_nothing_that_is_not_there() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    tree = re.findall(r"^ +([a-z_]+(?:/|\.py))", page, flags=re.MULTILINE)
    package = ROOT / "src/holdfast"

    folders = [path for path in package.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert [path.name for path in folders if f"{path.name}/" not in tree] == []
    assert [
        path.name for path in package.glob("*.py") if not {path.name, "__init__.py", "__main__.py"} & {*tree}
    ] == []
    assert [name for name in tree if not any(package.rglob(name.rstrip("/")))] == []


def commands(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("python3 -m venv")]


def test_ci_runs_the_commands_of_the_readme_word_for_word() -> None:
    readme = commands((ROOT / "README.md").read_text("utf-8"))
    ci = commands((ROOT / ".ci/run").read_text("utf-8"))

    assert len(readme) == 2
    assert sorted(readme) == sorted(ci)
    assert readme[0].endswith("holdfast demo") and "pytest" in readme[1]


def test_the_constraints_pin_versions_and_name_no_host_and_no_path() -> None:
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]

    assert pins
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9_.\-]+==[0-9][0-9a-z.]*", pin), pin


@pytest.mark.parametrize("script", sorted(ROOT.glob("docs/make_*.py")), ids=lambda path: path.stem)
def test_a_script_of_the_docs_refuses_an_unknown_argument_and_explains_itself(script: Path) -> None:
    if script.stem == "make_screenshots":
        pytest.importorskip("playwright")
    refused, helped = (
        subprocess.run([sys.executable, script, word], capture_output=True, text=True, timeout=100)
        for word in ("--unknown", "--help")
    )
    assert refused.returncode == 2 and "unrecognized arguments: --unknown" in refused.stderr, refused
    assert helped.returncode == 0 and f"usage: {script.name}" in helped.stdout, helped


def test_pages_install_from_the_clone_and_not_the_package_of_that_name_in_the_index() -> None:
    wrong = re.compile(r"pip install (-\S+ )*'?holdfast\b")
    assert [
        page.name
        for page in [*PAGES, *ROOT.glob("examples/**/*.md")]
        if wrong.search(page.read_text("utf-8"))
    ] == []
