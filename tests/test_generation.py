"""Packed generation: lists are read strictly, batches and caches change nothing, texts stay texts."""

import numpy as np
import pandas as pd
import pytest
import torch

from semlabel.errors import ModelRefused, PromptError, SourceError
from semlabel.generation.answers import Faults, parse
from semlabel.generation.examples import NO_LOSS, Pack, examples, packs_from_pairs
from semlabel.generation.generator import Generator, Request
from semlabel.generation.prompt import PackPrompt
from semlabel.generation.rows import Rows, SharedQuery
from semlabel.prompt import Prompt, PromptSpec
from tests.tiny import CONTROL_TOKENS, tiny_model, tiny_tokenizer

SPEC = PromptSpec("Profile:\n{entity}\n\nActivity: {candidate}\nAnswer:", max_query_tokens=48)
TEXTS = ["keep records", "repair machines", "teach people", "sell goods", "a"]


def ids(length, seed):
    return np.random.default_rng(seed).integers(4, 384, length).tolist()


def pack_prompt(pack_size=2, spec=SPEC):
    return PackPrompt(spec, tiny_tokenizer(), pack_size)


def requests_of(*sizes):
    return [
        Request(ids(11 + size, size), [ids(1 + place % 4, 10 * size + place) for place in range(size)])
        for size in sizes
    ]


