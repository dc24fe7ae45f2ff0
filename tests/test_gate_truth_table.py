"""Which stored verdicts let anything be published: gate by gate and case by case, against the real `ops.sqlite`.

The rows are gates of the registry and the columns are cases, so that a new gate is in the table by being registered.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from assets.checks import CHECKS
from assets.verdicts import before_promotion, before_publication
from pipeline import definitions
from semlabel.digests import digest_of
from semlabel.errors import GateBlocked
from semlabel.gates import ERROR_GATES_BEFORE_PUBLICATION, GATES, required_subjects
from semlabel.operations import Operations
from semlabel.settings import Settings
from tests.gate_cases import OUTCOMES, result_of

MANIFEST = {
    "digest": "labeler",
    "scorer_digest": "scorer",
    "tokenizer_digest": "tokenizer",
    "prompt": {"digest": "prompt"},
    "training": {"pairs_digest": "pairs"},
    "shortlist": {"size": 200},
}
OTHER = {
    "digest": "another labeler",
    "scorer_digest": "another scorer",
    "tokenizer_digest": "another tokenizer",
    "prompt": {"digest": "another prompt"},
    "training": {"pairs_digest": "other pairs"},
    "shortlist": {"size": 300},
}
TABLES = {"catalog": "catalog 1", "entities": "entities 1"}
BLOCKING = {gate for gate in GATES if GATES[gate].severity == "ERROR" and GATES[gate].asset != "published_predictions"}
BEFORE_PROMOTION = {gate for gate in BLOCKING if GATES[gate].asset != "predictions"}
# The subject of an entities verdict is the entities alone: whichever labeler is in use, it stands.
OF_NO_LABELER = {"entities_contract"}
CASES = (
    *OUTCOMES,
    *("missing", "other labeler", "other subject", "older gate code", "other limits", "other publication"),
    *("red after green", "green after red"),
)
# Those that compare with the version that would be replaced; a verdict about another comparison is none.
OF_A_PUBLICATION = {"volume_change"}
ALLOWED = {"pass", "green after red"}


class Books:
    """An `ops.sqlite` in which every gate has passed for `MANIFEST` and `TABLES`, and the step that reads it."""

    def __init__(self, folder):
        definitions  # noqa: B018  loading it fills CHECKS
        settings = {"sources": {"entities": "e", "catalog": "c", "references": "r"}, "model": {"base": "b"}}
        settings |= {"prompt": {"template": "{entity} {candidate}"}, "calibration": {"min_precision": 0.5}}
        self.step = SimpleNamespace(
            operations=Operations(folder / "ops.sqlite"), settings=Settings.model_validate(settings)
        )
        self.step.settings._path = folder / "pipeline.toml"
        for gate in GATES:
            self.enter(gate, result_of(gate, "pass"))

    def subjects(self, manifest=MANIFEST, tables=TABLES):
        """The subject of every gate; those that nobody asks for before a publication have the predictions' one."""
        predictions = predictions_of(manifest, tables)
        return dict.fromkeys(GATES, predictions) | required_subjects(manifest, tables | {"predictions": predictions})

    def enter(self, gate, result, subject=None, code=None, limits=None, replaces=None):
        told = CHECKS[gate].limits_in(self.step) if limits is None else limits
        self.step.operations.record_gate(
            "run",
            replace(result, evidence=result.evidence | {"limits": told, "replaces": replaces}),
            str(MANIFEST["digest"]),
            subject or self.subjects()[gate],
            code or GATES[gate].code_version,
        )

    def forget(self, gate):
        with self.step.operations.file.transaction() as connection:
            connection.execute("DELETE FROM gate_results WHERE gate = ?", (gate,))

    def blocked(self, standing=before_publication, manifest=MANIFEST):
        """Which gates stand in the way, and that the refusal names them."""
        model = SimpleNamespace(model_dump=lambda mode: manifest)
        warehouse = SimpleNamespace(
            content_digest=TABLES.get,
            predictions_digest=lambda: predictions_of(manifest, TABLES),
            scope=lambda: {"description": "all entities"},
        )
        found = standing(self.step, warehouse, model)
        if found.blocked:
            with pytest.raises(GateBlocked) as refusal:
                found.refuse()
            assert all(row["sentence"] in str(refusal.value) for row in found.blocked)
        else:
            found.refuse()
        return {row["gate"] for row in found.blocked}


