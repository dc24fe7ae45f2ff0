"""The report of a run: nothing in it can act, nothing is missing from it, and nobody erased is in it."""

import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from semlabel import refresh
from semlabel.calibration import Platt, brier, expected_calibration_error
from semlabel.cli import run_command
from semlabel.digests import digest_of, text_id
from semlabel.erasure import erase
from semlabel.gates import ALWAYS, GATES, GateResult
from semlabel.html_report import LATEST, complete_report, report_path, write_report
from semlabel.html_report.markup import figure, outside, table, tag
from semlabel.html_report.quality import training_section
from semlabel.html_report.subject import held_out
from semlabel.labeler_files import switch_current, write_checkpoint, write_labeler
from semlabel.manifest import KnownPair, read_manifest
from semlabel.operations import Operations
from semlabel.prompt import Prompt, PromptSpec, load_tokenizer
from semlabel.publish import publish
from semlabel.settings import load_settings
from semlabel.warehouse import Warehouse
from tests.cli_settings import smallest
from tests.tiny import DOT, save_tiny

SCRIPT, TABLE, RIGHT_TO_LEFT = "<script>alert(1)</script>", "</table></main>oops", "abc\u202egnp.exe"
CATALOG = {"c1": SCRIPT, "c2": TABLE, "c3": RIGHT_TO_LEFT, "<b>c4": 'say "no" & go'}
SPLITS = {
    "train": ("t1", "t2"),
    "calibrate": ("7", "8", "9", "10"),
    "certify": ("p1", "p2", "p3"),
    "test": ("x1", "x2"),
}
TEXTS = {entity: f"the words of {entity}" for ids in SPLITS.values() for entity in ids} | {"t2": "the words of t1"}
TAU, PLATT = 0.5, Platt(1.5, -0.25)
# References YES by entity; margins are 1 for them and -1 for all others, but for what is said here.
YES = {"t1": ("c1",), "t2": ("c2",), "7": ("c1", "c2"), "8": ("c1",), "9": ("c2",), "10": ("c3",)}
YES |= dict.fromkeys(("p1", "p2", "p3", "x1", "x2"), ("c1",))
MARGINS = {("7", "c3"): 4.0, ("8", "c3"): 0.75, ("9", "c2"): -3.0, ("10", "<b>c4"): 2.0}
RUN = "0d9e-run"
STEPS = [
    {"limit": "precision", "cut": 0.5, "flagged": 6, "point": 0.9, "bound": 0.7, "limit_value": 0.5, "ok": True},
    {"limit": "precision", "cut": 0.1, "flagged": 9, "point": 0.6, "bound": 0.4, "limit_value": 0.5, "ok": False},
]
PROVEN = {
    "sentence": "At margin 0.500, certified: precision is 0.900.",
    "steps": STEPS,
    "bounds": {"precision": 0.7},
    "policy": {"min_precision": 0.5},
}
METRICS = {
    "test": {
        "auc": {"value": 0.912, "low": 0.881, "high": 0.94},
        "precision": {"value": "nan", "low": None, "high": None},
    },
    "baselines": {"tfidf_cosine": {"auc": {"value": 0.8, "low": 0.7, "high": 0.9}}},
}


def margin(entity_id: str, candidate_id: str) -> float:
    return MARGINS.get((entity_id, candidate_id), 1.0 if candidate_id in YES[entity_id] else -1.0)


