"""semlabel: exact, gated labeling of entities against a catalog with a small language model.

Importing the package is cheap: torch and transformers are imported when `Labeler` or `Scorer` is first touched.
"""

import os
from typing import TYPE_CHECKING, Any

from semlabel.privacy import switch_off_telemetry

if TYPE_CHECKING:
    from semlabel.labeler import Labeler
    from semlabel.scorer import Scorer

__version__ = "0.1.0"
__all__ = ["Labeler", "Scorer", "__version__"]

switch_off_telemetry(os.environ)


def __getattr__(name: str) -> Any:
    if name == "Labeler":
        from semlabel.labeler import Labeler

        return Labeler
    if name == "Scorer":
        from semlabel.scorer import Scorer

        return Scorer
    raise AttributeError(f"module 'semlabel' has no attribute {name!r}")
