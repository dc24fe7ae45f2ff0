"""The drift section shows what the gates of drift kept, whatever candidates are called and whatever is missing."""

import numpy as np
import pytest

from semlabel import gates
from semlabel.html_report.drift import drift_section
from tests.gate_cases import MOVED, SHIFTED, data_drift, label_drift
from tests.test_html_report import RIGHT_TO_LEFT, SCRIPT, TABLE, Elements

HOSTILE = [SCRIPT, TABLE, RIGHT_TO_LEFT, "<!--read from the warehouse-->"]


def rows(*results):
    return [result.to_json() for result in results]


def test_moved_shares_stand_with_their_span_and_flips_with_their_reason():
    labels = label_drift([MOVED | {"arrived": 0.2}], reasons={"entity_text": 3, "threshold": 1200})
    page = drift_section(rows(labels, data_drift([SHIFTED])))
    assert Elements(page).rows == [
        ["share of YES of", "over", "before", "now", "new entities", "to YES", "to NO", "p"],
        ["c1", "tonight", "10.00%", "15.00%", "20.00%", "250", "0", "1e-60"],
        ["labels that flipped because", "labels"],
        ["the entity's text was edited", "3"],
        ["the threshold moved", "1,200"],
        ["measure", "against", "before", "now", "p"],
        ["text length", "the version before", "900", "700", "1e-09"],
        ["measure", "mean", "entities"],
        ["text length", "6.8", "200"],
    ]
    assert labels.sentence in page


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text(name):
    found = drift_section(
        rows(
            label_drift([MOVED | {"name": name, "span": name}], reasons={name: 1}),
            data_drift([SHIFTED | {"name": name, "against": name}], [{"name": name, "share": 1, "entities": 1}]),
        )
    )
    elements = Elements(found)
    known = {
        "section",
        "h2",
        "h3",
        "p",
        "bdi",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
    }
    assert set(elements.tags) <= known and len(elements.rows) == 8
    assert "\u202e" not in found and "<!--" not in found


def test_a_quiet_night_and_a_new_labeler_say_so_without_empty_tables():
    quiet = drift_section(rows(label_drift(), data_drift()))
    assert "No share of YES moved by more than chance" in quiet and "None." not in quiet
    assert [row[0] for row in Elements(quiet).rows] == ["measure", "text length"]
    fresh = drift_section(rows(label_drift(nights=0, churn=0.125), data_drift(nights=0)))
    assert "12.5% of the published labels change with it" in fresh


def test_what_was_not_asked_or_not_computed_is_said():
    assert drift_section([]).count("was not asked in this run") == 2
    broken = drift_section(rows(gates.cannot_compute("label_rate_drift", "no <rows>"), data_drift()))
    assert "could not be computed (no &lt;rows&gt;)" in broken and broken.count("was not asked") == 0


def test_damaged_evidence_is_no_reason_for_a_report_to_fail():
    row = label_drift([MOVED]).to_json()
    row["evidence"] = {"findings": [None, {"name": None, "before": "high", "p": True}], "flips_by_reason": [1]}
    assert Elements(drift_section([row])).rows[1] == ["None", "None", "-", "-", "-", "-", "-", "-"]
    row["evidence"] = {"findings": "all"}
    assert drift_section([row])


def test_more_findings_than_fit_are_counted_and_the_newest_verdict_counts():
    many = label_drift([MOVED | {"name": f"c{n}", "moved": np.float64(0.05)} for n in range(120)])
    page = drift_section(rows(label_drift(), many))
    assert "The largest 50 of 120." in page and len(Elements(page).rows) == 51
