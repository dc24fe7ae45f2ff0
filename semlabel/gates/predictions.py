"""Gates of the predictions and of their publication: contract, coverage, volume, one labeler, snapshot.

They know nothing of the warehouse or of files: counts, hashes and digests were read elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from semlabel.gates.registry import decide
from semlabel.gates.result import GateResult


def predictions_contract(violations: Sequence[Mapping[str, Any]], rows: int) -> GateResult:
    """Passes when `rows` predictions (at least one) break no rule; a violation's `rule` says in words which."""
    gate = "predictions_contract"
    evidence = {"violations": list(violations), "rows": rows}
    if violations:
        rule = str(violations[0].get("rule") or violations[0].get("expectation") or violations[0]).rstrip(".")
        sentence = f"Predictions break {len(violations)} rules, first: {rule}: score the shown rows again."
        return decide(gate, "fail", sentence, len(violations), 0, evidence)
    if rows <= 0:
        sentence = "There are no predictions: score the entities of the scope first."
        return decide(gate, "not_enough_data", sentence, rows, 1, evidence)
    return decide(gate, "pass", f"{rows} predictions keep every rule.", 0, 0, evidence)


def coverage_is_complete(
    expected: int, stored: int, missing_examples: Sequence[Any] = (), refused: int = 0, not_shortlisted: int = 0
) -> GateResult:
    """Passes when the `expected` pairs of the scope are all `stored`, `refused` with a reason or `not_shortlisted`."""
    gate = "coverage_is_complete"
    missing = expected - stored - refused - not_shortlisted
    evidence = {
        "expected": expected,
        "stored": stored,
        "refused": refused,
        "missing": missing,
        "missing_examples": list(missing_examples),
    } | ({"not_shortlisted": not_shortlisted} if not_shortlisted else {})
    share = (expected - missing) / expected if expected > 0 else None
    if missing > 0 or (missing_examples and expected > 0):
        lost = max(missing, len(missing_examples))
        sentence = f"{lost} of {expected} pairs have no prediction: run the scoring again, it goes on from there."
        return decide(gate, "fail", sentence, share, 1, evidence)
    if missing < 0:
        accounted = expected - missing
        sentence = f"{accounted} pairs are stored or refused but {expected} were expected: rebuild predictions."
        return decide(gate, "fail", sentence, share, 1, evidence)
    if expected <= 0 or stored <= 0:
        sentence = "No pair was scored: give the scope at least one entity and one candidate that are not refused."
        return decide(gate, "not_enough_data", sentence, share, 1, evidence)
    told = f" ({refused} refused with a reason)" if refused else ""
    told += f" ({not_shortlisted} outside the shortlists)" if not_shortlisted else ""
    return decide(gate, "pass", f"All {expected} pairs are accounted for{told}.", share, 1, evidence)


