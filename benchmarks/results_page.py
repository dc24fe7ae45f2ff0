"""Writes docs/results.md from the raw JSON in benchmarks/results: tables, plots, the paper's figures beside ours.

    PYTHONPATH=. .venv/bin/python benchmarks/results_page.py [--check]

What has no JSON is said to be not run yet; no number is typed here. Between a pair of `notes` marks stands what people
wrote about a result; it is kept as it is. Knows nothing of how anything was measured.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from semlabel.bench import coupling_report, order_report, serving_report
from semlabel.bench.experiments import ablations_report, data_efficiency_report
from semlabel.bench.output import markdown_table
from semlabel.bench.work_table import work_table

RESULTS = Path("benchmarks/results")
PAGE = Path("docs/results.md")
NOT_RUN = "not run yet"
_SHAPE = (170, 8)  # tokens of a query and an item, at which offline throughput is compared
_ITEMS = 200
_NOTES = re.compile(r"<!-- notes: (\S+) -->\n(.*?)<!-- /notes -->", re.DOTALL)
_HEAD = """# Results

The experiments behind the recipe, small enough for one machine, beside what the paper reports. Everything below is
written by `benchmarks/results_page.py` from the raw JSON in [benchmarks/results](../benchmarks/results); what has not
been run says so. Our model (SmolLM2-135M-Instruct), data (O*NET) and hardware (the JSON says which) are not the
paper's: what can be compared is the direction and the size of an effect, not a level.

