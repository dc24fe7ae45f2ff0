"""The run and the stages of the recipe: which gate stands after which, and what each of them said.

Knows rows of `ops.sqlite` and the list of gates. A gate that was not asked is shown as such, and a gate that no stage
names is shown at the end: nothing that was said is left out.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from semlabel.errors import SemlabelError
from semlabel.gates.registry import ALWAYS, GATES
from semlabel.gates.result import VERDICT_WORDS
from semlabel.html_report.markup import Html, entity, figure, joined, link, outside, paragraph, section, table, tag
from semlabel.runbook import paragraphs

if TYPE_CHECKING:
    from semlabel.manifest import Manifest
    from semlabel.settings import Settings

STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Sources", ("catalog_contract", "entities_contract", "pairs_contract", "splits_do_not_leak")),
    ("Prompt", ("answers_are_single_tokens", "split_tokens_match")),
    ("Training", ("held_out_quality",)),
    ("Readout", ("held_out_errors",)),
    (
        "Inference",
        (
            "mis_matches_single_item",
            "order_invariance",
            "predictions_contract",
            "coverage_is_complete",
            "shortlist_recall",
        ),
    ),
    ("Integration", ("one_labeler_everywhere",)),
    ("Publication", ("volume_change", "label_rate_drift", "data_drift", "snapshot_matches_warehouse")),
)
_CLASSES = {"pass": "pass", "fail": "fail", "not_enough_data": "wait"}
_TO_DO = ("How to fix", "How to recover")
_MOST_OF_A_SENTENCE = 1_000
_MOST_ROWS = 20
_MOST_COLUMNS = 8
# Texts of entities and candidates may stand in evidence; these columns hold none.
_NAMES = ("name", "rule", "reason", "split", "other_split", "near_duplicate", "entity")


def run_section(run: Mapping[str, Any], labeler: "Manifest | None", trouble: str | None) -> Html:
    """Which run this is, how it ended, what it cost and which labeler it is about."""
    facts: list[tuple[str, Any]] = [
        ("run", outside(run["run_id"])),
        ("job", outside(run["job"])),
        ("status", run["status"]),
        ("started", f"{run['started_at'][:19]} UTC"),
        ("finished", f"{run['finished_at'][:19]} UTC" if run["finished_at"] else "not yet, or nobody noted it"),
        ("pairs", f"{figure(run['pairs_scored'])} scored, {figure(run['pairs_reused'])} reused"),
    ]
    if run["note"]:
        facts.append(("note", outside(run["note"], _MOST_OF_A_SENTENCE)))
    if labeler is None:
        facts.append(("labeler", outside(trouble, _MOST_OF_A_SENTENCE) if trouble else "There is no labeler yet."))
    else:
        facts += [
            ("labeler", f"{labeler.digest[:12]}, {labeler.precision}"),
            ("base model", outside(labeler.base_model)),
            ("threshold", _threshold(labeler)),
        ]
        if labeler.shortlist is not None:
            lists = labeler.shortlist
            facts.append(("shortlists", joined([f"{lists.size} candidates an entity, by ", outside(lists.encoder)])))
    return section("The run", table(["", ""], facts))


def gates_section(rows: Sequence[Mapping[str, Any]], settings: "Settings") -> Html:
    """Every stage with its gates: verdict, value, limit, sentence; for what did not pass also the rows behind it."""
    newest = {str(row["gate"]): row for row in rows}
    stages = tuple(
        (stage, tuple(gate for gate in gates if gate in ALWAYS or gate in newest)) for stage, gates in STAGES
    )
    named = {gate for _, gates in STAGES for gate in gates}
    others = tuple(gate for gate in dict.fromkeys([*ALWAYS, *newest]) if gate not in named)
    stages = (*stages, ("Other gates", others)) if others else stages
    red = [row for row in newest.values() if row["verdict"] != "pass"]
    asked = f"{len(newest)} gates were asked in this run, {len(red)} did not pass."
    parts = [paragraph(asked if rows else "No gate was asked in this run: it ended before the first one.")]
    parts += [paragraph(link(_place(row["gate"]), outside(row["gate"])), f" {_word(row)}") for row in red]
    for stage, gates in stages:
        parts.append(tag("h3", stage))
        parts += [_gate(gate, newest.get(gate), settings) for gate in gates]
    return section("Stages and gates", *parts)


def _gate(gate: str, row: Mapping[str, Any] | None, settings: "Settings") -> Html:
    name = tag("strong", outside(gate))
    if row is None:
        return tag("div", paragraph(name, " was not asked in this run."), class_="gate", id=_place(gate))
    warns = "" if row["severity"] == "ERROR" else ", a warning"
    compared = f", value {figure(row['value'])}, limit {figure(row['limit'])}{warns}"
    head = paragraph(name, " ", tag("span", _word(row), class_="verdict"), compared)
    parts = [head, paragraph(outside(row["sentence"], _MOST_OF_A_SENTENCE))]
    if row["verdict"] != "pass":
        parts += _evidence(row["evidence"], settings.report.texts)
        if gate in GATES:
            parts.append(_what_to_do(gate))
    if "replayed_from" in row["evidence"]:
        parts.append(tag("p", "Repeated: what it judges is unchanged.", class_="small"))
    return tag("div", *parts, class_=f"gate {_CLASSES.get(row['verdict'], 'wait')}", id=_place(gate))


def _what_to_do(gate: str) -> Html:
    """The runbook's words on how to mend and recover; a page that is missing is no reason to have no report."""
    try:
        told = [(heading, paragraphs(gate, heading)) for heading in _TO_DO]
    except SemlabelError as error:
        return tag("p", str(error), class_="small")
    parts = [part for heading, texts in told for part in (tag("h4", heading), *map(paragraph, texts))]
    where = tag("p", f"The whole page: semlabel alerts explain {gate}", class_="small")
    return tag("details", tag("summary", "What to do"), *parts, where)


def _word(row: Mapping[str, Any]) -> str:
    return VERDICT_WORDS.get(row["verdict"], row["verdict"])


def _place(gate: Any) -> str:
    return f"gate-{gate}"


def _evidence(evidence: Mapping[str, Any], texts: bool) -> list[Html]:
    """The first rows of each list of rows in the evidence; columns that may hold a text only where texts are wanted."""
    found = []
    for name, value in evidence.items():
        rows = [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
        columns = [column for column in (rows[0] if rows else ()) if _shown(column, rows[0][column], texts)]
        if columns:
            columns = columns[:_MOST_COLUMNS]
            cells = [[_cell(row.get(column)) for column in columns] for row in rows[:_MOST_ROWS]]
            found.append(tag("details", tag("summary", outside(name), f": {len(rows)} rows"), table(columns, cells)))
    return found


def _shown(column: str, value: Any, texts: bool) -> bool:
    if isinstance(value, str):
        return texts or column.endswith("_id") or column in _NAMES
    return value is None or isinstance(value, bool | int | float)


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return entity(value)
    return figure(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _threshold(labeler: "Manifest") -> str:
    promised = [f"{name} {value:g}" for name, value in labeler.policy.items() if isinstance(value, int | float)]
    told = " and ".join(promised) or "no policy"
    if labeler.threshold is None:
        return f"none: {told} could not be shown" if promised else "not chosen yet"
    return f"margin {labeler.threshold:.4g}, {labeler.certified} for {told}"
