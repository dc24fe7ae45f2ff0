"""Whether anything can be measured at all: asked before a training that may take hours, not after it.

Knows counts of judged pairs. How many are enough for a promise is for the thresholds to say.
"""

from collections.abc import Mapping

from semlabel.splits import HELD_OUT, TRAIN

_BOTH = (TRAIN, HELD_OUT[0])
"""Splits that need YES and NO: what is learned from, and what a threshold is chosen on."""


def too_thin(judged: Mapping[str, tuple[int, int]]) -> str | None:
    """What no training could be judged by, and which pairs to ask people about; `judged` has YES and NO by split."""
    blind = [name for name in _BOTH if not all(judged[name])]
    blind += [name for name in HELD_OUT if name not in _BOTH and not any(judged[name])]
    if not blind:
        return None
    found = ", ".join(f"{name} {judged[name][0]} YES and {judged[name][1]} NO" for name in blind)
    commands = ["`semlabel sample --out teach.csv`"] if TRAIN in blind else []
    options = " ".join(f"--split {name}" for name in blind if name != TRAIN)
    commands += [f"`semlabel sample --random {options} --out prove.csv`"] if options else []
    return f"too little is judged to train and measure a labeler ({found}): ask people with {' and '.join(commands)}"
