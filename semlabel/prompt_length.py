"""How long a prompt may be: what a model's positions hold, what its packed windows are proven for, what a round takes.

Knows configs and the limits of a prompt. Deliberately knows no text and loads no weights: limits that some text would
break one night are refused before anything is trained or scored with them, not in that night.
"""

from transformers import PretrainedConfig

from semlabel.errors import SettingsError
from semlabel.models import has_stateful_rope, smallest_window
from semlabel.prompt import PromptSpec

_UNLIMITED = 2**31
_LONGEST_WINDOW_CHECKED = 1024
_BEYOND_WINDOW = 8


def refuse_too_long(config: PretrainedConfig, spec: PromptSpec, method: str, max_round_tokens: int) -> None:
    """Raise SettingsError where texts within the limits of `spec` could make a prompt that is not scored."""
    longest = spec.max_query_tokens + spec.max_item_tokens
    asked = (
        f"[prompt] max_query_tokens = {spec.max_query_tokens} and max_item_tokens = {spec.max_item_tokens} "
        f"allow prompts of {longest} tokens"
    )
    room = longest_prompt(config, method, spec.max_query_tokens)
    if longest > room:
        kind = config.get_text_config().model_type
        raise SettingsError(f"{asked}, this {kind} is served with at most {room}; lower them to {room} together")
    if longest > max_round_tokens:
        raise SettingsError(f"{asked}, [scoring] max_round_tokens = {max_round_tokens} is less; raise it to {longest}")


def longest_prompt(config: PretrainedConfig, method: str, max_query_tokens: int) -> int:
    """The most tokens that a query and one of its items may have together, whatever a round takes."""
    return min(_known(config), _proven(config, method, max_query_tokens))


def longest_query(config: PretrainedConfig, max_query_tokens: int) -> int:
    """Tokens of the longest query of the self-check: the prompt's limit, or past the window where that is affordable.

    That may be more than the model's positions hold.
    """
    window = smallest_window(config)
    if window is None or window > _LONGEST_WINDOW_CHECKED:
        return max_query_tokens
    return max(max_query_tokens, window + _BEYOND_WINDOW)


def _known(config: PretrainedConfig) -> int:
    """Tokens the model's positions were made for; dynamic-NTK RoPE is made to go past that."""
    text = config.get_text_config()
    if has_stateful_rope(text):
        return _UNLIMITED
    return int(getattr(text, "max_position_embeddings", None) or _UNLIMITED)


def _proven(config: PretrainedConfig, method: str, max_query_tokens: int) -> int:
    """Tokens up to which the packed attention's windows cannot bite, or are made to bite in the self-check."""
    window = smallest_window(config) if method in ("auto", "mis") else None
    return _UNLIMITED if window is None or longest_query(config, max_query_tokens) > window else window
