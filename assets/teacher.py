"""`teacher_labels`: pairs of train entities that a large model judged, where `[teacher]` names one. Off by default.

Knows which pairs are asked about, what may be spent, and where the answers are kept. How a model is asked stands in
`semlabel.teacher`, what its answers may be used for in `semlabel.judging`: they train, and never prove anything.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets import metadata
from resources.project import ProjectResource, Step

if TYPE_CHECKING:
    from semlabel.judging.sample import SampledPair
    from semlabel.judging.taught import Asked
    from semlabel.teacher import Price, Question, Taught, Teacher


@dg.asset(
    deps=["entities", "catalog"],
    group_name="sources",
    kinds={"openai", "table"},
)
def teacher_labels(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    """What the teacher says of up to `[teacher] pairs` pairs: the ones that teach most, each asked once."""
    from semlabel import teacher as asking
    from semlabel.judging import taught

    step = project.step(context)
    settings = step.settings.teacher
    assert settings.model is not None and settings.price_in is not None and settings.price_out is not None
    with step.alone_in(taught.LEASE):
        known = taught.read_asked(step.settings)
        pairs, current = _to_ask(step, known)
        template = step.settings.prompt.template
        questions = [
            asking.question(row, pair.entity_text, pair.candidate_text, template, settings.model)
            for row, pair in enumerate(pairs)
        ]
        price = asking.Price(settings.price_in, settings.price_out)
        client = asking.connect(settings.retries, settings.timeout_seconds) if questions else None
        teacher = asking.Teacher(client, settings.model, taught.folder(step.settings))
        expected = _within_cap(step, teacher, questions, price)
        found = _asked(step, teacher, questions, price)
        fresh = _answers(pairs, found, settings.model)
        if fresh:
            taught.write_asked(step.settings, [*known, *fresh])
    return metadata.materialized(
        taught.taught_digest(step.settings) or "",
        len(current) + len(fresh),
        model=settings.model,
        asked_before=len(current),
        answered=len(found.answers),
        yes=sum(said == "yes" for said in found.answers.values()),
        **{name: getattr(found, name) for name in ("unsure", "refused", "failed", "not_asked", "cached", "unreported")},
        tokens_in=found.tokens_in,
        tokens_out=found.tokens_out,
        estimated_cost=expected,
        cost=price.of(found.tokens_in, found.tokens_out),
        max_cost=settings.max_cost,
        first_failure=found.first_failure,
    )


def _to_ask(step: Step, known: "list[Asked]") -> "tuple[list[SampledPair], list[Asked]]":
    """The pairs that are still to be asked about, and what was asked of texts that are still the same."""
    from semlabel.judging.sample import of_these_texts, pairs_to_teach
    from semlabel.judging.store import read_judgements
    from semlabel.sources import read_references

    # From the source: this stands before `reference_labels`, whose table may be empty or of yesterday.
    listed = read_references(step.settings, step.operations.erased_ids()).frame
    decided = set(zip(listed["entity_id"], listed["candidate_id"], strict=True))
    with step.reader() as warehouse:
        current = of_these_texts(warehouse, known)
        by_people = of_these_texts(warehouse, read_judgements(step.settings))
        room = step.settings.teacher.pairs - len(current)
        judged = decided | {row.pair for row in [*current, *by_people]}
        unlisted = step.settings.sources.unlisted
        pairs = pairs_to_teach(warehouse, judged, unlisted, room) if room > 0 else []
    return pairs, current


def _within_cap(step: Step, teacher: "Teacher", questions: "list[Question]", price: "Price") -> float:
    """About what the questions cost. Raises SettingsError above the cap, before anything is sent."""
    from semlabel import teacher as asking
    from semlabel.errors import SettingsError

    new = [question for question in questions if teacher.known(question) is None]
    tokens = asking.estimate(new)
    cost, cap = price.of(*tokens), step.settings.teacher.max_cost
    step.log.info(f"teacher: {len(new)} pairs to ask about, {sum(tokens):,.0f} tokens, about {cost:.4g} of {cap:g}")
    if cost > cap:
        raise SettingsError(
            f"asking about {len(new)} pairs costs about {cost:.4g}, above [teacher] max_cost = {cap:g}; lower pairs, "
            "or raise it"
        )
    return cost


def _asked(step: Step, teacher: "Teacher", questions: "list[Question]", price: "Price") -> "Taught":
    """Ask. Raises SettingsError where nothing at all is answered."""
    from semlabel.errors import SettingsError
    from semlabel.progress import Progress

    settings = step.settings.teacher

    def told(so_far: Any) -> None:
        done = so_far.cached + len(so_far.answers) + so_far.unsure + so_far.refused + so_far.failed
        step.progress(Progress("teacher", min(done, len(questions)), len(questions), "pairs"))

    def affordable(so_far: Any) -> bool:
        spent = price.of(so_far.tokens_in, so_far.tokens_out)
        return spent < settings.max_cost or price.of(1e6, 1e6) == 0

    found = teacher.ask(questions, settings.concurrency, affordable, told)
    if found.first_failure:
        step.log.warning(f"teacher: {found.failed} of {len(questions)} failed, the first: {found.first_failure}")
    if found.failed and found.failed + found.not_asked == len(questions):
        raise SettingsError(f"the teacher answered nothing: {found.first_failure}")
    return found


def _answers(pairs: "list[SampledPair]", found: "Taught", model: str) -> "list[Asked]":
    """What was said, to be kept; what failed or was not asked is left for the next run."""
    from semlabel.judging.taught import Asked

    now = datetime.now(UTC).isoformat(timespec="seconds")
    return [
        Asked(
            *(pair.entity_id, pair.candidate_id, found.said[row], model),
            *(pair.entity_text_id, pair.candidate_text_id, now),
        )
        for row, pair in enumerate(pairs)
        if row in found.said
    ]
