"""Two honest baselines beside the labeler: fitted on the same training pairs, tuned on `calibrate`, scored once.

Knows where their scores are kept: fitting takes a minute, and the test split needs them as well. Knows nothing of how
they work, and looks at no label of `test`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from assets.evaluation import in_tenths, judged_pairs
from resources.project import Step

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.manifest import Manifest
    from semlabel.warehouse import Warehouse

_VERSION = 1
_SPLITS = ("calibrate", "test")
_KEYS = ["entity_id", "candidate_id"]


def judged_with_baselines(step: Step, warehouse: "Warehouse", manifest: "Manifest", split: str) -> "pd.DataFrame":
    """The judged pairs of calibrate or test: entity_id, candidate_id, label, margin, and one column per baseline."""
    pairs = judged_pairs(step, warehouse, manifest, split)
    return pairs.merge(_scores(step, warehouse), on=_KEYS, how="left", validate="one_to_one")


def baseline_names(pairs: "pd.DataFrame") -> list[str]:
    """The columns of `judged_with_baselines` that hold a baseline's scores."""
    return [name for name in pairs.columns if name not in (*_KEYS, "label", "margin")]


def best_baseline(pairs: "pd.DataFrame") -> tuple[str, dict[str, float]]:
    """The baseline with the best average precision, and that of each."""
    from sklearn.metrics import average_precision_score

    found = {name: float(average_precision_score(pairs["label"], pairs[name])) for name in baseline_names(pairs)}
    return max(found, key=lambda name: found[name]), found


def _scores(step: Step, warehouse: "Warehouse") -> "pd.DataFrame":
    """Scores of every baseline for the judged pairs of calibrate and test, from the file if they are there."""
    import pandas as pd

    file = _file(step, warehouse)
    if not file.exists():
        scores = _computed(step, warehouse)
        fresh = file.with_name(f".{file.name}.{step.run_id}")
        scores.to_parquet(fresh)
        fresh.replace(file)
    return pd.read_parquet(file)


def _file(step: Step, warehouse: "Warehouse") -> Path:
    from semlabel.digests import digest_of

    tables = ("training_pairs", "entities", "catalog", "left_out_candidates")
    seed, unlisted = step.settings.training.seed, step.settings.sources.unlisted
    digests = [*(warehouse.content_digest(table) for table in tables), warehouse.labels_digest()]
    key = digest_of([_VERSION, seed, unlisted, *digests])
    return step.settings.paths.checkpoints / f"baselines-{key[:16]}.parquet"


def _computed(step: Step, warehouse: "Warehouse") -> "pd.DataFrame":
    import pandas as pd

    from semlabel.baselines import fit_baselines
    from semlabel.pairs import cross_product_labels

    tables = warehouse.entities(), warehouse.catalog(), warehouse.reference_labels()
    unlisted, undecided = step.settings.sources.unlisted, warehouse.undecided_pairs()
    texts = dict(zip(tables[0]["entity_id"], tables[0]["text"], strict=True))
    known = warehouse.training_candidates()
    candidates = dict(zip(known["candidate_id"], known["text"], strict=True))

    def with_texts(pairs: "pd.DataFrame") -> "pd.DataFrame":
        entity_text = pairs["entity_id"].map(texts)
        return pairs.assign(entity_text=entity_text, candidate_text=pairs["candidate_id"].map(candidates))

    judged = {split: with_texts(cross_product_labels(*tables, split, unlisted, undecided)) for split in _SPLITS}
    train = with_texts(warehouse.training_pairs())
    sink = in_tenths(step.progress, step.log.info)
    fitted = fit_baselines(train, judged["calibrate"], step.settings.training.seed, sink)
    pairs = pd.concat(judged.values(), ignore_index=True)
    scores = {name: found.scores(pairs["entity_text"], pairs["candidate_text"]) for name, found in fitted.items()}
    return pairs[_KEYS].assign(**scores)
