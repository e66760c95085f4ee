"""Makes docs/screenshots: each page of the web interface, from real runs, in Debian's Chromium.

`python docs/make_screenshots.py [FOLDER]`; with a folder, every page at three widths, light and dark, is put there.
"""

from __future__ import annotations

import argparse
import base64
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from holdfast import END, START, App, ExecutionError, StateGraph, clock
from holdfast.service import Service
from holdfast.web import asgi
from holdfast.web.serving import listen

TARGET = Path(__file__).resolve().with_name("screenshots")
CHROMIUM = "/usr/bin/chromium"
WIDTHS = {"wide": (1280, 800), "middle": (800, 900), "phone": (360, 780)}
DAY = 86_400.0
QUALITY = 0.8

REPORT = """\
workflow:
  name: weekly-report
  description: Gather the figures of a week, write a report, and publish it once somebody agrees.
  tags: [reports]
  inputs:
    team: {type: string, required: true, description: Whose figures to gather.}
    weeks: {type: integer, default: 1, description: How many weeks back.}
    tone: {type: string, default: plain, choices: [plain, cheerful, formal]}
steps:
  - name: gather
    for_each: {in: '{{ ["sales", "support", "stock", "returns"] }}'}
    shell: {run: 'sleep 0.1; echo "$NAME: 42"', env: {NAME: "{{ item }}"}}
    timeout: 30
  - name: summarize
    shell: {run: 'sleep 0.3; echo "a quiet week for $TEAM"', env: {TEAM: "{{ inputs.team }}"}}
    timeout: 30
  - name: approve
    ask: {prompt: "Publish the report?", choices: ["publish", "change it", "drop it"]}
  - name: publish
    shell: {run: 'echo "published: $SAID"', env: {SAID: "{{ steps.approve.output }}"}}
    timeout: 30
output: "{{ steps.publish.output }}"
"""

ORDERS = """\
workflow:
  name: import-orders
  description: Take new orders in, check them, and book what is in stock.
  inputs:
    file: {type: string, default: orders.csv, description: The file with the orders.}
    strict: {type: boolean, default: true, description: Stop at the first order that is invalid.}
    mapping: {type: object, description: The columns by the names of our fields.}
steps:
  - name: fetch
    shell: {run: 'echo "120 orders"'}
    timeout: 30
  - name: check
    shell:
      run: 'case "$FILE" in *.csv) echo fine;; *) echo "line 7: no such article: A-1138" >&2; exit 1;; esac'
      env: {FILE: "{{ inputs.file }}"}
    timeout: 30
  - name: book
    shell: {run: 'echo "118 orders booked"'}
    timeout: 30
  - name: notify
    shell: {run: 'echo "informed the warehouse"'}
    timeout: 30
output: "{{ steps.book.output }}"
"""

BACKUP = """\
workflow: {name: backup, description: Copy what was booked to another place.}
steps:
  - name: copy
    shell: {run: 'sleep 30; echo copied'}
    timeout: 60
"""


def research(state: Any, ctx: Any) -> dict[str, Any]:
    """Spend what a search by a model would."""
    ctx.spend("small-model", input_tokens=9_200, output_tokens=310, cost=0.02 * state["size"])
    time.sleep(0.02)
    return {"found": state["size"] * 3}


def draft(state: Any, ctx: Any) -> dict[str, Any]:
    """Spend what a draft by a model would."""
    ctx.spend("large-model", input_tokens=21_000, output_tokens=2_400, cost=0.35 * state["size"])
    time.sleep(0.03)
    return {"text": "a draft"}


def translate(state: Any, ctx: Any) -> dict[str, Any]:
    """Spend what a translation by a model would."""
    ctx.spend("large-model", input_tokens=4_000, output_tokens=3_900, cost=0.11 * state["size"])
    return {"text": "un brouillon"}


def paid(store: Any) -> list[App]:
    """Return the workflows that cost something."""
    one = StateGraph(dict, name="research").add_node("search", research).add_node("draft", draft)
    one.add_edge(START, "search").add_edge("search", "draft").add_edge("draft", END)
    other = StateGraph(dict, name="translate").add_node("translate", translate)
    other.add_edge(START, "translate").add_edge("translate", END)
    return [one.compile(store), other.compile(store)]


@contextmanager
def earlier(seconds: float) -> Iterator[None]:
    """Let everything happen so long ago."""
    real = clock.time
    clock.time = lambda: real() - seconds  # type: ignore[assignment]
    try:
        yield
    finally:
        clock.time = real


