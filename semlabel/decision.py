"""The one decision rule, in Python and in SQL: YES where margin >= threshold, compared in float64.

A margin is float32 and is widened, never the threshold narrowed. Knows numbers only; deliberately knows nothing of
labelers, tables or where a margin comes from. Whatever decides in either language says so through this module, which
is read when Dagster loads: numpy is not, until something is decided.
"""

from typing import TYPE_CHECKING

from semlabel.errors import LabelerError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def decide(margins: "npt.ArrayLike", threshold: float | None) -> "npt.NDArray[np.bool_]":
    """The one decision rule: YES where margin >= threshold, compared in float64. Any shape in, the same shape out.

    Raises LabelerError without a threshold and ValueError for a margin that is not finite (it would read as NO).
    """
    import numpy as np

    if threshold is None:
        raise LabelerError("this labeler has no threshold: nothing was certified, so it can score but not decide")
    values = np.asarray(margins, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a margin is not finite; no decision can be made from it")
    return values >= float(threshold)


def decision_sql(margin: str, threshold: str | float) -> str:
    """The same rule as an SQL expression over an SQL expression of the margin; the threshold is one too, or a number.

    NULL without a margin or a threshold. SQL reads NaN as larger than every number, so as YES: tables refuse margins
    that are not finite before anything is decided from them (`warehouse_scores`, `label_differences`).
    """
    cut = threshold if isinstance(threshold, str) else repr(float(threshold))
    return f"(CAST({margin} AS DOUBLE) >= {cut})"