def predictions_of(manifest, tables) -> str:
    return digest_of([tables, manifest["digest"]])


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    return Books(tmp_path_factory.mktemp("books"))


def enter_case(books: Books, gate: str, case: str) -> None:
    """Make the stored verdicts of one gate those of a case."""
    books.forget(gate)
    good, bad = result_of(gate, "pass"), result_of(gate, "fail")
    if case in OUTCOMES:
        books.enter(gate, result_of(gate, case))
    elif case == "other labeler":
        books.enter(gate, good, subject=books.subjects(OTHER)[gate])
    elif case == "other subject":
        tables = {"catalog": "catalog 2", "entities": "entities 2"}
        changed = MANIFEST | {"training": {"pairs_digest": "p2"}, "scorer_digest": "s2", "digest": "l2"}
        books.enter(gate, good, subject=books.subjects(changed, tables)[gate])
    elif case == "older gate code":
        books.enter(gate, good, code="0")
    elif case == "other limits":
        books.enter(gate, good, limits={"gates.any": 0.123})
    elif case == "other publication":
        books.enter(gate, good, replaces="000001-20260101T000000Z")
    elif case == "red after green":
        books.enter(gate, good)
        books.enter(gate, bad)
    elif case == "green after red":
        books.enter(gate, bad)
        books.enter(gate, good)


def allowed(gate: str, case: str, asked: set[str]) -> bool:
    """The truth table itself."""
    compared_elsewhere = case == "other publication" and gate not in OF_A_PUBLICATION
    of_whoever = case == "other labeler" and gate in OF_NO_LABELER
    return gate not in asked or case in ALLOWED or of_whoever or compared_elsewhere


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("gate", GATES)
def test_only_a_pass_of_this_subject_by_this_rule_and_these_limits_lets_anything_be_published(books, gate, case):
    enter_case(books, gate, case)
    try:
        assert books.blocked() == (set() if allowed(gate, case, BLOCKING) else {gate})
        assert books.blocked(before_promotion) == (set() if allowed(gate, case, BEFORE_PROMOTION) else {gate})
    finally:
        books.forget(gate)
        books.enter(gate, result_of(gate, "pass"))


def test_the_gates_that_block_are_those_of_the_registry_and_each_is_checked():
    assert set(ERROR_GATES_BEFORE_PUBLICATION) == BLOCKING - {"shortlist_recall"} and set(CHECKS) == set(GATES)
    assert set(GATES) - BLOCKING == {"label_rate_drift", "data_drift", "snapshot_matches_warehouse"}


def test_the_recall_of_shortlists_is_not_asked_for_where_there_are_none(books):
    plain = {name: value for name, value in MANIFEST.items() if name != "shortlist"}
    books.forget("shortlist_recall")
    try:
        assert books.blocked(manifest=plain) == set() and books.blocked() == {"shortlist_recall"}
    finally:
        books.enter("shortlist_recall", result_of("shortlist_recall", "pass"))


def test_with_another_labeler_only_the_entities_verdict_still_stands(books):
    assert books.blocked(manifest=OTHER) == BLOCKING - OF_NO_LABELER


def test_every_red_gate_is_named_and_not_only_the_first(books):
    for gate in GATES:
        books.enter(gate, result_of(gate, "fail"))
    try:
        # A path that is unreachable only warns; here it answers with another labeler.
        assert books.blocked() == BLOCKING
    finally:
        for gate in GATES:
            books.forget(gate)
            books.enter(gate, result_of(gate, "pass"))


def test_a_path_that_does_not_answer_is_no_reason_to_hold_a_publication(books):
    from tests.gate_cases import FAILING

    silent = FAILING["one_labeler_everywhere"][-1]()
    books.enter("one_labeler_everywhere", silent)
    try:
        assert silent.severity == "WARN" and books.blocked() == set()
    finally:
        books.forget("one_labeler_everywhere")
        books.enter("one_labeler_everywhere", result_of("one_labeler_everywhere", "pass"))