def make_runs(service: Service) -> None:
    """Execute the runs that the pages show."""
    chance = random.Random(7)
    for app in paid(service.store):
        for day in range(9, -1, -1):
            for number in range(chance.randint(0, 3)):
                with earlier(day * DAY + chance.randint(0, 40_000)), suppress(ExecutionError):
                    size = chance.randint(1, 9)
                    app.invoke({"size": size}, run_id=f"{app.name}-{9 - day}{number}")
    service.execute("import-orders", {"file": "orders.csv"}, run_id="orders-monday", tags=["shop"], wait=60)
    service.execute("import-orders", {"file": "orders.txt"}, run_id="orders-tuesday", tags=["shop"], wait=60)
    service.execute("weekly-report", {"team": "north"}, run_id="report-north", tags=["board"], wait=60)
    service.answer("report-north", "publish", who="ada")
    service.wait("report-north", 60)
    service.execute("weekly-report", {"team": "south", "tone": "formal"}, run_id="report-south", wait=60)
    service.execute("import-orders", run_id="orders-later", delay=3600)
    service.execute("backup", run_id="backup-tonight", queue="nightly", wait=2)


@dataclass(frozen=True)
class Shot:
    """A page to show: the name of its picture, its path, and what is pressed before."""

    name: str
    path: str
    press: str = ""


SHOTS = (
    Shot("runs", "/runs"),
    Shot("run", "/runs/report-south"),
    Shot("failed", "/runs/orders-tuesday"),
    Shot("workflows", "/workflows"),
    Shot("workflow", "/workflows/weekly-report"),
    Shot("compare", "/compare?run=orders-monday&run=orders-tuesday"),
    Shot("costs", "/costs"),
    Shot("fleet", "/fleet"),
    Shot("store", "/store", "Check the newest runs"),
)
EMPTY = (
    Shot("runs-empty", "/runs"),
    *(Shot(f"{name}-empty", f"/{name}") for name in ("workflows", "costs", "fleet")),
)


@contextmanager
def served(service: Service) -> Iterator[str]:
    """Serve the pages; yield their address."""
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(asgi(service=service), log_level="error", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def shoot(page: Page, shot: Shot, file: Path, *, full: bool) -> None:
    """Make one picture."""
    page.goto(shot.path)
    if shot.press:
        page.get_by_role("button", name=shot.press).click()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file, full_page=full)


AS_WEBP = """async ([source, quality]) => {
  const picture = new Image();
  picture.src = source;
  await picture.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [picture.width, picture.height];
  canvas.getContext("2d").drawImage(picture, 0, 0);
  return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""


def compress(browser: Browser, file: Path) -> None:
    """Replace a picture by a smaller one, which the browser makes."""
    page = browser.new_page()
    source = f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
    small = page.evaluate(AS_WEBP, [source, QUALITY])
    file.with_suffix(".webp").write_bytes(base64.b64decode(small))
    file.unlink()
    page.close()


def make(browser: Browser, address: str, folder: Path, shots: tuple[Shot, ...]) -> None:
    """Make the pictures of the documentation: each page once, the page of runs also dark and on a phone."""
    for scheme, width, chosen in (
        ("light", "wide", shots),
        ("dark", "wide", shots[:2]),
        ("light", "phone", shots[:1]),
    ):
        size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        page = browser.new_page(base_url=address, color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
        suffix = "".join(f"-{each}" for each in (scheme, width) if each not in ("light", "wide"))
        for shot in chosen:
            file = folder / f"{shot.name}{suffix}.png"
            shoot(page, shot, file, full=False)
            compress(browser, file)
        page.close()


def make_all(browser: Browser, address: str, folder: Path, shots: tuple[Shot, ...]) -> None:
    """Make pictures to look at: every page at every width, light and dark."""
    for scheme in ("light", "dark"):
        for width, (across, down) in WIDTHS.items():
            size = {"width": across, "height": down}
            page = browser.new_page(base_url=address, color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
            for shot in shots:
                shoot(page, shot, folder / f"{shot.name}-{width}-{scheme}.png", full=True)
            page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=TARGET, help="by default the one that the docs show"
    )
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, chdir(place), sync_playwright() as playwright:
        for name, text in (("report", REPORT), ("orders", ORDERS), ("backup", BACKUP)):
            (Path(place) / f"{name}.yaml").write_text(text)
        service = Service(f"sqlite:///{place}/runs.db", [place, *paid(None)])
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        with served(service) as address:
            make_runs(service)
            (make if folder == TARGET else make_all)(browser, address, folder, SHOTS)
        if folder != TARGET:
            with served(Service(f"sqlite:///{place}/empty.db")) as address:
                make_all(browser, address, folder, EMPTY)
        browser.close()


if __name__ == "__main__":
    main()
