"""Alerts are bounded and plain, and say where to go, whatever a gate was told by its sources."""

from pathlib import Path

import pytest

from semlabel import runbook
from semlabel.alert_text import MOST_IN_SENTENCE, alert_text, plain
from semlabel.errors import SettingsError
from semlabel.gates.registry import GATES
from semlabel.run_news import RUN
from semlabel.settings import load_settings
from tests.cli_settings import smallest

RUNBOOK = Path(__file__).resolve().parent.parent / "docs" / "runbook"

ROW = {
    "id": 17,
    "incident": 17,
    "asset": "checkpoint",
    "gate": "held_out_quality",
    "severity": "ERROR",
    "kind": "failed",
    "verdict": "fail",
    "message": "Held-out AUC is 0.61, but 0.9 is asked: train on more pairs.",
    "run_id": "4f1c",
    "created_at": "2026-03-01T04:05:06.000007+00:00",
    "value": 0.61,
    "limit_value": 0.9,
}


@pytest.fixture
def settings(tmp_path):
    def write(more=""):
        (tmp_path / "pipeline.toml").write_text(smallest() + more)
        return load_settings(tmp_path / "pipeline.toml")

    return write


def test_an_alert_says_what_happened_what_to_do_and_where_to_look(settings):
    project = settings(
        '[environment]\nname = "prod"\n[alerts]\nui_url = "https://ui.example/"\n'
        'reports_url = "https://files.example/r"\nrunbook_url = "https://git.example/runbook"\n'
    )
    assert alert_text(ROW, project) == (
        "semlabel prod: held_out_quality failed (ERROR)",
        """Held-out AUC is 0.61, but 0.9 is asked: train on more pairs.

Gate: held_out_quality of checkpoint, fail, severity ERROR
Value: 0.61, limit: 0.9
Run: https://ui.example/runs/4f1c
Report: https://files.example/r/4f1c.html
Runbook: https://git.example/runbook/held_out_quality.md
Owner: team:labeling
Alert 17 of incident 17, 2026-03-01T04:05:06 UTC
No reminders until it recovers: semlabel alerts ack 17""",
    )


def test_without_addresses_of_its_own_an_alert_names_the_run_and_the_files(settings):
    project = settings()
    title, body = alert_text(ROW | {"value": None, "limit_value": None}, project)
    assert title == "semlabel: held_out_quality failed (ERROR)"
    assert "\nRun: 4f1c\n" in body
    assert f"\nReport: {project.paths.reports / '4f1c.html'}\n" in body
    assert "\nRunbook: semlabel alerts explain held_out_quality\n" in body
    assert "\nValue: none, limit: none\n" in body


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://docs.example/runbook/{gate}.html", "https://docs.example/runbook/held_out_quality.html"),
        ("https://docs.example/?page={gate}", "https://docs.example/?page=held_out_quality"),
        ("https://git.example/docs/runbook", "https://git.example/docs/runbook/held_out_quality.md"),
    ],
)
def test_the_runbook_link_fits_a_built_site_as_well_as_a_repository(settings, url, found):
    _, body = alert_text(ROW, settings(f'[alerts]\nrunbook_url = "{url}"\n'))
    assert f"\nRunbook: {found}\n" in body


def test_a_runbook_address_with_another_word_in_braces_is_refused(settings):
    with pytest.raises(SettingsError, match=r"runbook_url\b.*write https://HOST/PATH/\{gate\}\.html"):
        settings('[alerts]\nrunbook_url = "https://docs.example/{Gate}.html"\n')


def test_a_failed_run_is_told_by_its_job_and_has_a_page_of_its_own(settings):
    row = {"gate": "run", "asset": "nightly_labeling", "value": None, "limit_value": None}
    title, body = alert_text(ROW | row | {"message": "nightly_labeling failed: no such file"}, settings())
    assert title == "semlabel: run failed (ERROR)"
    assert body.splitlines()[:4] == [
        "nightly_labeling failed: no such file",
        "",
        "Job: nightly_labeling, severity ERROR",
        "Run: 4f1c",
    ]
    assert "\nRunbook: semlabel alerts explain run\n" in body and "Gate:" not in body and "limit" not in body


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ({"verdict": "not_enough_data"}, "held_out_quality has not enough data (ERROR)"),
        ({"id": 19}, "held_out_quality still failed (ERROR)"),
        ({"id": 19, "kind": "recovered", "verdict": "pass"}, "held_out_quality recovered"),
        ({"id": 19, "kind": "recovered", "verdict": "fail"}, "held_out_quality is no longer told as ERROR"),
    ],
)
def test_the_title_alone_says_what_happened(settings, change, title):
    found, body = alert_text(ROW | change, settings())
    assert found == f"semlabel: {title}"
    assert ("alerts ack" in body) == ("kind" not in change)


def test_an_alert_that_may_have_arrived_before_says_so(settings):
    assert "You may have alert 17 already" in alert_text(ROW, settings(), interrupted=True)[1]
    assert "already" not in alert_text(ROW, settings())[1]


def test_the_longest_of_everything_still_fits_into_a_message(settings):
    long = "word " * 50_000
    row = ROW | {"message": long, "gate": long, "asset": long, "run_id": long, "verdict": long}
    title, body = alert_text(row, settings(f'[alerts]\nui_url = "https://{"u" * 5000}"\n'))
    assert len(title) < 200
    assert len(body) < 2500
    assert body.splitlines()[0] == ("word " * 100)[: MOST_IN_SENTENCE - 1] + "…"


def test_text_becomes_one_harmless_line():
    assert plain("a\x00b\r\n\tc\u2028d  e", 100) == "ab c d e"
    assert plain("<b>@here</b> \u202egnp\ufeff", 100) == "‹b›＠here‹/b› gnp"
    assert plain("see http://evil.example", 100) == "see http∶//evil.example"
    assert plain("abcdef", 4) == "abc…"


def test_every_gate_and_a_failed_run_have_a_page_that_says_what_to_do():
    assert {page.stem for page in RUNBOOK.glob("*.md")} == {*GATES, RUN}
    for page in RUNBOOK.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert [line for line in text.splitlines() if line.startswith("#")] == [
            f"# {page.stem}",
            "## What it means",
            "## How to look",
            "## How to fix",
            "## How to recover",
        ]
        assert page.stem == RUN or f"`{GATES[page.stem].asset}`" in text
    assert set(runbook.names()) == {*GATES, RUN}


@pytest.mark.parametrize("name", [*GATES, RUN])
def test_a_page_reads_as_text_where_there_is_no_documentation_around_it(name):
    text = runbook.page(name)
    assert text.startswith(f"# {name}\n") and "](" not in text
    for heading in ("How to fix", "How to recover"):
        told = runbook.paragraphs(name, heading)
        assert told
        # The report shows paragraphs and nothing else.
        assert not any(part.startswith(("|", "- ", "#", "```")) or "`" in part for part in told)
