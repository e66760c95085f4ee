"""Write the column `shown by` of docs/requirements.md: for each requirement the test that shows it, and little else.

Run `python docs/make_requirements.py` after tests were renamed, or say for other requirements.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.checkpoints.test_requirements import shown_by  # noqa: E402 - the tests are beside this folder.

PAGE = ROOT / "docs" / "requirements.md"
_ROW = re.compile(r"^\| ([SR]\d\.\d+) \| (.*?) \| (.*?) \|(?: `(.*?)` \|)?$", re.MULTILINE)


def with_tests(page: str, shown: dict[str, list[str]]) -> str:
    """Return the page with a test in each row: the one that is there, if it still shows this, else the best one.

    The best one shows the fewest requirements.
    """
    requirements_of: dict[str, int] = {}
    for tests in shown.values():
        for test in set(tests):
            requirements_of[test] = requirements_of.get(test, 0) + 1

    def row(match: re.Match[str]) -> str:
        number, what, where, test = match.groups()
        tests = shown.get(number, [])
        if test not in tests:
            test = min(tests, key=lambda each: (requirements_of[each], each), default="none")
        return f"| {number} | {what} | {where} | `{test}` |"

    page = page.replace(
        "| number | what Holdfast does | where |\n|---|---|---|\n",
        "| number | what Holdfast does | where | shown by |\n|---|---|---|---|\n",
    )
    return _ROW.sub(row, page)


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0]).parse_args()
    PAGE.write_text(with_tests(PAGE.read_text("utf-8"), shown_by()), "utf-8")
