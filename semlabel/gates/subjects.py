"""Which verdict counts for which content: the subject every gate must have passed before anything is published.

Knows nothing of how verdicts are stored. A verdict about another catalog, another labeler or yesterday's rows is
no verdict about today's, so every ERROR gate is asked for by the digest of what it judged.
"""

from collections.abc import Callable, Mapping
from typing import Any

from semlabel.digests import digest_of
from semlabel.errors import GateBlocked, LabelerError
from semlabel.gates.registry import ERROR_GATES_BEFORE_PUBLICATION, GATES, SHORTLIST


def catalog_subject(catalog_digest: str, prompt_digest: str, tokenizer_digest: str) -> str:
    """The subject digest of the catalog's gates: the candidates as this prompt and tokenizer see them."""
    return digest_of([catalog_digest, prompt_digest, tokenizer_digest])


def required_subjects(manifest: Mapping[str, Any], digests: Mapping[str, str | None]) -> dict[str, str]:
    """Gate name -> subject digest that needs a `pass` before the predictions of this labeler are published.

    `manifest` is the labeler's (as a dict, `digest` included); `digests` has the current content digests under
    `catalog`, `entities` and `predictions`. Raises LabelerError for a manifest that lacks an identity, GateBlocked
    for a table without content.
    """
    for table in ("catalog", "entities", "predictions"):
        if not digests.get(table):
            raise GateBlocked(f"nothing can be published: table {table!r} has no content yet; run its asset first")
    prompt = _identity(manifest, "prompt", "digest")
    tokenizer = _identity(manifest, "tokenizer_digest")
    by_asset = {
        "catalog": catalog_subject(str(digests["catalog"]), prompt, tokenizer),
        "entities": str(digests["entities"]),
        "training_pairs": _identity(manifest, "training", "pairs_digest"),
        "checkpoint": _identity(manifest, "scorer_digest"),
        "threshold": _identity(manifest, "digest"),
        "predictions": str(digests["predictions"]),
    }
    optional = (SHORTLIST,) if manifest.get("shortlist") else ()
    return {name: by_asset[GATES[name].asset] for name in (*ERROR_GATES_BEFORE_PUBLICATION, *optional)}


def blocking_verdicts(
    required: Mapping[str, str], latest: Callable[[str, str], Mapping[str, Any] | None]
) -> list[dict[str, str]]:
    """The gates that stand in the way: `gate`, `verdict` and one `sentence` each; empty when the way is free.

    `latest(gate, subject_digest)` gives the newest stored verdict of the current gate code, or None. A missing
    verdict blocks like a failed one; only a result that was recorded as WARN (a path that does not answer) does not.
    """
    blocked = []
    for gate, subject in required.items():
        row = latest(gate, subject)
        if row is None:
            sentence = f"{gate} has no verdict for the current content: run the checks of {GATES[gate].asset}."
            blocked.append({"gate": gate, "verdict": "missing", "sentence": sentence})
        elif row["verdict"] != "pass" and row.get("severity", "ERROR") != "WARN":
            sentence = str(row.get("sentence") or f"{gate} did not pass.")
            blocked.append({"gate": gate, "verdict": str(row["verdict"]), "sentence": sentence})
    return blocked


def _identity(manifest: Mapping[str, Any], *path: str) -> str:
    found: Any = manifest
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    if not found:
        raise LabelerError(f"the labeler's manifest has no {'.'.join(path)}; train the labeler again")
    return str(found)
