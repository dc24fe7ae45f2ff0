"""Gates of the tables that come before training: catalog, entities, training pairs and their splits.

They know nothing of files, SQL or expectation suites: violations arrive as dicts (`rule` says in words what was
broken), counts as numbers. Rows in = rows kept + rows refused + rows left out by a setting, or the gate fails.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from semlabel.gates.registry import decide
from semlabel.gates.result import GateResult

_SPLITS = ("train", "calibrate", "certify", "test")


def catalog_contract(
    violations: Sequence[Mapping[str, Any]],
    rows: int,
    refused: int,
    rows_in: int,
    max_refused_fraction: float,
    min_candidates: int,
    left_out: int = 0,
) -> GateResult:
    """Passes when at least `min_candidates` rows keep every rule and at most the given share was refused.

    `rows` are in the table, `refused` were refused with a reason, `left_out` by a setting; `rows_in` in the source.
    """
    evidence = _counts(violations, rows, refused, rows_in, left_out)
    failure = _table_failure("catalog_contract", "candidates", evidence, max_refused_fraction, min_candidates)
    if failure:
        return failure
    sentence = f"{rows} candidates keep every rule; {refused} of {rows_in} source rows were refused."
    return decide("catalog_contract", "pass", sentence, evidence["refused_fraction"], max_refused_fraction, evidence)


def entities_contract(
    violations: Sequence[Mapping[str, Any]],
    rows: int,
    refused: int,
    rows_in: int,
    max_refused_fraction: float,
    min_entities: int,
    truncated: int,
    max_truncated_fraction: float,
    left_out: int = 0,
) -> GateResult:
    """Like `catalog_contract`; besides, at most `max_truncated_fraction` of the texts may have been cut."""
    gate = "entities_contract"
    share = truncated / rows if rows else None
    evidence = _counts(violations, rows, refused, rows_in, left_out)
    evidence |= {"truncated": truncated, "truncated_fraction": share}
    failure = _table_failure(gate, "entities", evidence, max_refused_fraction, min_entities)
    if failure:
        return failure
    if share is None or share > max_truncated_fraction:
        sentence = (
            f"{truncated} of {rows} entity texts were cut to the token limit, more than the allowed share of "
            f"{max_truncated_fraction:g}: raise prompt.max_query_tokens, shorten the texts, or allow the share."
        )
        return decide(gate, "fail", sentence, share, max_truncated_fraction, evidence)
    sentence = f"{rows} entities keep every rule; {refused} of {rows_in} source rows were refused, {truncated} cut."
    return decide(gate, "pass", sentence, evidence["refused_fraction"], max_refused_fraction, evidence)


def pairs_contract(
    violations: Sequence[Mapping[str, Any]],
    rows: int,
    positives: int,
    reference_problems: int,
    reference_rows: int,
    max_reference_problem_fraction: float,
) -> GateResult:
    """Passes when the training pairs keep every rule, hold both answers, and their references are mostly usable.

    `reference_problems` of `reference_rows` name unknown ids or contradict each other and were left out.
    """
    gate = "pairs_contract"
    share = reference_problems / reference_rows if reference_rows else None
    evidence: dict[str, Any] = {
        "violations": list(violations),
        "rows": rows,
        "positives": positives,
        "reference_problems": reference_problems,
        "reference_rows": reference_rows,
        "reference_problem_fraction": share,
    }
    if violations:
        return decide(gate, "fail", _broken(violations), len(violations), 0, evidence)
    if share is None or rows == 0:
        sentence = "There are no training pairs: give reference labels for the entities of the train split."
        return decide(gate, "not_enough_data", sentence, share, max_reference_problem_fraction, evidence)
    if not 0 < positives < rows:
        only = "YES" if positives else "NO"
        sentence = f"All {rows} training pairs are {only}: give reference labels of both kinds."
        return decide(gate, "not_enough_data", sentence, positives, 1, evidence)
    if share > max_reference_problem_fraction:
        sentence = (
            f"{reference_problems} of {reference_rows} reference labels name unknown ids or contradict each other, "
            f"more than the allowed share of {max_reference_problem_fraction:g}: correct the references file."
        )
        return decide(gate, "fail", sentence, share, max_reference_problem_fraction, evidence)
    sentence = f"{rows} training pairs ({positives} YES) keep every rule."
    return decide(gate, "pass", sentence, share, max_reference_problem_fraction, evidence)


def splits_do_not_leak(
    shared_entities: Sequence[str],
    near_duplicates: Sequence[Any],
    splits_sizes: Mapping[str, int],
) -> GateResult:
    """Passes when the four splits have entities and no entity, nor a near-duplicate pair, is in two of them."""
    gate = "splits_do_not_leak"
    leaks = len(shared_entities) + len(near_duplicates)
    evidence = {
        "shared_entities": list(shared_entities),
        "near_duplicates": list(near_duplicates),
        "split_sizes": dict(splits_sizes),
    }
    if leaks:
        sentence = (
            f"{len(shared_entities)} entities and {len(near_duplicates)} near-duplicate pairs stand in two splits: "
            "assign the splits again or remove the duplicates."
        )
        return decide(gate, "fail", sentence, leaks, 0, evidence)
    empty = [name for name in _SPLITS if not splits_sizes.get(name)]
    if empty:
        sentence = f"No entity is in split {', '.join(empty)}: give more entities or change the split sizes."
        return decide(gate, "not_enough_data", sentence, 0, 0, evidence)
    sizes = ", ".join(f"{splits_sizes[name]} {name}" for name in _SPLITS)
    return decide(gate, "pass", f"No entity and no near-duplicate is in two splits ({sizes}).", 0, 0, evidence)


def _counts(
    violations: Sequence[Mapping[str, Any]], rows: int, refused: int, rows_in: int, left_out: int
) -> dict[str, Any]:
    return {
        "violations": list(violations),
        "rows": rows,
        "refused": refused,
        "left_out": left_out,
        "rows_in": rows_in,
        "refused_fraction": refused / rows_in if rows_in else None,
    }


def _table_failure(
    gate: str, noun: str, evidence: Mapping[str, Any], max_refused_fraction: float, minimum: int
) -> GateResult | None:
    """The first thing that is wrong with a source table, or None."""
    shown, rows, share = dict(evidence), evidence["rows"], evidence["refused_fraction"]
    if evidence["violations"]:
        return decide(gate, "fail", _broken(evidence["violations"]), len(evidence["violations"]), 0, shown)
    accounted = rows + evidence["refused"] + evidence["left_out"]
    if accounted != evidence["rows_in"]:
        sentence = (
            f"{evidence['rows_in']} source rows came in but {accounted} are accounted for: read the source again."
        )
        return decide(gate, "fail", sentence, accounted, evidence["rows_in"], shown)
    if share is not None and share > max_refused_fraction:
        sentence = (
            f"{evidence['refused']} of {evidence['rows_in']} source rows were refused, more than the allowed share "
            f"of {max_refused_fraction:g}: mend the rows listed in refused_rows."
        )
        return decide(gate, "fail", sentence, share, max_refused_fraction, shown)
    if rows < max(1, minimum):
        sentence = f"{rows} {noun} are left but at least {max(1, minimum)} are needed: give a fuller source."
        return decide(gate, "not_enough_data", sentence, rows, max(1, minimum), shown)
    return None


def _broken(violations: Sequence[Mapping[str, Any]]) -> str:
    first = violations[0]
    rule = str(first.get("rule") or first.get("expectation") or ", ".join(f"{k}={v}" for k, v in first.items()))
    more = f" and {len(violations) - 1} more rules" if len(violations) > 1 else ""
    return f"The table breaks a rule ({rule.rstrip('.')}){more}: mend the rows shown in the evidence."