CASES = {
    "well-formed": ("1 Yes\n2 No\n3 Yes", [True, False, True], {}),
    "another order": ("3 Yes\n1 No\n2 No", [False, False, True], {}),
    "nothing at all": ("", [None] * 3, {"missing": 3}),
    "one left out": ("1 Yes\n3 No", [True, None, False], {"missing": 1}),
    "twice the same answer": ("1 Yes\n2 No\n2 No\n3 No", [True, None, False], {"duplicated": 1}),
    "two different answers": ("1 Yes\n1 No\n2 No\n3 No", [None, False, False], {"duplicated": 1}),
    "one too many": ("1 Yes\n2 No\n3 No\n4 Yes", [True, False, False], {"extra": 1}),
    "a number nobody can count to": ("1 Yes\n2 No\n3 No\n" + "9" * 5000 + " Yes", [True, False, False], {"extra": 1}),
    "number zero": ("0 Yes\n1 Yes\n2 No\n3 No", [True, False, False], {"malformed": 1}),
    "leading zero": ("01 Yes\n2 No\n3 No", [None, False, False], {"malformed": 1, "missing": 1}),
    "digits of another script": ("١ Yes\n2 No\n3 No", [None, False, False], {"malformed": 1, "missing": 1}),
    "other case": ("1 yes\n2 No\n3 No", [None, False, False], {"malformed": 1, "missing": 1}),
    "a word more": ("1 Yes, it does\n2 No\n3 No", [None, False, False], {"malformed": 1, "missing": 1}),
    "blank before": (" 1 Yes\n2 No\n3 No", [None, False, False], {"malformed": 1, "missing": 1}),
    "two blanks": ("1  Yes\n2 No\n3 No", [None, False, False], {"malformed": 1, "missing": 1}),
    "carriage return": ("1 Yes\r\n2 No\n3 No", [None, False, False], {"malformed": 1, "missing": 1}),
    "an empty line": ("1 Yes\n\n2 No\n3 No", [True, False, False], {"malformed": 1}),
    "all on one line": ("1 Yes 2 No 3 No", [None] * 3, {"malformed": 1, "missing": 3}),
    "words before": ("Answers:\n1 Yes\n2 No\n3 No", [True, False, False], {"malformed": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_answer_list_is_read_strictly_and_every_fault_counted(case):
    text, labels, faults = CASES[case]
    parsed = parse(text, 3, "Yes", "No")
    assert parsed.labels == labels
    assert parsed.faults == Faults(lists=1, candidates=3, **faults)


def test_a_list_that_was_cut_off_says_so():
    assert parse("1 Yes\n2", 2, "Yes", "No", finished=False).faults == Faults(
        lists=1, candidates=2, malformed=1, missing=1, unfinished=1
    )


def test_an_answer_word_is_not_a_pattern():
    assert parse("1 a+\n2 aa", 2, "a+", "b").labels == [True, None]


def test_faults_add_up():
    assert Faults(1, 2, 3, 4, 5, 6, 1) + Faults(1, 1, 1, 1, 1, 1, 0) == Faults(2, 3, 4, 5, 6, 7, 1)


def test_the_list_is_numbered_and_a_line_break_in_a_candidate_makes_no_line():
    prompt = pack_prompt(3)
    listed = prompt.listed(prompt.candidates(["keep records", "sell\n3. goods\u2028 now"]))
    assert prompt.text_of(listed) == "1. keep records\n2. sell 3. goods now\nAnswers:\n"


def test_no_text_of_an_entity_or_a_candidate_becomes_a_control_token():
    prompt = pack_prompt(4)
    controls = set(tiny_tokenizer().convert_tokens_to_ids(list(CONTROL_TOKENS)))
    text = " ".join(CONTROL_TOKENS) + " \ud800"
    built = [*prompt.query(text).ids, *prompt.listed(prompt.candidates([text, text]))]
    assert controls.isdisjoint(built)


def test_a_chat_prompt_ends_with_the_assistants_header():
    spec = PromptSpec(SPEC.template, format="chat", max_query_tokens=64)
    prompt = pack_prompt(2, spec)
    whole = [*prompt.query("a nurse").ids, *prompt.listed(prompt.candidates(["keep records"]))]
    assert prompt.text_of(whole).endswith("1. keep records\nAnswers:\n<|im_end|>\n<|im_start|>assistant\n")


def test_an_entity_keeps_as_many_tokens_as_in_the_single_prompt():
    long = "plans the work of others " * 40
    single, packed = Prompt(SPEC, tiny_tokenizer()), pack_prompt()
    fixed = [len(each.query("a").ids) for each in (single, packed)]
    kept = [len(each.query(long).ids) for each in (single, packed)]
    assert kept[0] - fixed[0] == kept[1] - fixed[1] > 0


def test_a_candidate_has_the_same_ids_wherever_it_stands():
    prompt = pack_prompt(2)
    one, other = prompt.candidates(["keep records", "sell goods"])
    first, second = prompt.listed([one, other]), prompt.listed([other, one])
    assert prompt.candidates(["keep records"]) == [one]
    assert str(one)[1:-1] in str(first) and str(one)[1:-1] in str(second)


@pytest.mark.parametrize("texts", [[" \n"], ["word " * 200]])
def test_a_candidate_that_is_blank_or_too_long_is_refused(texts):
    with pytest.raises(PromptError, match="candidate"):
        pack_prompt().candidates(texts)


def test_answers_that_begin_alike_are_told_apart_by_their_first_difference():
    prompt = pack_prompt(2, PromptSpec(SPEC.template, yes="Yes", no="No"))
    assert prompt.grammar.yes[0] != prompt.grammar.no[0]
    assert prompt.text_of(prompt.grammar.answer([True, False])) == "1 Yes\n2 No<|im_end|>"


@pytest.mark.parametrize("kind", ["llama", "qwen2", "opt", "gpt_neox"])
@pytest.mark.parametrize("shared", [True, False])
def test_rows_of_unequal_length_give_what_each_prompt_gives_alone(kind, shared):
    model = tiny_model(kind)
    query = ids(7, 1)
    grown = [[ids(5, 2), ids(1, 3), ids(4, 4)], [ids(2, 5), [], ids(3, 6)], [ids(1, 7), ids(6, 8), ids(2, 9)]]
    with torch.inference_mode():
        rows = Rows(model, 3, SharedQuery(model, query) if shared else None)
        so_far = [[] if shared else list(query) for _ in range(3)]
        for step in range(3):
            blocks = [row[step] for row in grown]
            first = step == 0 and not shared
            hidden = rows.append([[*query, *block] for block in blocks] if first else blocks)
            for row, block in enumerate(blocks):
                so_far[row] += block
                if block:
                    whole = torch.tensor([[*(query if shared else []), *so_far[row]]])
                    alone = model.base_model(input_ids=whole).last_hidden_state[0, -1]
                    assert (hidden[row] - alone).abs().max() < 1e-4, (step, row)


def test_rows_without_any_token_are_refused():
    with pytest.raises(ValueError, match="no token"):
        Rows(tiny_model(), 2).append([[5], []])


def test_margins_of_the_grammar_are_those_of_the_plain_model_on_the_written_text():
    model, prompt = tiny_model(), pack_prompt(3)
    (request,) = requests_of(3)
    (answered,) = Generator(model, prompt, constrained=True).answer([request])
    grammar = prompt.grammar
    written = [*request.query, *prompt.listed(request.candidates)]
    for line in range(3):
        written += grammar.lead(line)
        with torch.inference_mode():
            last = model(input_ids=torch.tensor([written])).logits[0, -1]
        expected = float(last[grammar.yes[0]] - last[grammar.no[0]])
        assert answered.margins[line] == pytest.approx(expected, abs=1e-4)
        assert answered.labels[line] == (expected >= 0)
        written += grammar.yes if answered.labels[line] else grammar.no
    assert answered.faults == Faults(lists=1, candidates=3)


def test_skipping_forced_tokens_batching_and_sharing_change_no_answer():
    model, prompt = tiny_model(seed=3), pack_prompt(2)
    requests = requests_of(5, 1, 2)
    plain = Generator(model, prompt, constrained=True, skip_forced=False, shared_query=False, packs_per_forward=1)
    expected = plain.answer(requests)
    forwards = plain.work.decode_forwards
    assert {label for one in expected for label in one.labels} == {True, False}
    for skip in (True, False):
        for shared in (True, False):
            generator = Generator(
                model, prompt, constrained=True, skip_forced=skip, shared_query=shared, packs_per_forward=3
            )
            for found, one in zip(generator.answer(requests), expected, strict=True):
                assert found.labels == one.labels
                assert np.abs(found.margins - one.margins).max() < 1e-4
                assert found.faults == one.faults
            assert generator.work.decode_forwards < forwards
            assert generator.work.packs == 5


def test_a_higher_threshold_is_a_bias_against_yes():
    model, prompt = tiny_model(seed=3), pack_prompt(2)
    (answered,) = Generator(model, prompt, constrained=True, threshold=1e6).answer(requests_of(4))
    assert answered.labels == [False] * 4


def test_a_model_that_writes_no_list_gets_no_label_and_its_faults_are_counted():
    (answered,) = Generator(tiny_model(), pack_prompt(2), packs_per_forward=2).answer(requests_of(5))
    assert answered.margins is None
    assert answered.labels == [None] * 5
    faults = answered.faults
    assert (faults.lists, faults.candidates, faults.missing) == (3, 5, 5)
    assert faults.malformed > 0


@pytest.fixture(scope="module")
def trained():
    """A tiny model that has learned some lists by heart, the prompt, and these lists as requests and labels."""
    prompt, model = pack_prompt(3), tiny_model(seed=1)
    asked = [("a nurse", [True, False, True]), ("a welder", [False, True, False]), ("an office", [False, False, True])]
    packs = [Pack(entity, TEXTS[start : start + 3], labels) for start, (entity, labels) in enumerate(asked)]
    made = examples(prompt, packs)
    width = max(len(example.ids) for example in made)
    tokens = torch.tensor([[*example.ids, *[0] * (width - len(example.ids))] for example in made])
    targets = torch.tensor([[*e.targets, *[NO_LOSS] * (width - len(e.ids))] for e in made])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with torch.random.fork_rng(devices=[]):
        for _ in range(150):
            loss = model(input_ids=tokens, labels=targets).loss
            if loss.item() < 0.01:
                break
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    requests = [Request(prompt.query(p.entity_text).ids, prompt.candidates(p.candidate_texts)) for p in packs]
    return model.eval(), prompt, requests, [pack.labels for pack in packs]


@pytest.mark.parametrize("shared", [True, False])
def test_free_and_held_decoding_agree_where_the_model_writes_well_formed_lists(trained, shared):
    model, prompt, requests, labels = trained
    free = Generator(model, prompt, shared_query=shared).answer(requests)
    held = Generator(model, prompt, constrained=True, shared_query=shared).answer(requests)
    assert [one.labels for one in free] == [one.labels for one in held] == labels
    assert [one.faults for one in free] == [one.faults for one in held] == [Faults(lists=1, candidates=3)] * 3


def test_a_window_shorter_than_a_pack_is_refused_before_it_bites():
    generator = Generator(tiny_model("mistral", sliding_window=20), pack_prompt(2), constrained=True)
    with pytest.raises(ModelRefused, match="window of 20"):
        generator.answer(requests_of(2))


PAIRS = pd.DataFrame(
    [("e1", f"c{n}", n % 2) for n in range(5)] + [("e2", "c0", 1)], columns=["entity_id", "candidate_id", "label"]
)
ENTITIES = pd.DataFrame({"entity_id": ["e1", "e2"], "text": ["a nurse", "a welder"]})
CATALOG = pd.DataFrame({"candidate_id": [f"c{n}" for n in range(5)], "text": TEXTS})


def test_every_pair_is_in_one_pack_and_its_label_travels_with_it():
    packs = packs_from_pairs(PAIRS, ENTITIES, CATALOG, 2, seed=7)
    assert [len(pack.labels) for pack in packs] == [2, 2, 1, 1]
    found = sorted(
        (pack.entity_text, text, label)
        for pack in packs
        for text, label in zip(pack.candidate_texts, pack.labels, strict=True)
    )
    expected = [("a nurse", TEXTS[n], bool(n % 2)) for n in range(5)] + [("a welder", TEXTS[0], True)]
    assert found == sorted(expected)
    orders = {tuple(packs_from_pairs(PAIRS, ENTITIES, CATALOG, 5, seed)[0].candidate_texts) for seed in range(5)}
    assert len(orders) > 1
    assert packs == packs_from_pairs(PAIRS, ENTITIES, CATALOG, 2, seed=7)


def test_the_loss_is_on_the_answer_list_and_its_end_alone():
    prompt = pack_prompt(2)
    (example,) = examples(prompt, [Pack("a nurse", TEXTS[:2], [True, False])])
    learned = [target for target in example.targets if target != NO_LOSS]
    assert prompt.text_of(learned) == "1 Yes\n2 No<|im_end|>"
    assert len(example.targets) == len(example.ids)
    assert example.ids[example.answer_start :] == learned
    asked = [*prompt.query("a nurse").ids, *prompt.listed(prompt.candidates(TEXTS[:2]))]
    assert example.ids[: example.answer_start] == asked


def test_a_pair_without_a_text_is_named():
    with pytest.raises(SourceError, match="'c4'"):
        packs_from_pairs(PAIRS, ENTITIES, CATALOG[:4], 2, seed=7)
