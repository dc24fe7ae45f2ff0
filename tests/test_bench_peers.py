"""Other engines in the benchmark: what they are given is the same single prompts, and one that is absent is said to be.

llama.cpp is a stand-in here that takes its batches apart into the prompts they stand for and asks the tiny model.
"""

import ctypes
import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from semlabel.bench.methods import alone
from semlabel.bench.peers import PeerAbsent, peer_methods
from semlabel.bench.tasks import Task
from tests.tiny import save_tiny, tiny_model

YES, NO = 30, 40
TASKS = [Task([5, 6, 7, 8], [[20, 21, 22], [23], [20, 21, 24, 25]]), Task([9, 8], [[26, 27]])]


class StandIn(ModuleType):
    """The functions of llama_cpp that the benchmark calls; a decode runs every prompt by itself."""

    LLAMA_FTYPE_ALL_F32, LLAMA_FTYPE_MOSTLY_Q8_0, LLAMA_FTYPE_MOSTLY_BF16 = 0, 7, 32
    GGML_TYPE_F32 = 0
    LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED = 0, 1
    llama_log_callback = staticmethod(lambda function: function)

    def __init__(self):
        super().__init__("llama_cpp")
        self.model = tiny_model()
        self.quantised, self.contexts, self.freed, self.code = [], [], 0, 0
        self.llama_backend_init = lambda: None
        self.llama_print_system_info = lambda: b"CPU : AVX512_BF16 = 1 | "
        self.llama_log_set = lambda callback, data: None
        self.llama_model_quantize_default_params = _Quantising
        self.llama_model_default_params = SimpleNamespace
        self.llama_context_default_params = SimpleNamespace
        self.llama_model_load_from_file = lambda path, parameters: "model"
        self.llama_get_memory = lambda context: context
        self.llama_memory_clear = lambda memory, data: None
        self.llama_batch_free = lambda batch: None
        self.llama_get_logits_ith = lambda context, number: context.logits[number]

    def llama_model_quantize(self, source, target, parameters):
        self.quantised.append(parameters._obj.ftype)
        return 0

    def llama_init_from_model(self, model, parameters):
        self.contexts.append(parameters)
        return parameters

    def llama_free(self, context):
        self.freed += 1

    def llama_batch_init(self, tokens, embeddings, sequences):
        empty = [[None] * sequences for _ in range(tokens)]
        columns = {name: [None] * tokens for name in ("token", "pos", "n_seq_id", "logits")}
        return SimpleNamespace(seq_id=empty, **columns)

    def llama_decode(self, context, batch):
        assert batch.n_tokens == len(batch.token) <= context.n_ctx
        context.logits = {}
        for number in range(batch.n_tokens):
            if batch.logits[number]:
                assert batch.n_seq_id[number] == 1
                prompt = self._prompt(batch, batch.seq_id[number][0], number)
                with torch.no_grad():
                    context.logits[number] = self.model(torch.tensor([prompt])).logits[0, -1].tolist()
        return self.code

    @staticmethod
    def _prompt(batch, sequence, last):
        """The ids that stand in a sequence at the positions up to that of its token `last`."""
        seen = {}
        for number in range(batch.n_tokens):
            if sequence in batch.seq_id[number][: batch.n_seq_id[number]]:
                assert batch.pos[number] not in seen
                seen[batch.pos[number]] = batch.token[number]
        return [seen[position] for position in range(batch.pos[last] + 1)]


class _Quantising(ctypes.Structure):
    _fields_ = [("ftype", ctypes.c_int), ("allow_requantize", ctypes.c_bool), ("nthread", ctypes.c_int)]


@pytest.fixture
def engine(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "llama_cpp", stand_in)
    monkeypatch.delitem(sys.modules, "semlabel.bench.peers.llama", raising=False)
    yield stand_in
    sys.modules.pop("semlabel.bench.peers.llama", None)


