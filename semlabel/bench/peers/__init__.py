"""Other people's engines on the same tasks: optional, imported when asked for, reported as missing where absent.

They come with the extra `bench-peers`. Knows nothing of clocks or tables; each module is one engine.
"""

from semlabel.bench.methods import Method
from semlabel.errors import SemlabelError

_INSTALL = "not installed; pip install 'semlabel[bench-peers]'"
_PEERS = {
    "fp32": ("llama_cpp", "openvino"),
    "bf16": ("llama_cpp", "llama_cpp_q8_0", "openvino"),
}
"""What is held against each precision. q8_0 stands beside bf16: it is what llama.cpp is mostly run with."""


class PeerAbsent(SemlabelError):
    """A peer cannot be measured here; the message says why."""


def peer_methods(
    path: str, precision: str, answer_ids: tuple[int, int], gguf: str | None
) -> tuple[list[Method], list[dict[str, str]]]:
    """The peers that can run the model at `path` in `precision`, and (method, precision, reason) of those that cannot.

    `gguf` is the same model for llama.cpp, which reads no safetensors.
    """
    methods: list[Method] = []
    absent: list[dict[str, str]] = []
    for name in _PEERS.get(precision, ()):
        try:
            methods.append(_peer(name, path, precision, answer_ids, gguf))
        except PeerAbsent as error:
            absent.append({"method": name, "precision": precision, "reason": str(error)})
    return methods, absent


def _peer(name: str, path: str, precision: str, answer_ids: tuple[int, int], gguf: str | None) -> Method:
    # The packages decide whether a peer is there: an error inside them is no absence.
    import importlib.util

    package = "openvino" if name == "openvino" else "llama_cpp"
    if importlib.util.find_spec(package) is None:
        raise PeerAbsent(_INSTALL)
    if name == "openvino":
        from semlabel.bench.peers.openvino_graph import OpenVino

        return OpenVino(path, precision, answer_ids)
    from semlabel.bench.peers.llama import LlamaCpp

    if gguf is None:
        raise PeerAbsent("no GGUF of this model was named; give one with --gguf FILE")
    return LlamaCpp(gguf, "q8_0" if name == "llama_cpp_q8_0" else precision, answer_ids, name)
