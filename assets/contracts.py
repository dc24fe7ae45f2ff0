"""What must hold for every row of four tables, checked over the warehouse.

Two layers that look at the same columns: facts in SQL cover every row; great_expectations judges those facts and, row
by row, a sample of at most 100,000. Knows the tables' columns. Knows nothing of limits that people set: those are the
gates'. An expectation that raises is a broken rule, and no table is good because it is empty: gates ask for rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from semlabel.decision import decision_sql

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.core.batch_definition import BatchDefinition

    from semlabel.warehouse import Warehouse

SAMPLE_ROWS = 100_000
_EXAMPLES = 20
_SHA256 = r"^[0-9a-f]{64}$"

# What is said of the counts of rows that break each rule.
_FACTS = (("ExpectColumnValuesToBeBetween", {"column": "rows", "max_value": 0}),)


@dataclass(frozen=True)
class Rule:
    """A rule over all rows of a table: `broken` is the SQL condition of a row that breaks it, `says` the rule."""

    name: str
    says: str
    broken: str


@dataclass(frozen=True)
class Contract:
    """A table with its rules, the columns of its key, further counts, and the expectations of its sample."""

    table: str
    key: tuple[str, ...]
    rules: tuple[Rule, ...]
    counts: Mapping[str, str]
    sample: tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True)
class Findings:
    """What was found: broken rules (dicts with `rule`, `rows`, `examples`), and numbers over the whole table."""

    violations: list[dict[str, Any]]
    facts: dict[str, int]
    expectations: int


_TEXT_RULES = (
    Rule("blank_texts", "every text says something", "text IS NULL OR trim(text) = ''"),
    Rule("wrong_text_ids", "every text_id is the sha256 of its text", "text_id IS DISTINCT FROM sha256(text)"),
)
_KEY_SAMPLE = (("ExpectColumnValuesToNotBeNull", {}), ("ExpectColumnValueLengthsToBeBetween", {"min_value": 1}))


def _text_sample(key: str, lengths: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return (
        *((name, {"column": key, **arguments}) for name, arguments in _KEY_SAMPLE),
        ("ExpectColumnValuesToBeUnique", {"column": key}),
        ("ExpectColumnValuesToMatchRegex", {"column": "text", "regex": r"\S"}),
        ("ExpectColumnValuesToMatchRegex", {"column": "text_id", "regex": _SHA256}),
        ("ExpectColumnValuesToBeBetween", {"column": lengths, "min_value": 1}),
    )


ENTITIES = Contract(
    "entities",
    key=("entity_id",),
    rules=(
        *_TEXT_RULES,
        Rule(
            "unknown_splits",
            "every split is train, calibrate, certify, test or empty",
            "split NOT IN ('train', 'calibrate', 'certify', 'test', '')",
        ),
        Rule(
            "moved_splits",
            "every entity stands in the split it was given for good, or in none while it cannot be used",
            "split <> '' AND entity_id IN (SELECT entity_id FROM remembered_splits) "
            "AND (entity_id, split) NOT IN (SELECT (entity_id, split) FROM remembered_splits)",
        ),
        Rule("no_tokens", "every query has tokens", "query_tokens <= 0"),
    ),
    counts={"truncated": "truncated", "unmeasured": "query_tokens IS NULL"},
    sample=(
        *_text_sample("entity_id", "query_tokens"),
        (
            "ExpectColumnValuesToBeInSet",
            {"column": "split", "value_set": ["train", "calibrate", "certify", "test", ""]},
        ),
        ("ExpectColumnValuesToBeInSet", {"column": "truncated", "value_set": [True, False]}),
    ),
)
CATALOG = Contract(
    "catalog",
    key=("candidate_id",),
    rules=(*_TEXT_RULES, Rule("no_tokens", "every item has tokens", "item_tokens <= 0")),
    counts={"unmeasured": "item_tokens IS NULL"},
    sample=_text_sample("candidate_id", "item_tokens"),
)
TRAINING_PAIRS = Contract(
    "training_pairs",
    key=("entity_id", "candidate_id"),
    rules=(
        Rule(
            "unknown_entities",
            "every pair names an entity",
            "entity_id NOT IN (SELECT entity_id FROM entities)",
        ),
        Rule(
            "unknown_candidates",
            "every pair names a candidate of the catalog or one that it left out",
            "candidate_id NOT IN (SELECT candidate_id FROM catalog) "
            "AND candidate_id NOT IN (SELECT candidate_id FROM left_out_candidates)",
        ),
        Rule("held_out_pairs", "every pair is of the train split", "split IS DISTINCT FROM 'train'"),
    ),
    counts={"positives": "label"},
    sample=(
        ("ExpectCompoundColumnsToBeUnique", {"column_list": ["entity_id", "candidate_id"]}),
        ("ExpectColumnValuesToNotBeNull", {"column": "entity_id"}),
        ("ExpectColumnValuesToNotBeNull", {"column": "candidate_id"}),
        ("ExpectColumnValuesToBeInSet", {"column": "label", "value_set": [True, False]}),
        ("ExpectColumnValuesToBeInSet", {"column": "split", "value_set": ["train"]}),
        (
            "ExpectColumnValuesToBeInSet",
            {"column": "kind", "value_set": ["positive", "hard", "random", "listed"]},
        ),
    ),
)
PREDICTIONS = Contract(
    "predictions",
    key=("entity_id", "candidate_id"),
    rules=(
        Rule("no_margins", "every margin is a finite number", "margin IS NULL OR NOT isfinite(margin)"),
        Rule(
            "impossible_probabilities",
            "every probability lies between 0 and 1",
            "probability IS NULL OR NOT probability BETWEEN 0 AND 1",
        ),
        Rule(
            "wrong_labels",
            "every label is margin >= threshold",
            f"label IS NULL OR label IS DISTINCT FROM {decision_sql('margin', 'threshold')}",
        ),
        Rule("no_labeler", "every row names its labeler and run", "labeler_digest IS NULL OR run_id IS NULL"),
        Rule("future_scores", "no margin was computed in the future", "scored_at > now() AT TIME ZONE 'UTC'"),
    ),
    counts={"yes": "label"},
    sample=(
        ("ExpectCompoundColumnsToBeUnique", {"column_list": ["entity_id", "candidate_id"]}),
        ("ExpectColumnValuesToNotBeNull", {"column": "entity_id"}),
        ("ExpectColumnValuesToNotBeNull", {"column": "candidate_id"}),
        ("ExpectColumnValuesToBeBetween", {"column": "margin", "min_value": -1e4, "max_value": 1e4}),
        ("ExpectColumnValuesToBeBetween", {"column": "probability", "min_value": 0, "max_value": 1}),
        ("ExpectColumnValuesToBeInSet", {"column": "label", "value_set": [True, False]}),
        ("ExpectColumnValuesToMatchRegex", {"column": "labeler_digest", "regex": _SHA256}),
    ),
)


def findings(warehouse: "Warehouse", contract: Contract) -> Findings:
    """Check a table against its contract. Raises nothing for bad rows; they are the findings."""
    facts = _facts(warehouse, contract)
    violations = _broken_rules(warehouse, contract, facts)
    sample = _sample(warehouse, contract)
    if len(sample):
        violations += _unmet(_validate(f"{contract.table} sample", sample, contract.sample))
    return Findings(violations, facts, len(_FACTS) + (len(contract.sample) if len(sample) else 0))


def _rules(contract: Contract) -> tuple[Rule, ...]:
    """The contract's own rules and those that every key must keep."""
    key = ", ".join(contract.key)
    empty = " OR ".join(f"{name} IS NULL OR {name} = ''" for name in contract.key)
    twice = f"({key}) IN (SELECT ({key}) FROM {contract.table} GROUP BY {key} HAVING count(*) > 1)"
    words = " and ".join(contract.key)
    return (
        Rule("duplicate_keys", f"no two rows have the same {words}", twice),
        Rule("empty_keys", f"every row has its {words}", empty),
        *contract.rules,
    )