class World:
    """A project with a labeler, its margins, its verdicts and one finished run."""

    def __init__(self, root: Path) -> None:
        self.root, self.settings = root, load_settings(root / "pipeline.toml")
        self.operations = Operations(self.settings.paths.ops)

    def change(self, more: str) -> None:
        (self.root / "pipeline.toml").write_text(smallest() + more)
        self.settings = load_settings(self.root / "pipeline.toml")

    def opened(self) -> Warehouse:
        return Warehouse.open(self.settings.paths.warehouse, memory_limit="500MB", threads=1)

    def report(self, run_id: str = RUN) -> str:
        return complete_report(self.settings, self.operations, run_id).read_text(encoding="utf-8")

    def say(self, gate: str, verdict: str, sentence: str, subject: str = "s", evidence=None, run_id: str = RUN) -> None:
        result = GateResult(gate, GATES[gate].asset, "ERROR", verdict, 0.25, 0.5, sentence, evidence or {})
        self.operations.record_gate(run_id, result, None, subject, "1")

    def labeler(self, threshold: float | None, **evidence):
        result = SimpleNamespace(threshold=threshold, policy={"min_precision": 0.5}, word="certified")
        paths = self.settings.paths
        _, path = write_labeler(paths.labelers, paths.checkpoints / "c", result, PLATT, evidence=evidence)
        return read_manifest(path)

    def score(self, manifest) -> None:
        of_text = {text: entity for entity, text in reversed(TEXTS.items())}
        candidates = {text: candidate for candidate, text in CATALOG.items()}

        def scored(entity_text, candidate_texts):
            entity = of_text[entity_text]
            return np.array([margin(entity, candidates[text]) for text in candidate_texts], dtype=np.float32)

        with self.opened() as warehouse:
            warehouse.activate_labeler(manifest.digest, manifest.scorer_digest, manifest.threshold, PLATT.a, PLATT.b)
            plan = refresh.plan(warehouse, manifest.scorer_digest, None, 100)
            refresh.execute(plan, warehouse, self.operations, scored, RUN)

    def publish(self, manifest, run_id: str = RUN) -> None:
        with self.opened() as warehouse:
            publish(
                warehouse,
                self.operations,
                SimpleNamespace(keep=7, uncertified_candidates="publish"),
                self.settings.paths.published,
                manifest.model_dump(mode="json"),
                [],
                run_id,
                recheck=lambda: None,
            )


def sources(warehouse: Warehouse, texts=TEXTS) -> None:
    split_of = {entity: split for split, ids in SPLITS.items() for entity in ids}
    rows = [
        {
            "entity_id": entity,
            "text": text,
            "split": split_of[entity],
            "group_id": 1 if entity in ("t1", "t2") else number,
        }
        for number, (entity, text) in enumerate(texts.items(), start=2)
    ]
    warehouse.replace_entities(pd.DataFrame(rows), RUN)
    catalog = pd.DataFrame({"candidate_id": list(CATALOG), "text": list(CATALOG.values())}, dtype=str)
    warehouse.replace_catalog(catalog.assign(certified=True), RUN)
    listed = [(entity, candidate, True) for entity in texts for candidate in YES[entity]]
    warehouse.replace_references(pd.DataFrame(listed, columns=["entity_id", "candidate_id", "label"]), RUN)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("report")
    (root / "pipeline.toml").write_text(smallest())
    world = World(root)
    world.settings.paths.create()
    spec = PromptSpec("{entity} {candidate}", "readout", "Yes", "No", None, 64, 32)
    model = save_tiny(root / "model")
    write_checkpoint(
        world.settings.paths.checkpoints / "c",
        model,
        prompt=Prompt(spec, load_tokenizer(str(model))),
        base_model="tiny",
        precision="fp32",
        known_pairs=[KnownPair(query="a", candidate="b", margin=0.0)],
    )
    manifest = world.labeler(TAU, threshold_result=PROVEN)
    switch_current(world.settings.paths.labelers, manifest.digest)
    world.operations.start_run(RUN, "everything")
    with world.opened() as warehouse:
        sources(warehouse)
        warehouse.add_refused(RUN, "references", [("7 / c9", "contradictory: listed as YES and as NO")])
    world.score(manifest)
    world.publish(manifest)
    use = world.operations.begin_certify(digest_of(sorted(SPLITS["certify"])), "asked", SPLITS["certify"])
    world.operations.complete_certify(use, manifest.digest)
    world.operations.save_metrics(manifest.digest, METRICS)
    world.say("held_out_errors", "pass", "Shown.", manifest.digest)
    world.say("volume_change", "fail", f"{SCRIPT} flipped; look at '7'.", evidence={"flips": [{"candidate_id": TABLE}]})
    world.operations.finish_run(RUN, "FAILURE")
    return root


@pytest.fixture
def drawn(template, tmp_path) -> World:
    """A world whose report has its pictures."""
    shutil.copytree(template, tmp_path / "w", symlinks=True)
    return World(tmp_path / "w")


