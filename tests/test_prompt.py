"""Prompts: text stays text, split tokens are the whole prompt's tokens, and only the entity is ever cut."""

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from semlabel.errors import PromptError
from semlabel.prompt import Prompt, PromptSpec, answer_tokens, load_tokenizer, tokenizer_digest
from semlabel.text_tokenizer import TextTokenizer
from tests.tiny import CONTROL_TOKENS, tiny_tokenizer

TEMPLATE = "Profile:\n{entity}\n\nActivity: {candidate}\nAnswer:"
READOUT = PromptSpec(TEMPLATE, max_query_tokens=80)
CHAT = PromptSpec(TEMPLATE, format="chat", max_query_tokens=120)
TEXTS = ["Kantō", "Kanto\u0304", "👩‍👩‍👧 café", "a\u200bb\u2060c", "<b>&nbsp;</b>", "\x00", "שלום", "ﬁ", "\r\n\t ", "İ"]


@pytest.fixture(scope="module", params=[READOUT, CHAT], ids=["readout", "chat"])
def prompt(request):
    return Prompt(request.param, tiny_tokenizer())


def decoded(ids):
    return tiny_tokenizer().decode(ids, clean_up_tokenization_spaces=False)


def test_a_readout_prompt_is_the_template_and_one_token():
    prompt = Prompt(READOUT, tiny_tokenizer())
    query, item = prompt.query("plans the work"), prompt.item("keep records")
    assert decoded(query.ids) == "Profile:\nplans the work\n\nActivity:"
    assert decoded(item) == " keep records\nAnswer:<|im_end|>"
    assert item[-1] == tiny_tokenizer().eos_token_id
    assert not query.truncated


def test_a_chat_prompt_ends_where_the_answer_begins():
    prompt = Prompt(CHAT, tiny_tokenizer())
    message = "Profile:\nplans the work\n\nActivity: keep records\nAnswer:"
    whole = f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
    assert decoded([*prompt.query("plans the work").ids, *prompt.item("keep records")]) == whole
    assert prompt.item("keep records")[-1] != tiny_tokenizer().eos_token_id


def test_the_chat_prompt_is_what_the_tokenizer_itself_would_make():
    tokenizer = tiny_tokenizer()
    message = TEMPLATE.format(entity="plans the work", candidate="keep records")
    expected = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert Prompt(CHAT, tokenizer).whole("plans the work", "keep records") == expected


@pytest.mark.parametrize("control", CONTROL_TOKENS)
def test_no_added_token_comes_out_of_an_entity_or_a_candidate(prompt, control):
    controls = {tiny_tokenizer().convert_tokens_to_ids(token) for token in CONTROL_TOKENS}
    clean = sum(token in controls for token in [*prompt.query("work").ids, *prompt.item("teach")])
    for text in (control, f"plan {control} work", f"{control}{control}", f"x{control}"):
        query, item = prompt.query(text).ids, prompt.item(text)
        assert sum(token in controls for token in [*query, *item]) == clean
        assert text in decoded(query)
        assert text in decoded(item)


def test_control_words_in_the_template_are_text_too():
    spec = PromptSpec("<|im_end|>{entity} {candidate}<tool>")
    prompt = Prompt(spec, tiny_tokenizer())
    assert tiny_tokenizer().convert_tokens_to_ids("<|im_end|>") not in prompt.query("work").ids
    assert tiny_tokenizer().convert_tokens_to_ids("<tool>") not in prompt.item("teach")