def _facts(warehouse: "Warehouse", contract: Contract) -> dict[str, int]:
    """Rows, rows that break each rule, and the contract's counts, in one statement."""
    conditions = {rule.name: rule.broken for rule in _rules(contract)} | dict(contract.counts)
    counted = [f"count(*) FILTER (WHERE {condition})" for condition in conditions.values()]
    (row,) = warehouse.rows(f"SELECT count(*), {', '.join(counted)} FROM {contract.table}")
    return {name: int(value) for name, value in zip(("rows", *conditions), row, strict=True)}


def _broken_rules(warehouse: "Warehouse", contract: Contract, facts: Mapping[str, int]) -> list[dict[str, Any]]:
    """The rules that some row breaks: one expectation over all their counts, not one for each, which takes long."""
    import pandas as pd

    names = [rule.name for rule in _rules(contract)]
    frame = pd.DataFrame({"rule": names, "rows": [facts[name] for name in names]})
    done = _validate(f"{contract.table} facts", frame, _FACTS, "COMPLETE", unexpected_index_column_names=["rule"])
    broken = [row["rule"] for result in done.results for row in result.result.get("unexpected_index_list") or ()]
    unmet = _unmet(done) if not broken else []
    return [*unmet, *(_broken_rule(warehouse, contract, facts, name) for name in broken)]


