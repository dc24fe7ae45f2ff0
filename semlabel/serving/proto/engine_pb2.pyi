from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Work(_message.Message):
    __slots__ = ("labeler_digest", "query", "items", "lengths", "labels", "label_lengths", "over_vocabulary", "temperature")
    LABELER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LABEL_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    OVER_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    labeler_digest: str
    query: bytes
    items: bytes
    lengths: bytes
    labels: bytes
    label_lengths: bytes
    over_vocabulary: bool
    temperature: float
    def __init__(self, labeler_digest: _Optional[str] = ..., query: _Optional[bytes] = ..., items: _Optional[bytes] = ..., lengths: _Optional[bytes] = ..., labels: _Optional[bytes] = ..., label_lengths: _Optional[bytes] = ..., over_vocabulary: _Optional[bool] = ..., temperature: _Optional[float] = ...) -> None: ...

class Readings(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    def __init__(self, values: _Optional[bytes] = ...) -> None: ...

class Loaded(_message.Message):
    __slots__ = ("labeler_digest", "path", "vocabulary", "longest_prompt")
    LABELER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    LONGEST_PROMPT_FIELD_NUMBER: _ClassVar[int]
    labeler_digest: str
    path: str
    vocabulary: int
    longest_prompt: int
    def __init__(self, labeler_digest: _Optional[str] = ..., path: _Optional[str] = ..., vocabulary: _Optional[int] = ..., longest_prompt: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("current", "loaded", "problem", "draining", "waiting")
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    current: str
    loaded: _containers.RepeatedCompositeFieldContainer[Loaded]
    problem: str
    draining: bool
    waiting: int
    def __init__(self, current: _Optional[str] = ..., loaded: _Optional[_Iterable[_Union[Loaded, _Mapping]]] = ..., problem: _Optional[str] = ..., draining: _Optional[bool] = ..., waiting: _Optional[int] = ...) -> None: ...
