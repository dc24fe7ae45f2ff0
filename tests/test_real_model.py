"""The real small model on the demo's real texts. `make test-slow` prepares `demo/cache` and runs these."""

import csv
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from semlabel.gates import answers_are_single_tokens, split_tokens_match
from semlabel.prompt import Prompt, PromptSpec, answer_tokens, load_tokenizer
from semlabel.scorer import Scorer
from semlabel.settings import load_settings
from semlabel.training import train
from semlabel.training_data import TrainingRound

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[1]
CACHE = REPOSITORY / "demo" / "cache"
BASE = CACHE / "smollm2-135m-instruct"


def _texts(name: str) -> list[str]:
    with (CACHE / name).open(encoding="utf-8", newline="") as stream:
        return [row["text"] for row in csv.DictReader(stream)]


@pytest.fixture(scope="module")
def spec() -> PromptSpec:
    return PromptSpec.from_settings(load_settings(REPOSITORY / "demo" / "pipeline.toml").prompt)


@pytest.fixture(scope="module")
def prompt(spec: PromptSpec) -> Prompt:
    return Prompt(spec, load_tokenizer(BASE))


@pytest.fixture(scope="module")
def scorer(spec: PromptSpec) -> Scorer:
    torch.set_num_threads(2)
    return Scorer.load(BASE, spec, precision="fp32", device="cpu")


@pytest.fixture(scope="module")
def rounds(prompt: Prompt) -> tuple[list[list[int]], list[list[int]]]:
    """Queries of a few occupations and items of two hundred activities."""
    queries = [query.ids for query in prompt.queries(_texts("entities.csv")[:300:100])]
    return queries, prompt.items(_texts("catalog.csv")[:200])


def test_an_answer_of_two_tokens_is_refused_before_training(spec: PromptSpec) -> None:
    tokenizer = load_tokenizer(BASE)
    shouted = PromptSpec(**(vars(spec) | {"yes": "YES", "no": "NO"}))
    found = answer_tokens(shouted, tokenizer)
    assert len(found.yes_ids) == 2
    result = answers_are_single_tokens("YES", "NO", found.yes_ids, found.no_ids)
    assert (result.verdict, result.passed) == ("fail", False)
    good = answer_tokens(spec, tokenizer)
    assert answers_are_single_tokens("Yes", "No", good.yes_ids, good.no_ids).passed


def test_no_activity_and_no_occupation_tokenises_differently_in_the_whole_prompt(prompt: Prompt) -> None:
    entities, candidates = _texts("entities.csv"), _texts("catalog.csv")
    pairs = [(entities[number % len(entities)], candidate) for number, candidate in enumerate(candidates)]
    found = [problem for entity, candidate in pairs if (problem := prompt.split_mismatch(entity, candidate))]
    assert split_tokens_match([{"mismatch": problem} for problem in found], checked=len(pairs)).passed, found[:3]


def test_a_control_token_in_a_text_stays_text(prompt: Prompt) -> None:
    added = load_tokenizer(BASE).added_tokens_decoder
    control = "".join(str(token) for token in added.values())
    query, item = prompt.query(f"Bakers {control}").ids, prompt.item("Bake." + str(added[2]))
    assert not set(query) & set(added)
    assert [token for token in item if token in added] == [item[-1]]


def test_a_packed_margin_is_the_margin_of_the_single_prompt(
    scorer: Scorer, rounds: tuple[list[list[int]], list[list[int]]]
) -> None:
    queries, items = rounds
    for query in queries:
        packed = scorer.margins(query, items)
        for number in range(0, len(items), 67):
            assert packed[number] == pytest.approx(scorer.plain_margin([*query, *items[number]]), abs=1e-4)


def test_another_order_gives_the_same_bits(scorer: Scorer, rounds: tuple[list[list[int]], list[list[int]]]) -> None:
    queries, items = rounds
    order = np.random.default_rng(7).permutation(len(items))
    straight = scorer.margins(queries[0], items)
    shuffled = scorer.margins(queries[0], [items[number] for number in order])
    assert np.array_equal(straight[order], shuffled)


def test_the_three_methods_agree(
    spec: PromptSpec, scorer: Scorer, rounds: tuple[list[list[int]], list[list[int]]]
) -> None:
    queries, items = rounds
    some = items[:12]
    packed = scorer.margins(queries[1], some)
    for method in ("prefix_cache", "independent"):
        other = Scorer.load(BASE, spec, precision="fp32", device="cpu", method=method, self_check=False)
        assert np.allclose(other.margins(queries[1], some), packed, atol=1e-4), method


@pytest.mark.parametrize("method", ["full", "lora"])
def test_training_lowers_the_loss_of_the_pairs_it_sees(prompt: Prompt, tmp_path: Path, method: str) -> None:
    settings = load_settings(
        REPOSITORY / "demo" / "smoke.toml",
        env={
            "SEMLABEL__TRAINING__METHOD": method,
            "SEMLABEL__TRAINING__EPOCHS": "10.0",
            "SEMLABEL__TRAINING__LEARNING_RATE": "2e-4" if method == "full" else "1e-3",
        },
    ).training
    query = prompt.query("Bakers\n- Mix and bake dough.").ids
    items = prompt.items(["Mix dough.", "Bake bread.", "Fly aircraft.", "Teach mathematics."])
    result = train(BASE, prompt, [TrainingRound(query, items, [1, 1, 0, 0])], settings, tmp_path, device="cpu")
    assert result.loss_curve[-1] < 0.5 * result.loss_curve[0]


def _run(arguments: Sequence[str], home: Path, config: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DAGSTER_HOME": str(home), "SEMLABEL_CONFIG": str(config)}
    return subprocess.run(
        [sys.executable, "-m", "dagster", *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_dagsters_own_command_line_runs_the_sources_in_processes_of_their_own(tmp_path: Path) -> None:
    config, home = tmp_path / "pipeline.toml", tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text((REPOSITORY / "pipeline" / "dagster.yaml").read_text())
    config.write_text(f'extends = "{REPOSITORY / "demo" / "smoke.toml"}"\n[environment]\ndir = "{tmp_path / "run"}"\n')
    module = ["-m", "pipeline.definitions"]
    done = _run(["asset", "materialize", *module, "--select", "entities,catalog,reference_labels"], home, config)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run" / "warehouse.duckdb").exists()
