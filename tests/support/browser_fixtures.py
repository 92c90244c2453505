"""A browser for tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.patience import PATIENCE_SECONDS

# The names of the program on Debian and on other systems.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def patient(browser: Browser, **options: Any) -> BrowserContext:
    """Return a new context, in which a page may take as long as anything else in a test."""
    context = browser.new_context(**options)
    context.set_default_timeout(1000 * PATIENCE_SECONDS)
    return context


@contextmanager
def tab(
    browser: Browser,
    *,
    width: int = 1280,
    height: int = 900,
    color_scheme: Literal["light", "dark"] = "light",
) -> Iterator[Page]:
    """Yield the browser's tab, and leave it blank: a new tab costs a second of processor time.

    Each dashboard has a port of its own, so that no test sees what another one stored.
    """
    context = browser.contexts[0] if browser.contexts else patient(browser)
    page = context.pages[0] if context.pages else context.new_page()
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=color_scheme)
    try:
        yield page
    finally:
        page.goto("about:blank")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return the system's headless Chromium; skip visibly if there is none.

    It ends with its module: while it lives, the thread has an event loop, and no test could run another.
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        missing = "no Chromium here; install it (Debian: apt-get install chromium)"
        if os.environ.get("FRESHQ_REQUIRE_CHROMIUM") == "1":
            raise RuntimeError(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - slow to load, and only for a browser

    with sync_playwright() as playwright:
        # As root, as in a container, Chromium has no sandbox; it opens pages of the test only.
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()
