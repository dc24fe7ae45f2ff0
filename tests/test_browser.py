"""The report as a browser shows it: hostile text stays text, nothing is asked for, a phone needs no sideways scrolling.

Needs Debian's chromium; where it is absent these tests are skipped, not passed.
"""

import shutil

import pytest
from playwright.sync_api import sync_playwright

from tests.test_html_report import World, template  # noqa: F401

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium")
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    with sync_playwright() as driver:
        shown = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield shown
        shown.close()


@pytest.fixture
def report(template, tmp_path):  # noqa: F811
    shutil.copytree(template, tmp_path / "w", symlinks=True)
    world = World(tmp_path / "w")
    world.change("[report]\ntexts = true\n")
    world.report()
    return world.settings.paths.reports / "latest.html"


def test_hostile_text_is_shown_and_does_nothing(browser, report):
    page, dialogs, asked, complaints = browser.new_page(), [], [], []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(report.as_uri())
    text = page.inner_text("main")
    assert "<script>alert(1)</script>" in text and "</table></main>oops" in text and "abc[U+202E]gnp.exe" in text
    assert page.locator("main section").count() == page.locator("section").count() > 8
    assert (dialogs, complaints) == ([], [])
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 100)")


def test_a_phone_needs_no_sideways_scrolling(browser, report):
    page = browser.new_page(viewport=PHONE, is_mobile=True)
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate("getComputedStyle(document.body).fontSize") == "16px"