@pytest.fixture
def world(drawn, monkeypatch) -> World:
    """One with a dot for every picture: drawing is most of a report's time."""
    monkeypatch.setattr("semlabel.report._png", lambda *figure, **options: DOT)
    return drawn


@pytest.fixture(scope="module")
def page(template, tmp_path_factory) -> str:
    """The report with texts, read and not changed by the tests."""
    shutil.copytree(template, tmp_path_factory.mktemp("page") / "w", symlinks=True)
    world = World(tmp_path_factory.getbasetemp() / "page0" / "w")
    world.change("[report]\ntexts = true\n")
    return world.report()


class Elements(HTMLParser):
    """Every element and attribute of a page, with the cells of its tables; fails where the nesting is broken."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "img"):
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "td" in self._open or "th" in self._open:
            self.rows[-1][-1] += data


def part(page: str, title: str) -> str:
    """One section of a page."""
    return "<section>" + page[page.index(f"<h2>{title}</h2>") :].partition("</section>")[0] + "</section>"


# --- nothing in it can act


def test_hostile_texts_stay_texts(page):
    elements = Elements(page)
    assert "script" not in elements.tags and "b" not in elements.tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<bdi>&lt;/table&gt;&lt;/main&gt;oops</bdi>" in page
    assert "<bdi>abc[U+202E]gnp.exe</bdi>" in page and "\u202e" not in page
    assert not [name for name, _ in elements.attributes if name.startswith("on")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"><img onerror=x>', "<bdi>&quot;&gt;&lt;img onerror=x&gt;</bdi>"),
        ("\u2069\u2066", "<bdi>[U+2069][U+2066]</bdi>"),
        ("a\x00\x1b[2Jb", "<bdi>a[U+0000][U+001B][2Jb</bdi>"),
        ("half \ud800 a pair", "<bdi>half [U+D800] a pair</bdi>"),
        ("<!--read from the warehouse-->", "<bdi>&lt;!--read from the warehouse--&gt;</bdi>"),
        ("क्\u200dष", "<bdi>क्\u200dष</bdi>"),
        ("x" * 200, f"<bdi>{'x' * 119}…</bdi>"),
    ],
)
def test_no_text_ends_the_element_it_stands_in(text, shown):
    assert outside(text) == shown


def test_what_nobody_escaped_is_escaped_by_the_element():
    assert tag("p", "<b>", tag("i", "&"), title='"') == '<p title="&quot;">&lt;b&gt;<i>&amp;</i></p>'
    assert table(["<"], []) == "<p>None.</p>"
    assert [figure(value) for value in (None, float("nan"), 1234, 0.12345)] == ["-", "-", "1,234", "0.1235"]


def test_the_page_asks_nobody_for_anything(page):
    elements = Elements(page)
    assert "http:" not in page and "https:" not in page and "url(" not in page and "@import" not in page
    addresses = [value for name, value in elements.attributes if name in ("src", "href", "srcset", "action", "data")]
    assert addresses and all(value.startswith(("data:image/png;base64,", "#gate-")) for value in addresses)
    assert not {"script", "link", "iframe", "object", "embed", "form"} & set(elements.tags)
    assert "default-src 'none'" in page


def test_a_phone_shows_it_in_its_own_width(page):
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert page.count('<div class="scroll"><table>') == page.count("<table>")
    assert "max-width: 100%" in page


def test_a_report_stays_below_two_megabytes_whatever_is_said(drawn):
    long = "&<" * 100_000
    rows = [{"entity_id": long, "candidate_id": long, "reason": long, "margin": 1.0} for _ in range(50)]
    for gate in GATES:
        drawn.say(gate, "fail", long, evidence={"rows": rows, "more": rows})
    assert 100_000 < len(drawn.report().encode()) < 2_000_000


# --- it says what there is to say


def test_every_gate_is_shown_with_verdict_value_limit_and_sentence_or_as_not_asked(page):
    gates = part(page, "Stages and gates")
    for gate in ALWAYS:
        assert gates.count(f"<strong><bdi>{gate}</bdi></strong>") == 1
    assert gates.count("was not asked in this run") == len(ALWAYS) - 2
    red = gates[gates.index("<strong><bdi>volume_change") :]
    assert red.index("FAIL") < red.index("value 0.25, limit 0.5") < red.index("flipped; look at") < red.index("</div>")
    mend = red[red.index("What to do") :]
    assert mend.index("How to fix") < mend.index("If a source is wrong") < mend.index("How to recover")
    assert "semlabel alerts explain volume_change" in red and "docs/runbook" not in page
    assert "2 gates were asked in this run, 1 did not pass." in gates
    # What is red can be reached from the top: a phone shows three gates at a time.
    linked = [value for name, value in Elements(gates).attributes if name == "href"]
    assert linked == ["#gate-volume_change"]
    assert {"gate-volume_change"} < {value for name, value in Elements(gates).attributes if name == "id"}


def test_the_cut_is_shown_with_its_bounds_and_the_walk(page):
    told = part(page, "Threshold")
    assert PROVEN["sentence"] in told
    assert 'alt="precision and recall on certify"' in told and 'alt="the walk to the cut for precision"' in told
    assert "The walk for precision, declared 0.5" in told
    assert ["0.5", "6", "0.9", "0.7", "yes"] in Elements(told).rows


def test_calibration_is_measured_before_and_after_on_calibrate_and_on_certify(page):
    rows = Elements(part(page, "Probabilities")).rows[1:]
    assert [(row[0].split()[0], row[1]) for row in rows] == [
        ("calibrate", "before"),
        ("calibrate", "after"),
        ("certify", "before"),
        ("certify", "after"),
    ]
    pairs = [(entity, candidate) for entity in SPLITS["calibrate"] for candidate in CATALOG]
    margins, labels = [margin(*pair) for pair in pairs], [candidate in YES[entity] for entity, candidate in pairs]
    for row, fitted in zip(rows, (Platt(1, 0), PLATT), strict=False):
        probability = fitted.probability(margins)
        assert row[2] == figure(expected_calibration_error(probability, labels))
        assert row[3] == figure(brier(probability, labels))


def test_the_worst_candidates_are_those_with_the_lowest_precision_and_recall(page):
    rows = Elements(part(page, "Worst candidates")).rows
    # Labeled YES: c3 for 7 and 8 (both wrong) and 10 (right), <b>c4 for 10 (wrong); c2 misses 9.
    assert [(row[0][:4], *row[1:]) for row in rows] == [
        ("cand", "precision", "recall", "labeled YES", "reference YES", "both"),
        ("<b>c", "0", "-", "1", "0", "0"),
        ("c3ab", "0.333", "1", "3", "1", "1"),
        ("cand", "precision", "recall", "labeled YES", "reference YES", "both"),
        ("c2</", "1", "0.5", "1", "2", "1"),
    ]


def test_the_confusing_pairs_come_in_order_and_the_sure_ones_are_marked(page):
    rows = [row for row in Elements(part(page, "Confusing pairs")).rows if row[0] != "entity"]
    assert [(row[0].partition("the words")[0], row[2]) for row in rows] == [
        ("7", "4"),
        ("10", "2"),
        ("8", "0.75"),
        ("9", "-3"),
    ]
    assert [row[3].endswith(" (?)") for row in rows] == [True, False, False, True]
    assert PLATT.probability(2.0) < 0.95 < PLATT.probability(4.0)


def test_contradictory_references_are_shown(page):
    told = part(page, "References that look wrong")
    rows = Elements(told).rows
    assert ["contradictory: listed as YES and as NO", "1"] in rows
    assert ["7 / c9"] in rows
    assert "2 times two near-duplicates" in told
    assert [row[0][:2] + row[1][:2] + row[2][:2] + row[3] for row in rows[-2:]] == [
        "t1t2c1not listed",
        "t2t1c2not listed",
    ]


def test_texts_of_entities_are_shown_only_where_the_settings_ask_for_them_and_candidates_by_name(world, page):
    without = world.report()
    assert "the words of" in page and "the words of" not in without
    assert "gnp.exe" in page and "gnp.exe" in without


def test_a_command_that_writes_a_report_keeps_fonts_in_the_project_and_not_in_a_home(world, monkeypatch):
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    world.report()
    assert os.environ["MPLCONFIGDIR"] == str(world.settings.paths.temporary / "fonts")


def test_the_loss_of_a_training_is_in_its_report(page):
    assert "No training is known." in part(page, "Training")
    trained = SimpleNamespace(training={"loss_curve": [[1, 0.7], [2, 0.5]], "pairs": 80, "steps": 2})
    told = str(training_section(trained))
    assert "80 pairs in 2 steps of the optimiser." in told and "training loss" in told


def test_a_report_that_was_asked_for_during_the_run_is_read_at_its_end(world):
    world.operations.start_run("now", "nightly_labeling")
    during = world.report("now")
    assert "The run has not ended yet" in during and "What follows was read" not in during
    world.operations.finish_run("now", "FAILURE")
    after = world.report("now")
    assert "has not ended yet" not in after and "What follows was read" in after


def test_a_report_never_looks_at_test(world, page):
    shown = set(re.findall(r'data-entity="([^"]*)"', page))
    named = {digest for digests in shown for digest in digests.split()}
    assert text_id("7") in named
    assert not named & {text_id(entity) for entity in (*SPLITS["test"], *SPLITS["certify"])}
    rows = Elements(part(page, "Quality on test")).rows
    assert rows[1:] == [
        ["this labeler", "0.912 (0.881-0.940)", "-", "-", "-"],
        ["tfidf_cosine", "0.800 (0.700-0.900)", "-", "-", "-"],
    ]
    manifest = read_manifest(world.settings.paths.labelers / "current")
    with world.opened() as warehouse, pytest.raises(ValueError, match="not for reports"):
        held_out(warehouse, manifest, "test", "negative")


def test_certify_entities_that_this_labeler_was_not_proven_on_stay_unseen(world):
    with world.opened() as warehouse:
        sources(warehouse, {entity: text for entity, text in TEXTS.items() if entity != "p3"})
    told = world.report()
    assert "would be a further look" in part(told, "Threshold")
    assert 'alt="precision and recall on calibrate"' in told
    assert not [row for row in Elements(part(told, "Probabilities")).rows if row[0].startswith("certify")]


def test_a_look_that_was_begun_and_never_ended_shows_no_certify_entity(world):
    # As after a kill between the labeler and its verdict: no labeler stands in the row, though one lies in its folder.
    world.operations.file.rows("UPDATE certify_ledger SET labeler_digest = ''")
    assert "would be a further look" in part(world.report(), "Threshold")


def test_what_changed_is_told_with_its_reason(world):
    manifest = read_manifest(world.settings.paths.labelers / "current")
    with world.opened() as warehouse:
        sources(warehouse, {entity: text for entity, text in TEXTS.items() if entity != "8"})
    world.operations.start_run("later", "nightly_labeling")
    world.publish(manifest, "later")
    told = part(world.report("later"), "What changed since the last publication")
    rows = Elements(told).rows
    assert ["rows", "44", "40"] in rows and ["the pair is gone", "4"] in rows
    assert ["8", "c1", "YES to none", "1 to -", "the pair is gone"] in rows
    assert "This is the first version" in world.report(RUN)


# --- what is missing is a sentence


def test_a_project_that_failed_at_once_has_a_report(tmp_path):
    (tmp_path / "pipeline.toml").write_text(smallest())
    settings = load_settings(tmp_path / "pipeline.toml")
    operations = Operations(settings.paths.ops)
    operations.start_run("r1", "everything")
    operations.finish_run("r1", "FAILURE")
    told = complete_report(settings, operations, "r1").read_text()
    for sentence in (
        "There is no labeler yet.",
        "No gate was asked in this run",
        "Nothing was ever published.",
        "Nothing was measured on test",
        "There is no warehouse yet",
    ):
        assert sentence in told
    Elements(told)


def test_a_warehouse_without_a_labeler_has_a_report(world):
    shutil.rmtree(world.settings.paths.labelers)
    told = world.report()
    assert "There is no labeler yet, so there are no margins to show." in told
    assert "2 times two near-duplicates" in told


def test_a_labeler_that_certified_nothing_has_a_report(world):
    sentence = "Too little data on 3 held-out entities; judge about 40 more."
    manifest = world.labeler(None, threshold_result={"sentence": sentence, "steps": [], "bounds": {}})
    world.say("held_out_errors", "not_enough_data", sentence, manifest.digest)
    told = world.report()
    assert sentence in part(told, "Threshold") and "none: min_precision 0.5 could not be shown" in told
    assert "no candidate has a precision" in part(told, "Worst candidates")
    assert "simply the extremes" in part(told, "Confusing pairs")
    assert "There are no predictions of this labeler." in part(told, "Margins")


def test_a_checkpoint_whose_gate_was_red_is_what_the_report_shows(world):
    checkpoint = read_manifest(world.settings.paths.checkpoints / "c")
    world.operations.start_run("r2", "train_labeler")
    world.say("held_out_quality", "fail", "AUC is too low.", checkpoint.scorer_digest, run_id="r2")
    world.operations.finish_run("r2", "FAILURE")
    told = world.report("r2")
    assert "not chosen yet" in part(told, "The run")
    assert checkpoint.digest[:12] in part(told, "The run")
    assert "the run ended before one was looked for" in part(told, "Threshold")
    assert "No probability map was fitted yet" in told


def test_a_damaged_labeler_or_warehouse_does_not_cost_the_report(world):
    next(world.settings.paths.labelers.glob("*/labeler.json")).write_text("{}")
    world.settings.paths.warehouse.write_bytes(b"no database at all" * 1000)
    told = world.report()
    assert "labeler.json" in part(told, "The run")
    assert "Nothing was read from the warehouse" in told and "warehouse.duckdb" in part(told, "Pairs")
    assert "flipped; look at" in told


# --- where it lies


def test_what_was_read_stays_when_the_report_is_written_again_without_the_warehouse(world):
    before = world.report()
    world.say("order_invariance", "pass", "Said later.")
    world.settings.paths.warehouse.unlink()
    after = complete_report(world.settings, world.operations, RUN, read=False).read_text()
    assert "Said later." in after and "Said later." not in before
    assert part(after, "Confusing pairs") == part(before, "Confusing pairs")
    assert world.report() == after


def test_while_the_warehouse_is_held_a_report_is_made_without_it_and_read_later(world):
    with world.operations.lease("warehouse", "other", 0):
        first = world.report()
        assert "Read it with: semlabel report --run 0d9e-run" in first and "other" in part(first, "Pairs")
        assert world.report() == first
    assert "Confusing pairs" in world.report()


def test_the_latest_report_is_that_of_the_latest_run_and_old_ones_go(world):
    world.change("[report]\nkeep = 2\n")
    reports = world.settings.paths.reports
    for number in range(3):
        world.operations.start_run(f"r{number}", "nightly_labeling")
        write_report(world.settings, world.operations, f"r{number}")
    assert (reports / LATEST).read_text() == (reports / "r2.html").read_text()
    assert sorted(path.name for path in reports.iterdir()) == [LATEST, "r1.html", "r2.html"]
    world.report(RUN)
    assert (reports / LATEST).read_text() == (reports / "r2.html").read_text()


def test_an_erased_entity_is_in_no_report_however_its_id_looks(world):
    report, reports = world.report(), world.settings.paths.reports
    assert text_id("7") in report
    (reports / "quoted.html").write_text("<p>look at &#x27;7&#x27;</p>")
    (reports / "nobody.html").write_text("<p>7 gates</p>")
    receipt = erase("7", world.settings, world.operations)
    assert receipt.counts["reports"] == 3
    assert [path.name for path in reports.iterdir()] == ["nobody.html"]
    again = world.report()
    assert text_id("7") not in again and "look at &#x27;7&#x27;" not in again
    assert "Confusing pairs" in again


# --- the command


def test_the_command_writes_what_is_missing_and_prints_where_it_is(world, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    config = ["--config", str(world.root / "pipeline.toml")]
    path = report_path(world.settings, RUN)
    assert not path.exists()
    assert run_command(["report", *config]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert "Confusing pairs" in path.read_text()
    assert run_command(["report", "--run", "0d9", "--open", *config]) == 0
    assert opened == [path.as_uri()]
    assert run_command(["report", "--run", "nope", *config]) == 2
    assert "no single run is called" in capsys.readouterr().err
