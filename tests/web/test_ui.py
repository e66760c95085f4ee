"""`holdfast ui` and `holdfast run --web` in processes of their own, and the app mounted in another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from holdfast.service import Service
from holdfast.web import asgi
from tests.cli.processes import call
from tests.web.browser import WAIT, listen_to_console, served
from tests.web.test_serve import serving

expect.set_options(timeout=WAIT)


def test_ui_opens_a_run(tmp_path: Path, folder: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with Service(url, [folder]) as service:
        service.execute("greet", {"name": "you"}, run_id="greet/one", wait=60)
    with (
        serving(tmp_path, "greet/o", "--store", url, "--no-open", command="ui") as (_, facts),
        httpx2.Client() as client,
    ):
        found = client.get(facts["link"])
        assert found.status_code == 303 and found.headers["location"] == "/runs/greet%252Fone"
        assert "greet/one" in client.get(f"{facts['address']}/runs", headers={"accept": "text/html"}).text
    words = [sys.executable, "-m", "holdfast", "ui", "nothing", "--store", url, "--no-open"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "nothing" in done.stderr and "Traceback" not in done.stderr


def test_web_and_no_open_are_refused_where_they_do_nothing(folder: Path) -> None:
    for words in (["--web", "--dry-run"], ["--no-open"]):
        done = call(folder, "run", "review.yaml", *words)
        assert done.returncode == 2 and "--no-open is for --web" in done.stderr


def test_a_run_is_shown_while_it_goes_and_until_ctrl_c(
    tmp_path: Path, folder: Path, browser: Browser
) -> None:
    """R1.13: `run --web`; the run is answered from its page's site, and the list is live."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    words = ["run", str(folder / "review.yaml"), "--web", "--no-open", "--run-id", "shown", "--store", url]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words, "--no-interactive"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "BROWSER": "false"},
    )
    try:
        assert process.stderr is not None
        link = next(line for line in process.stderr if "shown at" in line).split()[-1]
        for line in process.stderr:
            if "until Ctrl+C" in line:
                break
        page = browser.new_page()
        page.goto(link)
        assert page.url.endswith("/runs/shown")
        address = link.partition("/login")[0]
        page.goto(f"{address}/runs")
        expect(page.get_by_role("row", name="shown")).to_contain_text("paused")
        answered = page.evaluate(
            "fetch('/api/v1/runs/shown/answer', {method: 'POST', body: '{\"value\": \"yes\"}',"
            " headers: {'content-type': 'application/json'}}).then(answer => answer.status)"
        )
        assert answered == 200
        expect(page.get_by_role("row", name="shown")).to_contain_text("completed")
        page.context.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_the_app_is_mounted_below_a_path_of_another(tmp_path: Path, folder: Path, browser: Browser) -> None:
    inner = asgi(f"sqlite:///{tmp_path / 'runs.db'}", [folder])

    async def hello(request: object) -> PlainTextResponse:
        return PlainTextResponse("the other app")

    outer = Starlette(
        routes=[Route("/", hello), Route("/api/v1/health", hello)],
        lifespan=lambda _: inner.router.lifespan_context(inner),
    )
    outer.mount("/tools/holdfast", inner)
    with served(outer) as address:
        page = browser.new_page(base_url=address)
        errors = listen_to_console(page)
        page.goto("/tools/holdfast/")
        seen = {page.url}
        for name in ("Workflows", "Costs", "Fleet", "Store", "Runs"):
            page.get_by_role("navigation").get_by_role("link", name=name).click()
            expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
            seen.add(page.url)
        assert len(seen) == 5 and all("/tools/holdfast/" in url for url in seen)
        page.goto("/tools/holdfast/workflows/greet")
        page.get_by_label("name (needed)").fill("you")
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/tools/holdfast/runs/*")
        page.goto("/tools/holdfast/runs")
        expect(page.get_by_role("row", name="greet")).to_contain_text("completed")
        for link in page.locator("a[href], link[href], script[src]").all():
            target = link.get_attribute("href") or link.get_attribute("src") or ""
            assert target.startswith(("/tools/holdfast/", "#")), target
        assert [error for error in errors if "404" not in error] == []
        page.context.close()
