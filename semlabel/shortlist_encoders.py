"""The encoders that rank candidates: TF-IDF, which needs nothing, and embedding models of the Hugging Face hub.

Knows scikit-learn and transformers; deliberately knows nothing of catalogs' sizes or of what is kept. No code of a
model is ever run, weights are safetensors only, and whether the hub may be asked is left to `HF_HUB_OFFLINE`.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.digests import digest_of, file_digest
from semlabel.errors import SettingsError, first_line
from semlabel.shortlist import Encoder, Rule, Space

if TYPE_CHECKING:
    from semlabel.settings import Settings

TFIDF = "tfidf"
_FILES = ("*.safetensors", "*.json", "*.txt", "*.model")
_MOST_TOKENS = 512
# One way to cut texts into letters: the same as the baseline that ranks best without words in common.
_N_GRAMS = "3-5 letters"


def encoder_of(settings: "Settings") -> Encoder:
    """The encoder that the settings name. Loads nothing yet."""
    name = settings.shortlist.encoder
    return Tfidf() if name == TFIDF else HuggingFace(name, settings.model.device)


def rule_of(settings: "Settings") -> Rule | None:
    """The rule that the settings ask for, None without a shortlist. Raises SettingsError for a missing encoder."""
    if settings.shortlist.size == 0:
        return None
    encoder = encoder_of(settings)
    return Rule(settings.shortlist.size, encoder.name, encoder.digest)


class Tfidf:
    """TF-IDF over letter n-grams, fitted on the catalog alone, so that no entity moves another one's shortlist."""

    name = TFIDF

    @property
    def digest(self) -> str:
        """See `Encoder`."""
        from semlabel.baselines import N_GRAMS

        options = {key: list(value) if isinstance(value, tuple) else value for key, value in N_GRAMS[_N_GRAMS].items()}
        return digest_of([TFIDF, 1, options])

    def fitted(self, candidate_texts: Sequence[str]) -> Space:
        """See `Encoder`."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        from semlabel.baselines import N_GRAMS

        space: Space = TfidfVectorizer(sublinear_tf=True, **N_GRAMS[_N_GRAMS]).fit(candidate_texts).transform
        return space


class HuggingFace:
    """The last hidden states of an encoder, averaged over the tokens of a text and scaled to length one."""

    def __init__(self, path: str, device: str = "cpu") -> None:
        """`path` is a folder or a name on the hub."""
        self._path, self._device = path, device
        self.name = Path(path).name if Path(path).is_absolute() else path

    @cached_property
    def folder(self) -> Path:
        """Where its files lie; fetched when they are not here and the hub may be asked."""
        if Path(self._path).is_absolute():
            if not Path(self._path).is_dir():
                raise SettingsError(f"[shortlist] encoder = {self._path!r}: no such folder; name one, or a hub's model")
            return Path(self._path)
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(self._path, allow_patterns=list(_FILES)))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"[shortlist] encoder = {self._path!r} cannot be fetched: {first_line(error)}; "
                'name a folder, or use "tfidf"'
            ) from error

    @cached_property
    def digest(self) -> str:
        """See `Encoder`: every file that is read, weights included."""
        files = sorted({file for pattern in _FILES for file in self.folder.glob(pattern)})
        if not any(file.suffix == ".safetensors" for file in files):
            raise SettingsError(f"[shortlist] encoder {self.name}: {self.folder} holds no safetensors; name another")
        return digest_of([1, _MOST_TOKENS, {file.name: file_digest(file) for file in files}])

    def fitted(self, candidate_texts: Sequence[str]) -> Space:
        """See `Encoder`; an embedding does not depend on the catalog."""
        return self._rows

    def _rows(self, texts: Sequence[str]) -> Any:
        import numpy as np
        import torch

        tokenizer, model, most = self._loaded
        rows = []
        with torch.inference_mode():
            # One text at a time: with padding beside it a text's row would depend on its neighbours. Ranking is a
            # fraction of what scoring a shortlist costs, whatever its speed.
            for text in texts:
                given = tokenizer(text, return_tensors="pt", truncation=True, max_length=most).to(model.device)
                if given["input_ids"].shape[1] == 0:  # nothing of the text is in the vocabulary
                    rows.append(np.zeros(int(model.config.hidden_size)))
                    continue
                hidden = model(**given).last_hidden_state[0].double().mean(dim=0).cpu().numpy()
                rows.append(hidden / max(float(np.linalg.norm(hidden)), 1e-12))
        return np.stack(rows)

    @cached_property
    def _loaded(self) -> tuple[Any, Any, int]:
        import torch
        from transformers import AutoModel, AutoTokenizer

        from semlabel.models import resolve_device

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
            loaded: Any = AutoModel.from_pretrained(
                self.folder,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise SettingsError(f"[shortlist] encoder {self.name}: cannot be loaded: {first_line(error)}") from error
        model, report = loaded
        # Weights that are not in the files are drawn at random, anew at every load.
        if lost := sorted(name for name in report["missing_keys"] if "pooler" not in name):
            raise SettingsError(f"[shortlist] encoder {self.name}: {len(lost)} weights are missing, {lost[0]} first")
        room = getattr(model.config, "max_position_embeddings", _MOST_TOKENS)
        most = min(_MOST_TOKENS, int(room), int(tokenizer.model_max_length))
        return tokenizer, model.to(resolve_device(self._device)).eval(), most
