"""What a call must not do: print, phone home, load heavy things early, or keep Ctrl+C waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import holdfast
from tests.agents.llm_server import LlmServer, hang

SOURCE = Path(next(iter(holdfast.__path__))).parent

CALL = """
from holdfast.agents.provider import AgentRequest, provider_for
request = AgentRequest("openai:gpt-4o-mini", "hello", base_url={url!r})
reply = provider_for(request.model).complete(request)
"""

WATCH = """
import sys
seen = []
def watch(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        seen.append((event, args[1] if event == "socket.connect" else args[:2]))
sys.addaudithook(watch)
"""


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SYSTEMROOT") if name in os.environ}
    return {**kept, "PYTHONPATH": str(SOURCE), **more}


def run(program: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(**more), timeout=60
    )


def test_a_call_prints_nothing(server: LlmServer) -> None:
    """Not even where the library greets the tools that read a program's output."""
    done = run(CALL.format(url=server.url), AI_AGENT="1")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_call_connects_to_the_model_and_nowhere_else(server: LlmServer) -> None:
    done = run(WATCH + CALL.format(url=server.url) + "print(reply.cost is not None, seen)")

    port = int(server.url.split(":")[2].split("/")[0])
    assert done.stdout.startswith("True ")
    places = [place for _, place in eval(done.stdout.removeprefix("True "))]
    assert places and all(place[:2] == ("127.0.0.1", port) for place in places), places


def test_prices_need_no_network() -> None:
    done = run(
        WATCH + "from holdfast.agents.provider import cost\n"
        "from holdfast.agents.provider import Usage\n"
        "print(cost('openai:gpt-4o-mini', Usage(1000, 1000, 1)) > 0, seen)"
    )

    assert done.stdout.strip() == "True []", done.stderr


def test_importing_the_modules_loads_nothing_heavy_before_a_model_is_asked() -> None:
    stems = sorted(path.stem for path in (SOURCE / "holdfast" / "agents").glob("*.py"))
    modules = [name for name in stems if name != "__init__" and not name.startswith("pydantic_")]
    imports = "".join(f"import holdfast.agents.{name}\n" for name in modules)
    heavy = ("pydantic_ai", "pydantic", "openai", "httpx", "httpx2", "genai_prices", "anyio")

    done = run(f"import sys\n{imports}print([name for name in {heavy!r} if name in sys.modules])")

    assert len(modules) == 2
    assert done.stdout.strip() == "[]", done.stderr


def test_a_missing_extra_is_named() -> None:
    done = run(
        "import sys\nsys.modules['pydantic_ai'] = None\n"
        "from holdfast.agents.provider import AgentError, provider_for\n"
        "try: provider_for('openai:gpt-4o-mini')\n"
        "except AgentError as error: print(error)"
    )

    assert "pip install 'holdfast[agents]'" in done.stdout, done.stderr


def test_ctrl_c_ends_a_call_that_waits(server: LlmServer) -> None:
    server.script([hang()])
    program = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"def call():\n{textwrap.indent(CALL.format(url=server.url), '    ')}\n"
        "try: call()\nexcept KeyboardInterrupt: print('interrupted')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment()
    ) as child:
        server.wait_for(1)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)

    assert (child.returncode, out) == (0, "interrupted\n")
