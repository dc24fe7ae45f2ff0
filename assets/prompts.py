"""The prompt in force: of the labeler that is being made, or of the promoted one.

Knows where a tokenizer lies, nothing of what is rendered. A run that trains is about the settings' prompt; every
other run is about the promoted labeler's, whatever the settings have become since.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from assets.labelers import promoted_labeler
from resources.project import Step

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from semlabel.prompt import Prompt, PromptSpec


@dataclass(frozen=True)
class PromptInForce:
    """A prompt's specification and the directory (or hub name) of its tokenizer."""

    spec: "PromptSpec"
    tokenizer_path: str

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer, loaded once per process."""
        return _tokenizer(self.tokenizer_path)

    def tokenizer_digest(self) -> str:
        """The tokenizer's content digest."""
        return _tokenizer_digest(self.tokenizer_path)

    def prompt(self) -> "Prompt":
        """The prompt. Raises PromptError when template, answers and tokenizer do not go together."""
        return _prompt(self.spec, self.tokenizer_path)


def prompt_in_force(step: Step) -> PromptInForce:
    """The prompt that this step's run is about."""
    from semlabel.prompt import PromptSpec

    promoted = promoted_labeler(step)
    if step.trains or promoted is None:
        return PromptInForce(PromptSpec.from_settings(step.settings.prompt), step.settings.model.base)
    directory, manifest = promoted
    return PromptInForce(manifest.prompt.spec(), str(directory))


@lru_cache(maxsize=2)
def _tokenizer(path: str) -> "PreTrainedTokenizerFast":
    from semlabel.prompt import load_tokenizer

    return load_tokenizer(path)


@lru_cache(maxsize=2)
def _tokenizer_digest(path: str) -> str:
    from semlabel.prompt import tokenizer_digest

    return tokenizer_digest(_tokenizer(path))


@lru_cache(maxsize=2)
def _prompt(spec: "PromptSpec", path: str) -> "Prompt":
    from semlabel.prompt import Prompt

    return Prompt(spec, _tokenizer(path))
