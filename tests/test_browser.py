"""What a browser shows: in the report hostile text stays text, nothing is asked for, a phone needs no sideways
scrolling and reaches what is red; Dagster's UI has the gates of a run.

Needs Debian's chromium; where it is absent these tests are skipped, not passed.
"""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.pipeline_fixtures import TinyProject, make_project
from tests.receivers import closed_port
from tests.test_html_report import World, template  # noqa: F401

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium")
PHONE = {"width": 390, "height": 844}
INVARIANT = ("mis_matches_single_item", "order_invariance")
ROOT = Path(__file__).resolve().parent.parent


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


def test_a_phone_reaches_what_is_red_with_one_touch(browser, report):
    page = browser.new_page(viewport=PHONE, is_mobile=True)
    page.goto(report.as_uri())
    page.get_by_role("link", name="volume_change").click()
    top = page.locator("#gate-volume_change").bounding_box()["y"]
    assert 0 <= top < PHONE["height"] / 2
    assert page.locator("#gate-volume_change .verdict").inner_text() == "FAIL"


def command(project: TinyProject, *arguments: str) -> list[str]:
    options = ["--config", str(project.config), "--workspace", str(ROOT / "workspace.yaml")]
    return [sys.executable, "-m", "semlabel", *arguments, *options]


@contextmanager
def ui(project: TinyProject) -> Iterator[str]:
    """The address of Dagster's UI on the project's history, for as long as the block runs."""
    port = closed_port()
    with (project.root / "ui.log").open("w") as log:
        started = subprocess.Popen(
            command(project, "ui", "--port", str(port)), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        # Its daemon and servers are in one group; none of them is needed again, and where a shell started the tests in
        # the background they all ignore what could be asked of them.
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def wait_for(page, address: str) -> None:
    """Open the address as soon as somebody answers there."""
    while True:
        try:
            urllib.request.urlopen(address, timeout=60).close()
            break
        except OSError:
            page.wait_for_timeout(500)
    page.goto(address, wait_until="domcontentloaded")


@pytest.mark.timeout(1800)
def test_the_ui_of_dagster_shows_which_gate_of_a_run_failed_and_why(browser, tmp_path):
    project = make_project(tmp_path / "labeled")
    project.change(gates={"min_auc": 0.9999})
    assert subprocess.run(command(project, "run"), cwd=ROOT, capture_output=True).returncode == 1
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(300_000)
    with ui(project) as address:
        wait_for(page, f"{address}/assets/checkpoint?view=checks")
        page.get_by_text("0.9999 is asked").first.wait_for()
        shown = page.inner_text("body").split("\n")
    # Each gate stands there twice, for its link and its tooltip, and then what it said.
    said = {gate: shown[shown.index(gate) + 2] for gate in ("held_out_quality", *INVARIANT)}
    assert said == {"held_out_quality": "Failed"} | dict.fromkeys(INVARIANT, "Succeeded")