The entities that train and judge in the experiments 1, 6 and 7 are drawn from those that the project itself would train
on; the ones it holds out to prove its labelers are in none of them.
"""


@dataclass(frozen=True)
class Section:
    """One experiment: its name (that of its JSON), title, what it does, its command, and its tables."""

    name: str
    title: str
    text: str
    command: str
    tables: Callable[[dict], str]


def data_efficiency(document: dict) -> str:
    """Curves and ratios."""
    return "\n".join([data_efficiency_report.curve_table(document), data_efficiency_report.ratio_tables(document)])


def order(document: dict) -> str:
    """All methods."""
    return order_report.table(document)


def throughput(document: dict) -> str:
    """The work and the speed of every method."""
    return work_table(document["cells"])


def serving(document: dict) -> str:
    """Both methods at every N, alone and at the knee."""
    return serving_report.table(document["cells"]) if document.get("cells") else NOT_RUN


SECTIONS = (
    Section(
        "data_efficiency",
        "1. Data efficiency",
        "How many training pairs does packed generation need for the quality of semantic scoring? Same base model, "
        "pairs, epochs and entities per step, the best of several learning rates for both, cuts tuned on calibrate for "
        "both.",
        "semlabel bench data-efficiency --config demo/pipeline.toml",
        data_efficiency,
    ),
    Section(
        "order",
        "2. Order",
        "How many decisions change when the candidates are reordered?",
        "semlabel bench order --config demo/pipeline.toml --generator DIR",
        order,
    ),
    Section(
        "coupling",
        "3. Cross-item coupling",
        "One candidate of every 20 is replaced by random words: which answers about the others change?",
        "semlabel bench coupling --config demo/pipeline.toml --generator DIR",
        coupling_report.table,
    ),
    Section(
        "throughput",
        "4. Offline throughput and the table of work",
        "What every method has to do for one query with N items, and how fast it is, each with its best settings.",
        "semlabel bench throughput --config demo/pipeline.toml",
        throughput,
    ),
    Section(
        "serving",
        "5. Serving against N",
        "Labels per second and latency of the server against N, with the ratio of tokens R(N) beside it.",
        "semlabel bench serving --model demo/run/labelers/current",
        serving,
    ),
    Section(
        "formats",
        "6. Formats",
        "Chat template against one readout token: tokens, speed, and quality after equal training.",
        "semlabel bench formats --config demo/pipeline.toml",
        ablations_report.table,
    ),
    Section(
        "ablations",
        "7. Ablations",
        "What a practitioner asks, as variants of one recipe at equal pairs.",
        "semlabel bench ablations --config demo/pipeline.toml",
        ablations_report.table,
    ),
)


def page(results: Path, notes: dict[str, str]) -> str:
    """The whole page; `notes` are what people wrote, by section."""
    documents = {section.name: _read(results / f"{section.name}.json") for section in SECTIONS}
    parts = [_HEAD, "## In short\n", _short(documents), _block("summary", notes)]
    for section in SECTIONS:
        document = documents[section.name]
        parts += [f"## {section.title}\n", f"{section.text}\n", f"`{section.command}`\n"]
        if document is None:
            parts.append(f"**{NOT_RUN[0].upper()}{NOT_RUN[1:]}.**\n")
        else:
            parts += [_origin(section.name, document), section.tables(document)]
            if (results / f"{section.name}.png").exists():
                parts.append(f"![{section.title}](../benchmarks/results/{section.name}.png)\n")
            parts += _missing(document)
        parts.append(_block(section.name, notes))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _short(documents: dict[str, dict | None]) -> str:
    efficiency, order, offline = (documents[name] for name in ("data_efficiency", "order", "throughput"))
    held = "the same of packed generation, held to a well-formed list"
    rows = [
        ["pairs that packed generation needs, for equal average precision", "4.7 times", _ratio(efficiency)],
        ["decisions of semantic scoring that change with the order", "at most 0.01 %", _changed(order, "mis")],
        [held, "-", _changed(order, "generation_constrained")],
        ["offline throughput against packed generation, N = 200", "1.24 times", _speed(offline)],
        [
            "online throughput against packed generation at the knee, N = 200",
            "1.9 times",
            _online(documents["serving"]),
        ],
    ]
    return markdown_table(["claim", "paper", "here"], rows)


def _ratio(document: dict | None) -> str:
    if document is None:
        return NOT_RUN
    (row,) = (r for r in document["ratio_at_the_best_of_generation"] if r["measure"] == "average_precision")
    report = data_efficiency_report
    return f"{report.told(row['ratio'])} times ({report.span(row)}), {row['pairs']:,} pairs"


def _changed(document: dict | None, method: str) -> str:
    cells = [cell for cell in document["cells"] if cell["method"] == method] if document else []
    return "; ".join(f"{cell['precision']}: {cell['mean_changed_share']:.3%}" for cell in cells) or NOT_RUN


def _speed(document: dict | None) -> str:
    cells = document["cells"] if document else []
    found = {
        (cell["precision"], cell["method"]): cell["labels_per_s"]
        for cell in cells
        if (cell["query_tokens"], cell["item_tokens"], cell["items"]) == (*_SHAPE, _ITEMS)
    }
    precisions = list(dict.fromkeys(precision for precision, _ in found))
    told = [
        f"{precision}: {found[precision, 'mis'] / found[precision, 'generation']:.2f} times"
        for precision in precisions
        if (precision, "mis") in found and (precision, "generation") in found
    ]
    return "; ".join(told) or NOT_RUN


def _online(document: dict | None) -> str:
    cells = document["cells"] if document else []
    found = [c for c in cells if (c["method"], c["items"]) == ("mis", 200) and c["over_generation_knee_labels_per_s"]]
    return "; ".join(f"{cell['over_generation_knee_labels_per_s']:.1f} times" for cell in found) or NOT_RUN


def _origin(name: str, document: dict) -> str:
    where = document["environment"]
    whole = "" if document.get("complete", True) else " **The run is not complete yet.**"
    return (
        f"{where['machine']}; {where['device']}; commit {where['commit'] or 'unknown'}; {where['date']}; "
        f"[raw data](../benchmarks/results/{name}.json).{whole}\n"
    )


def _missing(document: dict) -> list[str]:
    entries = document.get("missing") or []
    lines = ["- " + ", ".join(f"{key} {value}" for key, value in entry.items()) for entry in entries]
    return ["Not measured:\n", "\n".join(lines) + "\n"] if lines else []


def _block(name: str, notes: dict[str, str]) -> str:
    return f"<!-- notes: {name} -->\n{notes.get(name, '')}<!-- /notes -->\n"


def _read(file: Path) -> dict | None:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def notes_of(text: str) -> dict[str, str]:
    """What stands between the marks of a page."""
    return dict(_NOTES.findall(text))


def main() -> int:
    """Write the page; with --check only say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is out of date")
    options = parser.parse_args()
    before = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
    now = page(options.results, notes_of(before))
    if options.check:
        print(f"{options.page}: {'up to date' if now == before else 'out of date; run benchmarks/results_page.py'}")
        return int(now != before)
    options.page.write_text(now, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