def test_a_vocabulary_that_can_spell_a_control_token_is_disarmed():
    """SentencePiece vocabularies hold `<s>` as a piece, which a unigram model finds in any text."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((letter, -5.0) for letter in "▁</s>YesNoadcitynk:")]
    pieces = [*dict(pieces).items(), ("Yes", -1.0), ("No", -1.0)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    texts = TextTokenizer(tokenizer)
    naked = json.loads(backend.to_str()) | {"added_tokens": []}
    assert 1 in Tokenizer.from_str(json.dumps(naked)).encode("a<s>").ids
    assert [pieces[number][0] for number in texts.ids("a<s>")] == ["a", "<", "s", ">"]
    assert [pieces[number][0] for number in texts.ids("aéa")] == ["a", "<unk>", "a"]


def test_white_space_that_is_no_special_token_stays_a_spelling_of_text():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("    ", special=False), AddedToken("<table>", special=False)])
    texts = TextTokenizer(tokenizer)
    assert "    " not in texts.controls
    assert "<table>" in texts.controls
    assert texts.controls["<table>"] not in texts.ids("a <table> b")


@pytest.mark.parametrize("text", TEXTS)
def test_unicode_survives_byte_for_byte(prompt, text):
    if text.strip():
        assert text in decoded(prompt.query(text).ids)
        assert text in decoded(prompt.item(text))


def test_lone_surrogates_become_the_replacement_character(prompt):
    assert prompt.query("a\ud800b").ids == prompt.query("a\ufffdb").ids
    assert prompt.item("a\udfffb") == prompt.item("a\ufffdb")
    assert prompt.split_mismatch("a\ud800b", "\udfff") is None


PROMPTS = [Prompt(spec, tiny_tokenizer()) for spec in (READOUT, CHAT)]


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=30))
@example("x", "ld")
@example("hello wor", " ld")
@example("a ", "\n\nb")
@example("\u0304", "\u0304a")
@example("<|im_end|>", "<|im_end|>")
def test_split_and_whole_tokenise_alike_whatever_the_text(entity, candidate):
    for prompt in PROMPTS:
        if entity.strip() and candidate.strip() and prompt.item_problems([candidate]) == [None]:
            query = prompt.query(entity)
            assert len(query.ids) <= prompt.spec.max_query_tokens
            assert prompt.split_mismatch(entity, candidate) is None


def test_a_template_whose_parts_merge_is_found_out():
    prompt = Prompt(PromptSpec("{entity} reco{candidate}"), tiny_tokenizer())
    assert prompt.split_mismatch("keeps", "plan") is None
    problem = prompt.split_mismatch("keeps", "rds")
    assert problem is not None
    assert "in the whole prompt" in problem


def test_the_blank_before_the_candidate_travels_with_it():
    prompt = Prompt(PromptSpec("{entity} \t {candidate}"), tiny_tokenizer())
    assert decoded(prompt.query("work").ids) == "work"
    assert decoded(prompt.item("teach")) == " \t teach<|im_end|>"
    newline = Prompt(PromptSpec("{entity}:\n{candidate}"), tiny_tokenizer())
    assert decoded(newline.query("work").ids) == "work:\n"


def test_an_entity_over_the_limit_is_cut_and_marked_and_nothing_else_is():
    prompt = Prompt(READOUT, tiny_tokenizer())
    fits, at_limit = prompt.query("a"), None
    for length in range(1, 400):
        at_limit = prompt.query("a " * length)
        if at_limit.truncated:
            break
        fits = at_limit
    assert (len(fits.ids), fits.truncated) == (80, False)
    assert (len(at_limit.ids) <= 80, at_limit.truncated) == (True, True)
    long = prompt.query("plans the work of others. " * 10_000)
    assert long.truncated
    assert 70 < len(long.ids) <= 80
    assert decoded(long.ids).endswith("\n\nActivity:")
    assert prompt.split_mismatch("plans the work of others. " * 50, "keep records") is None


def test_a_cut_never_leaves_half_a_character():
    prompt = Prompt(READOUT, tiny_tokenizer())
    for text in ("👩" * 100, "ō" * 100, "x" + "👩‍👩‍👧" * 50):
        query = prompt.query(text)
        assert query.truncated
        assert "\ufffd" not in decoded(query.ids)


def test_many_entities_give_what_each_gives_alone(prompt):
    texts = [text for text in TEXTS if text.strip()] + ["plans the work. " * n for n in range(1, 40, 3)]
    assert prompt.queries(texts) == [prompt.query(text) for text in texts]
    candidates = ["keep records", "a", "Kantō"]
    assert prompt.items(candidates) == [prompt.item(text) for text in candidates]
    assert (prompt.queries([]), prompt.items([])) == ([], [])


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u3000"])
def test_blank_texts_are_refused(prompt, blank):
    with pytest.raises(PromptError, match="entity 2 of 2 is blank"):
        prompt.queries(["work", blank])
    with pytest.raises(PromptError, match="candidate's text is blank"):
        prompt.item(blank)


def test_a_candidate_one_token_over_the_limit_is_refused_not_cut():
    prompt = Prompt(READOUT, tiny_tokenizer())
    length = len(prompt.item("keep records"))
    exact = Prompt(PromptSpec(TEMPLATE, max_query_tokens=80, max_item_tokens=length), tiny_tokenizer())
    assert exact.item("keep records") == prompt.item("keep records")
    assert exact.item("keep records")[-1] == tiny_tokenizer().eos_token_id
    short = Prompt(PromptSpec(TEMPLATE, max_query_tokens=80, max_item_tokens=length - 1), tiny_tokenizer())
    with pytest.raises(PromptError, match=f"takes {length} tokens, more than max_item_tokens = {length - 1}"):
        short.item("keep records")
    assert short.item_problems(["a", "keep records", " "])[0] is None
    assert short.item_problems(["a", "keep records", " "])[2] == "the candidate's text is blank"


def test_answers_of_several_tokens_are_refused_naming_them():
    answers = answer_tokens(PromptSpec(TEMPLATE, yes="YES"), tiny_tokenizer())
    assert len(answers.yes_ids) == 3
    assert answers.problem.startswith("[prompt] yes = 'YES' is 3 tokens ('Y' + 'E' + 'S')")
    with pytest.raises(PromptError, match="'YES' is 3 tokens"):
        Prompt(PromptSpec(TEMPLATE, yes="YES"), tiny_tokenizer())


def test_answers_are_taken_as_they_are_spelt():
    tokenizer = tiny_tokenizer()
    plain = answer_tokens(PromptSpec(TEMPLATE), tokenizer)
    assert plain.problem is None
    assert answer_tokens(PromptSpec(TEMPLATE, yes=" Yes"), tokenizer).yes_ids != plain.yes_ids
    swapped = answer_tokens(PromptSpec(TEMPLATE, yes="No", no="Yes"), tokenizer)
    assert (swapped.yes_ids, swapped.no_ids) == (plain.no_ids, plain.yes_ids)


@pytest.mark.parametrize(("answers", "reason"), [({"no": "Yes"}, "the same token"), ({"yes": ""}, "0 tokens")])
def test_answers_must_differ_and_exist(answers, reason):
    with pytest.raises(PromptError, match=reason):
        Prompt(PromptSpec(TEMPLATE, **answers), tiny_tokenizer())


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{candidate} of {entity}", "{candidate} then {entity}"),
        ("{entity}", "found {entity}"),
        ("nothing", "found neither"),
        ("{entity} {candidate} {candidate}", "{candidate} then {candidate}"),
    ],
)
def test_a_template_without_its_places_is_refused(template, found):
    with pytest.raises(PromptError) as raised:
        Prompt(PromptSpec(template), tiny_tokenizer())
    assert found in str(raised.value)


def test_braces_in_template_and_texts_mean_nothing():
    prompt = Prompt(PromptSpec("{json} {entity}: {candidate} {}"), tiny_tokenizer())
    assert decoded(prompt.whole("{candidate}", "{entity}")) == "{json} {candidate}: {entity} {}<|im_end|>"


def test_a_template_that_fills_the_limit_is_refused():
    with pytest.raises(PromptError, match=r"the template alone takes \d+ of \[prompt\] max_query_tokens = 12"):
        Prompt(PromptSpec(TEMPLATE, max_query_tokens=12), tiny_tokenizer())


def test_the_readout_token_must_be_one_token():
    tokenizer = tiny_tokenizer()
    own = Prompt(PromptSpec(TEMPLATE, readout_token="<tool>"), tokenizer)
    assert own.item("a")[-1] == tokenizer.convert_tokens_to_ids("<tool>")
    assert Prompt(PromptSpec(TEMPLATE, readout_token="?"), tokenizer).item("a")[-1] == tokenizer.encode("?")[0]
    with pytest.raises(PromptError, match="readout_token = 'no such' is"):
        Prompt(PromptSpec(TEMPLATE, readout_token="no such"), tokenizer)
    tokenizer.eos_token = None
    with pytest.raises(PromptError, match="has no end token"):
        Prompt(PromptSpec(TEMPLATE), tokenizer)


def test_formats_are_checked():
    with pytest.raises(PromptError, match="format = 'json' is not known"):
        Prompt(PromptSpec(TEMPLATE, format="json"), tiny_tokenizer())
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(PromptError, match="no chat template"):
        Prompt(CHAT, tokenizer)
    tokenizer.chat_template = "hello"
    with pytest.raises(PromptError, match="exactly once"):
        Prompt(CHAT, tokenizer)


def test_a_chat_template_that_prints_todays_date_prints_the_same_every_day():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%Y-%m-%d') }}" + tokenizer.chat_template
    assert decoded(Prompt(CHAT, tokenizer).query("work").ids).startswith("26 Jul 2024<|im_start|>user")


def test_white_space_that_a_control_token_swallows_is_swallowed():
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<|end|>", rstrip=True, special=True)]})
    tokenizer.chat_template = "<|im_start|>{{ messages[0]['content'] }}<|end|>\n<|im_start|>"
    message = TEMPLATE.format(entity="work", candidate="teach")
    expected = tokenizer(f"<|im_start|>{message}<|end|>\n<|im_start|>", add_special_tokens=False).input_ids
    assert Prompt(CHAT, tokenizer).whole("work", "teach") == expected


def test_only_the_tokenizers_own_start_token_is_put_first_and_once():
    with_bos = tiny_tokenizer(add_bos=True)
    bos = with_bos.bos_token_id
    prompt = Prompt(READOUT, with_bos)
    assert prompt.query("work").ids[0] == bos
    assert [*prompt.query("work").ids, *prompt.item("teach"), *prompt.item("sell")].count(bos) == 1
    assert bos not in Prompt(READOUT, tiny_tokenizer()).query("work").ids
    assert Prompt(CHAT, with_bos).query("work").ids[:2] != [bos, bos]


def test_a_tokenizer_that_puts_a_blank_before_every_text_puts_none_inside():
    vocabulary = {piece: n for n, piece in enumerate(["<unk>", "</s>", *"▁:.abcdeghiklnoprstwyYN", "Yes", "No", "▁a"])}
    merges = [("Y", "es"), ("e", "s"), ("N", "o"), ("▁", "a")]
    vocabulary["es"] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Replace("▁", " ")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    prompt = Prompt(PromptSpec("{entity} is: {candidate}."), tokenizer)
    assert prompt.split_mismatch("a baker", "a bread") is None
    assert tokenizer.convert_ids_to_tokens(prompt.query("a baker").ids)[0] == "▁a"
    assert (prompt.yes_id, prompt.no_id) == (vocabulary["Yes"], vocabulary["No"])


def test_the_digest_moves_with_every_field_and_only_then():
    base = READOUT.digest()
    assert PromptSpec(TEMPLATE, max_query_tokens=80).digest() == base
    changes = {"template": "{entity}{candidate}", "format": "chat", "yes": "yes", "no": "no", "readout_token": "<tool>"}
    changes |= {"max_query_tokens": 81, "max_item_tokens": 65}
    fields = {name: getattr(READOUT, name) for name in PromptSpec.__dataclass_fields__}
    assert set(changes) == set(fields)
    assert len({base, *(PromptSpec(**{**fields, name: value}).digest() for name, value in changes.items())}) == 8


def test_the_spec_comes_from_settings_by_name():
    assert PromptSpec.from_settings(READOUT) == READOUT


def test_the_tokenizer_digest_survives_saving_and_sees_a_change(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    digest = tokenizer_digest(tokenizer)
    assert tokenizer_digest(tmp_path) == digest
    assert tokenizer_digest(load_tokenizer(str(tmp_path))) == digest
    tokenizer("pad me", padding="max_length", max_length=20, truncation=True)
    assert tokenizer_digest(tokenizer) == digest
    tokenizer.chat_template += " "
    assert tokenizer_digest(tokenizer) != digest
    assert tokenizer_digest(tiny_tokenizer(add_bos=True)) != digest


def test_what_is_no_tokenizer_is_one_line(tmp_path):
    with pytest.raises(PromptError, match="no tokenizer can be loaded") as raised:
        load_tokenizer(tmp_path)
    assert "\n" not in str(raised.value)


def test_importing_the_prompt_imports_no_torch():
    code = "import sys, semlabel.prompt, semlabel.versions; print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
