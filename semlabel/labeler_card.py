"""A labeler as a notebook shows it: what it is, what it was shown to keep, and what it asks.

Knows a manifest; nothing of weights or scores. Everything in it came from a file and is text, never markup.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semlabel.manifest import Manifest

_MOST = 2000


def card(manifest: "Manifest") -> str:
    """One table, as HTML that can be put anywhere."""
    from semlabel.html_report.markup import figure, joined, outside, table, tag

    promised = ", ".join(f"{name} {value}" for name, value in sorted(manifest.policy.items()) if value is not None)
    answers = manifest.answer_tokens
    rows = [
        ["labeler", outside(manifest.digest[:12])],
        ["base model", outside(manifest.base_model)],
        ["precision", manifest.precision],
        [
            "threshold",
            "none: it scores but does not decide" if manifest.threshold is None else figure(manifest.threshold),
        ],
        ["word", outside(manifest.certified)],
        ["policy", outside(promised or "none")],
        ["probabilities", "none: not calibrated" if manifest.calibration is None else "calibrated"],
        *([["shortlists", figure(manifest.shortlist.size)]] if manifest.shortlist else []),
        ["answers", joined([outside(answers.yes.text), " or ", outside(answers.no.text)])],
        ["prompt", tag("pre", outside(manifest.prompt.template, _MOST))],
        ["made", outside(manifest.created_at)],
    ]
    return str(table(["Labeler", ""], rows))
