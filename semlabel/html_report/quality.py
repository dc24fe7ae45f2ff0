"""How good the labeler is: the cut and its bounds, the probabilities, the margins, and what was found on `test`.

Knows the manifest, judged pairs and stored metrics; knows nothing of where they are kept. What is missing is said in
a sentence: a labeler without a threshold, a split without judged pairs, a map that was never fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semlabel import report
from semlabel.html_report.markup import Html, figure, outside, paragraph, picture, section, table, tag

if TYPE_CHECKING:
    from semlabel.html_report.subject import HeldOut
    from semlabel.manifest import Manifest

_RESULT = "threshold_result"
_MOST_STEPS = 40
_MOST_OF_A_SENTENCE = 1_000
_LOOKS = (
    "Every look at the certify entities spends a part of the declared error, so a single one is held to a higher "
    "confidence than was declared: all of them together keep it. Test is another sample: its two-sided intervals may "
    "reach below what certify showed."
)
_YES_NO = {True: "yes", False: "no"}


@dataclass(frozen=True)
class Spread:
    """How many predictions lie between each two of the edges."""

    edges: Sequence[float]
    counts: Sequence[int]


def training_section(manifest: "Manifest") -> Html:
    """What the checkpoint was trained on, and its loss."""
    told = manifest.training
    curve = [tuple(point) for point in told.get("loss_curve", []) if isinstance(point, list | tuple)]
    if not curve:
        return section("Training", paragraph("No training is known."))
    facts = f"{figure(told.get('pairs'))} pairs in {figure(told.get('steps'))} steps of the optimiser."
    return section("Training", paragraph(facts), _plot(report.loss_curve(curve), "training loss"))


def threshold_section(manifest: "Manifest", calibrate: "HeldOut", certify: "HeldOut | None") -> Html:
    """The chosen cut with its bounds, precision over recall, and the walk that led there.

    `certify` is None where a look at it would be a further one.
    """
    result: Mapping[str, Any] = manifest.evidence.get(_RESULT) or {}
    parts = [paragraph(outside(result.get("sentence") or _no_result(manifest), _MOST_OF_A_SENTENCE))]
    if isinstance(result.get("confidence"), int | float):
        parts.append(paragraph(_LOOKS))
    if certify is None:
        parts.append(
            paragraph(
                "Precision and recall are drawn on calibrate. This labeler was not proven on the certify entities as "
                "they are now, so drawing them would be a further look at what must stay unseen."
            )
        )
    parts += _precision_recall(manifest, certify or calibrate, "calibrate" if certify is None else "certify", result)
    steps = [step for step in result.get("steps", []) if isinstance(step, Mapping)]
    for limit in dict.fromkeys(str(step.get("limit")) for step in steps):
        own = [step for step in steps if str(step.get("limit")) == limit]
        declared = own[0].get("limit_value")
        plot = report.walk(own, declared, limit, manifest.threshold)
        rows = [
            [*[figure(step.get(name)) for name in ("cut", "flagged", "point", "bound")], _YES_NO[bool(step.get("ok"))]]
            for step in own[:_MOST_STEPS]
        ]
        parts += [
            tag("h3", f"The walk for {limit}, declared {figure(declared)}"),
            _plot(plot, f"the walk to the cut for {limit}"),
            table(["cut", "flagged", "estimate", "bound", "holds"], rows),
        ]
    return section("Threshold", *parts)


def calibration_section(manifest: "Manifest", calibrate: "HeldOut", certify: "HeldOut | None") -> Html:
    """Reliability, ECE and Brier score before and after calibration."""
    if manifest.calibration is None:
        return section("Probabilities", paragraph("No probability map was fitted yet: the threshold comes first."))
    found = {"calibrate": calibrate, "certify": certify}
    known = {name: split for name, split in found.items() if split is not None and len(split.pairs)}
    if not known:
        return section("Probabilities", paragraph("There are no judged pairs with a margin to compare with."))
    rows, parts = [], []
    for name, split in known.items():
        before, after = _probabilities(manifest, split)
        rows += [_calibration_row(name, when, p, split) for when, p in (("before", before), ("after", after))]
        plot = report.reliability(after, split.labels, before=before)
        parts += [tag("h3", f"On {name}"), _plot(plot, f"reliability before and after calibration on {name}")]
    headers = ["pairs", "", "expected calibration error", "Brier score", "mean probability", "share of YES"]
    told = paragraph("The map was fitted on calibrate; certify is what it was not fitted on.")
    return section("Probabilities", told, table(headers, rows), *parts)


def margins_section(manifest: "Manifest", calibrate: "HeldOut", predicted: Spread | None) -> Html:
    """Where the margins of judged pairs lie, and those of everything that was predicted."""
    parts = []
    if calibrate.unscored:
        left_out = f"{figure(calibrate.unscored)} judged pairs of calibrate have no margin and are left out."
        parts.append(paragraph(left_out))
    if len(calibrate.pairs):
        plot = report.margin_histogram(calibrate.margins, calibrate.labels, manifest.threshold)
        parts.append(_plot(plot, "margins of the judged pairs of calibrate"))
    else:
        parts.append(paragraph("No judged pair of calibrate has a margin."))
    if predicted is None:
        parts.append(paragraph("There are no predictions of this labeler."))
    else:
        plot = report.prediction_histogram(predicted.edges, predicted.counts, manifest.threshold)
        parts.append(_plot(plot, "margins of all predictions"))
    return section("Margins", *parts)


def test_section(metrics: Mapping[str, Any] | None) -> Html:
    """What was found on `test`, which is looked at once a labeler: the stored figures, never a new look."""
    if not metrics:
        return section("Quality on test", paragraph("Nothing was measured on test for this labeler."))
    rows = [["this labeler", *_measured(metrics.get("test") or {})]]
    rows += [[outside(name), *_measured(found)] for name, found in (metrics.get("baselines") or {}).items()]
    headers = ["", "AUC", "average precision", "precision at tau", "recall at tau"]
    parts = [table(headers, rows)]
    ratio = metrics.get("ratio")
    if isinstance(ratio, Mapping):
        against = outside(ratio.get("against") or "the better baseline")
        parts.append(paragraph("Average precision is ", _interval(ratio), " times that of ", against, "."))
    return section("Quality on test", *parts)


def _precision_recall(manifest: "Manifest", split: "HeldOut", name: str, result: Mapping[str, Any]) -> list[Html]:
    if split.pairs.empty:
        return [paragraph(f"No judged pair of {name} has a margin, so there is no curve.")]
    floor = (result.get("policy") or {}).get("min_precision")
    bound = (result.get("bounds") or {}).get("precision")
    levels = {"declared": floor, "proven": bound if manifest.threshold is not None else None}
    drawn = {what: float(level) for what, level in levels.items() if isinstance(level, int | float)}
    plot = report.precision_recall(split.labels, split.margins, manifest.threshold, drawn)
    return [_plot(plot, f"precision and recall on {name}")]


def _no_result(manifest: "Manifest") -> str:
    if manifest.threshold is None:
        return "There is no threshold yet: the run ended before one was looked for."
    return "This labeler does not say how its threshold was found."


def _probabilities(manifest: "Manifest", split: "HeldOut") -> tuple[Any, Any]:
    """Without and with calibration: the bare softmax of the two answers is the sigmoid of the margin."""
    from semlabel.calibration import Platt

    margins, fitted = split.margins, manifest.calibration
    if fitted is None:
        raise ValueError("this labeler has no probability map")
    return Platt(1.0, 0.0).probability(margins), Platt(fitted.platt_a, fitted.platt_b).probability(margins)


def _calibration_row(name: str, when: str, probabilities: Any, split: "HeldOut") -> list[Any]:
    from semlabel.calibration import brier, expected_calibration_error

    labels = split.labels
    errors = expected_calibration_error(probabilities, labels), brier(probabilities, labels)
    shares = float(probabilities.mean()), sum(labels) / len(labels)
    return [name, when, *[figure(value) for value in (*errors, *shares)]]


def _measured(found: Mapping[str, Any]) -> list[str]:
    return [_interval(found.get(name)) for name in ("auc", "average_precision", "precision", "recall")]


def _interval(estimate: Any) -> str:
    numbers = [estimate.get(name) for name in ("value", "low", "high")] if isinstance(estimate, Mapping) else [None] * 3
    value, low, high = (float(number) if isinstance(number, int | float) else None for number in numbers)
    if value is None:
        return "-"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} ({low:.3f}-{high:.3f})"


def _plot(png: bytes, alternative: str) -> Html:
    return picture(report.data_address(png), alternative)