@pytest.fixture
def gguf(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    return str(tmp_path / "model.gguf")


def llama(gguf, weights="fp32"):
    return importlib.import_module("semlabel.bench.peers.llama").LlamaCpp(gguf, weights, (YES, NO))


def single_prompts(model):
    return [[alone(model, (YES, NO), task.query, item) for item in task.items] for task in TASKS]


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_item_of_llama_cpp_sees_its_query_and_itself_at_its_own_positions(engine, gguf, lanes):
    scored = llama(gguf).run(TASKS, {"ubatch": 128, "flash": True, "lanes": lanes})
    for found, expected in zip(scored.margins, single_prompts(engine.model), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (scored.account.prefill_tokens, scored.account.forwards) == (4 + 8 + 2 + 2, 2)


def test_more_items_than_llama_cpp_has_sequences_go_in_several_rounds(engine, gguf, monkeypatch):
    method = llama(gguf)
    monkeypatch.setattr(sys.modules["semlabel.bench.peers.llama"], "_SEQUENCES", 2)
    scored = method.run(TASKS, {"ubatch": 128, "flash": False})
    np.testing.assert_allclose(scored.margins[0], single_prompts(engine.model)[0], atol=1e-5)
    assert scored.account.forwards == 3


def test_no_timed_call_of_llama_cpp_waits_for_a_context_that_was_there_before(engine, gguf):
    method = llama(gguf)
    settings = [{"ubatch": 128, "flash": True}, {"ubatch": 256, "flash": True}, {"ubatch": 128, "flash": False}]
    for setting in settings * 2:
        method.run(TASKS, setting)
    assert (len(engine.contexts), engine.freed) == (3, 0)
    longer = Task(list(range(50)), [[20 + n % 9] * 5 for n in range(60)])
    method.run([longer], settings[0])
    assert (len(engine.contexts), engine.freed) == (4, 3)
    assert engine.contexts[-1].n_ctx == 512


def test_settings_of_llama_cpp_are_searched_up_to_the_size_of_a_batch(engine, gguf):
    method = llama(gguf)
    ladders = method.ladders([Task([1] * 170, [[2] * 8] * 20)])
    assert [[setting["ubatch"] for setting in ladder] for ladder in ladders] == [[128, 256, 512]] * 2
    assert [{setting["flash"] for setting in ladder} for ladder in ladders] == [{True}, {False}]


def test_a_batch_that_llama_cpp_refuses_gives_no_margins(engine, gguf):
    method = llama(gguf)
    engine.code = 1
    with pytest.raises(RuntimeError, match="returned 1"):
        method.run(TASKS, {"ubatch": 128, "flash": True})


def test_a_gguf_that_is_not_there_is_said_before_anything_is_loaded(engine):
    with pytest.raises(PeerAbsent, match=r"nowhere\.gguf is no file"):
        llama("nowhere.gguf")
    assert engine.quantised == []


def test_beside_bf16_llama_cpp_is_measured_in_both_weight_formats(engine, gguf, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True if name == "llama_cpp" else None)
    methods, absent = peer_methods("nowhere", "bf16", (YES, NO), gguf)
    assert [method.name for method in methods] == ["llama_cpp", "llama_cpp_q8_0"]
    assert engine.quantised == [engine.LLAMA_FTYPE_MOSTLY_BF16, engine.LLAMA_FTYPE_MOSTLY_Q8_0]
    assert [method.engine for method in methods] == [
        "bf16 weights; CPU : AVX512_BF16 = 1 |",
        "q8_0 weights; CPU : AVX512_BF16 = 1 |",
    ]
    assert [entry["method"] for entry in absent] == ["openvino"]


def test_a_peer_that_is_not_installed_is_reported_not_fatal(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    methods, absent = peer_methods("nowhere", "bf16", (1, 2), None)
    assert methods == []
    assert [(entry["method"], entry["precision"]) for entry in absent] == [
        ("llama_cpp", "bf16"),
        ("llama_cpp_q8_0", "bf16"),
        ("openvino", "bf16"),
    ]
    assert all("bench-peers" in entry["reason"] for entry in absent)


@pytest.mark.parametrize("setting", [{"items_per_round": 3}, {"items_per_round": 2, "lanes": 2}])
def test_openvino_gives_the_margins_of_single_prompts(tmp_path, setting):
    pytest.importorskip("openvino", reason="the extra bench-peers")
    from semlabel.bench.peers.openvino_graph import OpenVino

    scored = OpenVino(str(save_tiny(tmp_path / "model")), "fp32", (YES, NO)).run(TASKS, setting)
    for found, expected in zip(scored.margins, single_prompts(tiny_model()), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)
