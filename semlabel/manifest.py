"""`labeler.json`: what a labeler directory says about itself, and the proof that the files beside it still are it.

Knows nothing of torch, models or how margins are computed: reading a manifest takes milliseconds. Identities are
sha256 digests in hex; a labeler's digest covers everything a decision depends on, a scorer digest everything a margin
depends on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from semlabel.digests import digest_of, file_digest
from semlabel.errors import LabelerError

if TYPE_CHECKING:
    from semlabel.prompt import PromptSpec

MANIFEST_FILE = "labeler.json"
SCHEMA_VERSION: Literal[1] = 1
WEIGHTS_SUFFIX = ".safetensors"

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# No separator and no leading dot: a name can neither leave the directory nor hide in it.
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]

# Not part of a labeler's identity: when it was made, how, and what was measured on it. `manifest_digest` covers them.
_NOT_IDENTITY = {"digest", "manifest_digest", "created_at", "evidence", "known_pairs", "training"}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FileEntry(_Part):
    """One file of the directory: its sha256 and its size in bytes."""

    sha256: Digest
    size: Annotated[int, Field(ge=0)]


class AnswerToken(_Part):
    """An answer as text and as the one token id it is."""

    text: str
    id: Annotated[int, Field(ge=0)]


class AnswerTokens(_Part):
    """The two answers whose logits make the margin: logit(yes) - logit(no)."""

    yes: AnswerToken
    no: AnswerToken


class PromptPart(_Part):
    """The prompt the margins hold for; `digest` is the digest of the other fields as the prompt module computes it."""

    template: str
    format: Literal["readout", "chat"]
    yes: str
    no: str
    readout_token: str | None
    max_query_tokens: Annotated[int, Field(ge=1)]
    max_item_tokens: Annotated[int, Field(ge=1)]
    digest: Digest

    @classmethod
    def from_spec(cls, spec: "PromptSpec") -> Self:
        """The stored form of a prompt specification."""
        names = (name for name in cls.model_fields if name != "digest")
        return cls(**{name: getattr(spec, name) for name in names}, digest=spec.digest())

    def spec(self) -> "PromptSpec":
        """The prompt specification to render texts with."""
        from semlabel.prompt import PromptSpec

        return PromptSpec(**self.model_dump(exclude={"digest"}))


class CalibrationPart(BaseModel):
    """Margin to probability: sigmoid(platt_a * margin + platt_b), and whatever was measured about it.

    `certified_text_ids`, where present, are the texts of the candidates that were judged when the threshold was proven.
    """

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    platt_a: float
    platt_b: float


class ShortlistPart(_Part):
    """The rule by which candidates are shortlisted: the threshold was proven for decisions that it left out as NO."""

    size: Annotated[int, Field(ge=1)]
    encoder: str
    encoder_digest: Digest
    digest: Digest


class KnownPair(_Part):
    """One pair with the margin it had when the labeler was made; checked whenever the labeler is loaded."""

    query: str
    candidate: str
    margin: float


class Manifest(_Part):
    """The content of `labeler.json`.

    `threshold` (margin units) is None while nothing was certified; `certified` is the word that may be used of it
    ("certified", "estimated" or "uncertified"). `shortlist` is left out where every pair is scored. `evidence` holds
    the gates' results by gate name. `digest` is the labeler's identity, `manifest_digest` the digest of everything else
    in this file.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    digest: Digest
    base_model: str
    prompt: PromptPart
    answer_tokens: AnswerTokens
    tokenizer_digest: Digest
    weights_digest: Digest
    precision: Literal["fp32", "bf16", "int8"]
    scoring_code_version: int
    scorer_digest: Digest
    threshold: float | None = None
    policy: dict[str, Any] = {}
    calibration: CalibrationPart | None = None
    certified: str = "uncertified"
    shortlist: ShortlistPart | None = None
    limits: dict[str, int] = {}
    training: dict[str, Any] = {}
    evidence: dict[str, Any] = {}
    known_pairs: tuple[KnownPair, ...] = ()
    files: dict[FileName, FileEntry]
    created_at: str
    manifest_digest: Digest

    @model_serializer(mode="wrap")
    def _only_what_is_said(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A labeler without a shortlist is the labeler it was before there were any: same file, same digests.
        fields: dict[str, Any] = plain(self)
        if fields.get("shortlist") is None:
            fields.pop("shortlist", None)
        return fields

    @classmethod
    def sealed(cls, **fields: Any) -> Self:
        """A manifest of `fields`, with the digests that follow from them (scorer, labeler, manifest) filled in."""
        nothing = "0" * 64
        fields = fields | dict.fromkeys(("scorer_digest", "digest", "manifest_digest"), nothing)
        manifest = cls(**fields)
        manifest = manifest.model_copy(update={"scorer_digest": manifest._scorer_digest()})
        manifest = manifest.model_copy(update={"digest": manifest._labeler_digest()})
        return manifest.model_copy(update={"manifest_digest": manifest._manifest_digest()})

    def with_fields(self, **fields: Any) -> Self:
        """A sealed copy with some fields replaced."""
        return type(self).sealed(**(self.model_dump() | fields))

    def refuse_without_shortlist(self) -> None:
        """Raise LabelerError where the labeler was proven with shortlists: a margin alone is no decision then."""
        if self.shortlist is not None:
            raise LabelerError(
                f"labeler {self.digest[:12]} says NO to what its shortlists of {self.shortlist.size} leave out, which "
                "only the pipeline knows: read the published table, or use a labeler made without [shortlist]"
            )

    def to_json(self) -> str:
        """The text of `labeler.json`."""
        return self.model_dump_json(indent=2) + "\n"

    def _scorer_digest(self) -> str:
        return scorer_digest(
            self.weights_digest,
            self.tokenizer_digest,
            self.prompt.digest,
            (self.answer_tokens.yes.id, self.answer_tokens.no.id),
            self.limits,
            self.precision,
            self.scoring_code_version,
        )

    def _labeler_digest(self) -> str:
        return digest_of(self.model_dump(mode="json", exclude=_NOT_IDENTITY))

    def _manifest_digest(self) -> str:
        return digest_of(self.model_dump(mode="json", exclude={"manifest_digest"}))

    def disagreement(self) -> str | None:
        """Which of the digests in this manifest does not follow from its content, or None."""
        if self.prompt.spec().digest() != self.prompt.digest:
            return "prompt digest"
        if digest_of_weights(self.files) != self.weights_digest:
            return "weights digest"
        if self._scorer_digest() != self.scorer_digest:
            return "scorer digest"
        if self._labeler_digest() != self.digest:
            return "labeler digest"
        return "manifest digest" if self._manifest_digest() != self.manifest_digest else None


def scorer_digest(
    weights_digest: str,
    tokenizer_digest: str,
    prompt: "PromptSpec | str",
    answer_ids: tuple[int, int],
    limits: Mapping[str, int],
    precision: str,
    code_version: int,
) -> str:
    """The identity of a margin's meaning: everything a margin depends on. The threshold is no part of it.

    `prompt` is the specification or its digest, `answer_ids` are (yes, no) in this order.
    """
    return digest_of(
        {
            "weights": weights_digest,
            "tokenizer": tokenizer_digest,
            "prompt": prompt if isinstance(prompt, str) else prompt.digest(),
            "yes_id": answer_ids[0],
            "no_id": answer_ids[1],
            "limits": dict(limits),
            "precision": precision,
            "scoring_code_version": code_version,
        }
    )


def digest_of_weights(files: Mapping[str, FileEntry]) -> str:
    """Digest of the tensors and of the config, which decides what is computed with them."""
    wanted = {name: entry.sha256 for name, entry in files.items() if is_weights(name) or name == "config.json"}
    return digest_of(wanted)


def is_weights(name: str) -> bool:
    """Whether a file holds tensors (safetensors, or the index of several such files)."""
    return name.endswith((WEIGHTS_SUFFIX, WEIGHTS_SUFFIX + ".index.json"))


def base_identity(path: str | Path) -> dict[str, str] | str:
    """Digests of the weights and the config of a model folder by name; a hub's name stands for itself."""
    folder = Path(path)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {file.name: file_digest(file) for file in files if is_weights(file.name) or file.name == "config.json"} or (
        str(path)
    )


def describe_files(directory: Path) -> dict[str, FileEntry]:
    """{name: sha256 and size} of every file of a model directory, the manifest itself left out.

    Raises LabelerError for a directory without safetensors or with anything that is not a plain file a labeler has.
    """
    names = _names(directory)
    if not any(name.endswith(WEIGHTS_SUFFIX) for name in names):
        raise LabelerError(f"{directory}: no safetensors file found; save the model with safetensors")
    for name in names:
        _refuse_strange(directory / name)
    return {
        name: FileEntry(sha256=file_digest(directory / name), size=(directory / name).stat().st_size) for name in names
    }


def read_manifest(path: Path) -> Manifest:
    """Read `labeler.json` of a labeler directory; verify it and every small file beside it (milliseconds, no torch).

    Raises LabelerError naming the digest or the file that differs. The tensors themselves are left to `verify`.
    """
    directory = Path(path)
    manifest = _parse(directory / MANIFEST_FILE)
    differing = manifest.disagreement()
    if differing is not None:
        raise LabelerError(
            f"{directory / MANIFEST_FILE}: the {differing} differs from the content; the file was edited: "
            "restore the directory or make the labeler again"
        )
    _check_names(directory, manifest)
    for name, entry in manifest.files.items():
        if not name.endswith(WEIGHTS_SUFFIX):
            _check_file(directory / name, entry)
    return manifest


def verify(path: Path) -> Manifest:
    """`read_manifest`, then every tensor file against its digest (reads all weights: about 1 s per GB)."""
    directory = Path(path)
    manifest = read_manifest(directory)
    for name, entry in manifest.files.items():
        if name.endswith(WEIGHTS_SUFFIX):
            _check_file(directory / name, entry)
    return manifest


def _parse(file: Path) -> Manifest:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LabelerError(f"{file.parent}: no {MANIFEST_FILE} found; this is not a labeler directory") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LabelerError(f"{file}: cannot be read ({error}); restore the directory") from None
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        if place == "schema_version":
            raise LabelerError(
                f"{file}: schema version {problem['input']!r}, this program reads {SCHEMA_VERSION}; "
                "upgrade semlabel or make the labeler again"
            ) from None
        raise LabelerError(
            f"{file}: {place or 'the file'}: {problem['msg']}; it was cut short or edited: restore the directory"
        ) from None


def _names(directory: Path) -> list[str]:
    # Dot files are what editors and file managers leave behind; nothing ever loads one.
    try:
        found = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise LabelerError(f"{directory}: cannot be listed ({error.strerror}); check the path") from None
    return [name for name in found if name != MANIFEST_FILE]


def _refuse_strange(file: Path) -> None:
    if not file.is_file() or file.suffix not in (WEIGHTS_SUFFIX, ".json", ".jinja", ".txt", ".model"):
        raise LabelerError(
            f"{file}: a labeler holds safetensors, JSON and tokenizer files only (no pickles, code or folders); "
            "remove it"
        )


def _check_names(directory: Path, manifest: Manifest) -> None:
    found = _names(directory)
    missing = sorted(set(manifest.files) - set(found))
    if missing:
        raise LabelerError(f"{directory}: {missing[0]} is missing; restore the directory or make the labeler again")
    strange = sorted(set(found) - set(manifest.files))
    if strange:
        raise LabelerError(f"{directory}: {strange[0]} is not part of this labeler; remove it")


def _check_file(file: Path, entry: FileEntry) -> None:
    what = "weights digest" if file.name.endswith(WEIGHTS_SUFFIX) else f"digest of {file.name}"
    size = file.stat().st_size
    if size != entry.size:
        raise LabelerError(
            f"{file}: the {what} differs: {size} bytes found, {entry.size} expected; "
            "restore the directory or make the labeler again"
        )
    found = file_digest(file)
    if found != entry.sha256:
        raise LabelerError(
            f"{file}: the {what} differs: {found[:12]} found, {entry.sha256[:12]} expected; "
            "restore the directory or make the labeler again"
        )