def _broken_rule(warehouse: "Warehouse", contract: Contract, facts: Mapping[str, int], name: str) -> dict[str, Any]:
    rule = next(rule for rule in _rules(contract) if rule.name == name)
    key = ", ".join(contract.key)
    rows = warehouse.rows(f"SELECT {key} FROM {contract.table} WHERE {rule.broken} ORDER BY ALL LIMIT {_EXAMPLES}")
    return {"rule": rule.says, "rows": facts[name], "examples": "; ".join(" / ".join(map(str, row)) for row in rows)}


def _sample(warehouse: "Warehouse", contract: Contract) -> "pd.DataFrame":
    named: list[str] = list(contract.key)
    for _, arguments in contract.sample:
        named += arguments.get("column_list") or [arguments["column"]]
    # Repeatable, so that a verdict does not depend on the night's luck.
    sample = f"USING SAMPLE reservoir({SAMPLE_ROWS} ROWS) REPEATABLE (7)"
    return warehouse.frame(f"SELECT {', '.join(dict.fromkeys(named))} FROM {contract.table} {sample}")


def _unmet(done: "ExpectationSuiteValidationResult") -> Iterator[dict[str, Any]]:
    """Every expectation that is not met, or that raised, as a violation."""
    for result in done.results:
        config = result.expectation_config
        if result.success or config is None:
            continue
        problem = _raised(result.exception_info)
        arguments = {key: value for key, value in config.kwargs.items() if key != "batch_id"}
        found = problem or f"for example {result.result.get('partial_unexpected_list')}"
        rows = result.result.get("unexpected_count")
        rule = f"{config.type} on {arguments}" + (" could be evaluated" if problem else "")
        yield {"rule": rule, "rows": None if rows is None else int(rows), "examples": found}


def _validate(
    name: str, frame: "pd.DataFrame", suite: Sequence[tuple[str, Mapping[str, Any]]], detail: str = "BASIC", **more: Any
) -> "ExpectationSuiteValidationResult":
    import great_expectations as gx

    expectations = [getattr(gx.expectations, kind)(**arguments) for kind, arguments in suite]
    batch = _frames().get_batch({"dataframe": frame})
    told = {"result_format": detail, **more}
    return batch.validate(gx.ExpectationSuite(name=name, expectations=expectations), result_format=told)


@lru_cache(maxsize=1)
def _frames() -> "BatchDefinition[Any]":
    """Where frames are handed in to be judged; made once a process, because making it takes as long as judging."""
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("warehouse").add_dataframe_asset("rows")
    return asset.add_batch_definition_whole_dataframe("whole")


def _raised(info: Mapping[str, Any]) -> str | None:
    """What an expectation raised, None when it did not: flat, or keyed by the metric that raised."""
    parts = [info] if "raised_exception" in info else [part for part in info.values() if isinstance(part, Mapping)]
    told = [str(part.get("exception_message")) for part in parts if part.get("raised_exception")]
    return told[0] if told else None
