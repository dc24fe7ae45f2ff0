from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Texts(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenIdLists(_message.Message):
    __slots__ = ("lists",)
    LISTS_FIELD_NUMBER: _ClassVar[int]
    lists: _containers.RepeatedCompositeFieldContainer[TokenIds]
    def __init__(self, lists: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("query_text", "query_ids", "item_texts", "item_ids", "label_token_ids", "label_token_ids_by_item", "apply_softmax", "temperature", "item_first", "model", "parse_special", "labeler_digest")
    QUERY_TEXT_FIELD_NUMBER: _ClassVar[int]
    QUERY_IDS_FIELD_NUMBER: _ClassVar[int]
    ITEM_TEXTS_FIELD_NUMBER: _ClassVar[int]
    ITEM_IDS_FIELD_NUMBER: _ClassVar[int]
    LABEL_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LABEL_TOKEN_IDS_BY_ITEM_FIELD_NUMBER: _ClassVar[int]
    APPLY_SOFTMAX_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIRST_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    LABELER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    query_text: str
    query_ids: TokenIds
    item_texts: Texts
    item_ids: TokenIdLists
    label_token_ids: TokenIds
    label_token_ids_by_item: TokenIdLists
    apply_softmax: bool
    temperature: float
    item_first: bool
    model: str
    parse_special: bool
    labeler_digest: str
    def __init__(self, query_text: _Optional[str] = ..., query_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., item_texts: _Optional[_Union[Texts, _Mapping]] = ..., item_ids: _Optional[_Union[TokenIdLists, _Mapping]] = ..., label_token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., label_token_ids_by_item: _Optional[_Union[TokenIdLists, _Mapping]] = ..., apply_softmax: _Optional[bool] = ..., temperature: _Optional[float] = ..., item_first: _Optional[bool] = ..., model: _Optional[str] = ..., parse_special: _Optional[bool] = ..., labeler_digest: _Optional[str] = ...) -> None: ...

class Scores(_message.Message):
    __slots__ = ("scores",)
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, scores: _Optional[_Iterable[float]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores", "model", "prompt_tokens", "labeler_digest")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LABELER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[Scores]
    model: str
    prompt_tokens: int
    labeler_digest: str
    def __init__(self, scores: _Optional[_Iterable[_Union[Scores, _Mapping]]] = ..., model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., labeler_digest: _Optional[str] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("candidate_id", "text")
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    candidate_id: str
    text: str
    def __init__(self, candidate_id: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class LabelRequest(_message.Message):
    __slots__ = ("entity_id", "text", "candidates", "persist", "text_version", "labeler_digest")
    ENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    PERSIST_FIELD_NUMBER: _ClassVar[int]
    TEXT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    entity_id: str
    text: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    persist: bool
    text_version: int
    labeler_digest: str
    def __init__(self, entity_id: _Optional[str] = ..., text: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., persist: _Optional[bool] = ..., text_version: _Optional[int] = ..., labeler_digest: _Optional[str] = ...) -> None: ...

class Label(_message.Message):
    __slots__ = ("candidate_id", "margin", "probability", "label", "certified")
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    candidate_id: str
    margin: float
    probability: float
    label: bool
    certified: bool
    def __init__(self, candidate_id: _Optional[str] = ..., margin: _Optional[float] = ..., probability: _Optional[float] = ..., label: _Optional[bool] = ..., certified: _Optional[bool] = ...) -> None: ...

class LabelResponse(_message.Message):
    __slots__ = ("entity_id", "labels", "threshold", "labeler_digest", "publication_version", "truncated", "persisted")
    ENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    LABELER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PUBLICATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    PERSISTED_FIELD_NUMBER: _ClassVar[int]
    entity_id: str
    labels: _containers.RepeatedCompositeFieldContainer[Label]
    threshold: float
    labeler_digest: str
    publication_version: str
    truncated: bool
    persisted: bool
    def __init__(self, entity_id: _Optional[str] = ..., labels: _Optional[_Iterable[_Union[Label, _Mapping]]] = ..., threshold: _Optional[float] = ..., labeler_digest: _Optional[str] = ..., publication_version: _Optional[str] = ..., truncated: _Optional[bool] = ..., persisted: _Optional[bool] = ...) -> None: ...
