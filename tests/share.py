"""A part of the long tests, another for each commit, within a time: `pytest -m "slow or mutation" --share HASH`."""

from __future__ import annotations

import hashlib
import time

import pytest

PART = 5
"""At most one test in this number is selected."""
OVER = "the share's time is over: not begun, neither passed nor failed"
AROUND = pytest.StashKey[list[float]]()
"""Time at which this process collected its tests, and number of tests that it has started."""


def pytest_addoption(parser: pytest.Parser) -> None:
    share = parser.getgroup("share of the long tests")
    share.addoption("--share", metavar="HASH", help=f"one test in {PART}, in an order, both by this hash of a commit")
    share.addoption(
        "--share-seconds",
        type=float,
        default=90.0,
        metavar="S",
        help="none of the share but the first begins later, on each worker; one that has begun is left to end",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    commit = config.getoption("share")
    if commit is None:
        return

    def place(item: pytest.Item) -> bytes:
        return hashlib.sha256(f"{commit} {item.nodeid}".encode()).digest()

    items.sort(key=place)
    config.hook.pytest_deselected(items=items[-(-len(items) // PART) :])
    del items[-(-len(items) // PART) :]


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[AROUND] = [time.monotonic(), 0]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.getoption("share") is None:
        return
    around = item.config.stash[AROUND]
    if around[1] and time.monotonic() - around[0] > item.config.getoption("share_seconds"):
        pytest.skip(OVER)
    around[1] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.getoption("share") is None:
        return
    begun = {item.nodeid for kind in ("passed", "failed", "error") for item in terminalreporter.getreports(kind)}
    skipped = sum(OVER in str(report.longrepr) for report in terminalreporter.getreports("skipped"))
    terminalreporter.write_line(f"share: {len(begun)} of {len(begun) + skipped} tests ran, {skipped} not begun in time")