def volume_change(
    removed_fraction: float,
    previous_rows: int,
    candidate_flips: Sequence[Mapping[str, Any]],
    max_removed_fraction: float,
    max_candidate_flip_fraction: float,
    approved: bool,
    rows: int,
    min_candidate_labels: int = 20,
    subject: str = "SUBJECT",
    withheld: int = 0,
) -> GateResult:
    """Passes when little vanished against the current publication, or a person approved exactly these rows.

    `removed_fraction` of the `previous_rows` published rows are gone from the new `rows`. `candidate_flips` has per
    candidate `candidate_id`, `yes_either` (rows YES before or now) and `flipped`; only candidates with at least
    `min_candidate_labels` such rows are common enough to judge. Without a previous publication any `rows` pass.
    `subject` is the digest by which a person approves exactly these rows; whoever is alerted needs it.
    `rows` would be published; `withheld` ones, of candidates that the labeler is not certified with, would not.
    """
    gate = "volume_change"
    flipped = [
        dict(row)
        for row in candidate_flips
        if row["yes_either"] >= max(1, min_candidate_labels)
        and row["flipped"] / row["yes_either"] > max_candidate_flip_fraction
    ]
    evidence = {
        "rows": rows,
        "withheld": withheld,
        "previous_rows": previous_rows,
        "removed_fraction": removed_fraction,
        "max_removed_fraction": max_removed_fraction,
        "max_candidate_flip_fraction": max_candidate_flip_fraction,
        "flipped_candidates": flipped,
        "approved": approved,
    }
    if rows <= 0 and withheld > 0:
        sentence = (
            f"All {withheld} predictions are of candidates the labeler is not certified with, and these are withheld: "
            "put the texts of the catalog back, or train and promote a labeler."
        )
        return decide(gate, "fail", sentence, rows, 1, evidence)
    if rows <= 0:
        sentence = "There are no predictions to publish: look for an empty source before anything else."
        return decide(gate, "fail", sentence, rows, 1, evidence)
    if previous_rows <= 0:
        sentence = f"This is the first publication ({rows} rows), so there is nothing to compare with."
        return decide(gate, "pass", sentence, 0, max_removed_fraction, evidence)
    findings = []
    if not removed_fraction <= max_removed_fraction:
        kept_back = f" ({withheld} predictions are withheld)" if withheld else ""
        findings.append(f"{removed_fraction:.1%} of the {previous_rows} published rows would vanish{kept_back}")
    if flipped:
        findings.append(f"{len(flipped)} common candidates (first: {flipped[0]['candidate_id']}) change most labels")
    found = " and ".join(findings)
    compared = (removed_fraction, max_removed_fraction)
    if flipped and len(findings) == 1:
        # Else a reader would see a share of removed rows that is well within its limit.
        compared = (max(row["flipped"] / row["yes_either"] for row in flipped), max_candidate_flip_fraction)
    if findings and not approved:
        sentence = f"{found}: check the sources; if this change is meant, `semlabel approve {subject[:12]}`."
        return decide(gate, "fail", sentence, *compared, evidence)
    if findings:
        return decide(gate, "pass", f"{found}, which was approved.", *compared, evidence)
    sentence = (
        f"{removed_fraction:.1%} of the {previous_rows} published rows vanish and no common candidate turns over."
    )
    return decide(gate, "pass", sentence, removed_fraction, max_removed_fraction, evidence)


def one_labeler_everywhere(expected_digest: str, endpoints: Sequence[Mapping[str, Any]]) -> GateResult:
    """Passes when every path that answers names `expected_digest`.

    `endpoints`: dicts with `name`, `digest` (None when unknown) and `reachable`. Another digest is an ERROR; a path
    that does not answer is only a WARN, as long as one other path did.
    """
    gate = "one_labeler_everywhere"
    reached = [path for path in endpoints if path.get("reachable")]
    silent = [str(path["name"]) for path in endpoints if not path.get("reachable")]
    wrong = [str(path["name"]) for path in reached if path.get("digest") != expected_digest]
    evidence = {"expected_digest": expected_digest, "endpoints": [dict(path) for path in endpoints]}
    if wrong:
        sentence = (
            f"{', '.join(wrong)} answers with another labeler than {expected_digest[:12]}: load the promoted one there."
        )
        return decide(gate, "fail", sentence, len(wrong), 0, evidence)
    if not reached or not expected_digest:
        sentence = "No path said which labeler it uses: promote a labeler and score with it first."
        return decide(gate, "not_enough_data", sentence, None, 0, evidence)
    if silent:
        sentence = f"{', '.join(silent)} does not answer, so its labeler is unknown: start it or remove it."
        return decide(gate, "fail", sentence, len(silent), 0, evidence, severity="WARN")
    sentence = f"All {len(reached)} paths use labeler {expected_digest[:12]}."
    return decide(gate, "pass", sentence, 0, 0, evidence)


def snapshot_matches_warehouse(
    expected_hash: str | None, found_hash: str | None, expected_rows: int, found_rows: int
) -> GateResult:
    """Passes when the published files hold as many rows as the warehouse (at least one) with the same content hash."""
    gate = "snapshot_matches_warehouse"
    evidence = {
        "expected_hash": expected_hash,
        "found_hash": found_hash,
        "expected_rows": expected_rows,
        "found_rows": found_rows,
    }
    if expected_rows != found_rows:
        sentence = f"The snapshot has {found_rows} rows, the warehouse {expected_rows}: publish again."
        return decide(gate, "fail", sentence, found_rows, expected_rows, evidence)
    if expected_rows <= 0 or not expected_hash or not found_hash:
        sentence = "The snapshot or the warehouse is empty: score and publish first."
        return decide(gate, "not_enough_data", sentence, found_rows, 1, evidence)
    if expected_hash != found_hash:
        sentence = f"The snapshot's {found_rows} rows differ from the warehouse's in content: publish again."
        return decide(gate, "fail", sentence, found_rows, expected_rows, evidence)
    sentence = f"The snapshot holds exactly the {found_rows} rows of the warehouse."
    return decide(gate, "pass", sentence, found_rows, expected_rows, evidence)
