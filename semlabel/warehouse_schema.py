"""The tables of `warehouse.duckdb`, their numbered migrations and the `predictions` view.

Knows SQL only; deliberately knows nothing of how the tables are filled. Facts are content-addressed: a margin belongs
to (entity text, candidate text, scorer), named by integer surrogates because hex identities per score cost gigabytes.
One row of `scores` is one round: the margins of one entity text for the candidates of one block, in the block's order.
Blocks and scores are never changed, and no two rounds of a scorer cover the same pair (`warehouse_scores` sees to it),
so labels, probabilities and publications are plain derivations. All times are UTC.
"""

from semlabel.decision import decision_sql

# Migration i brings a warehouse of version i to version i + 1. A published entry is never edited: later ones follow it.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE meta (
            schema_version INTEGER NOT NULL, warehouse_id VARCHAR NOT NULL, created_at TIMESTAMP NOT NULL,
            views_digest VARCHAR NOT NULL)""",
        "CREATE SEQUENCE text_keys",
        "CREATE SEQUENCE scorer_keys",
        "CREATE SEQUENCE block_ids",
        "CREATE TABLE texts (text_key INTEGER NOT NULL, text_id VARCHAR NOT NULL)",
        """CREATE TABLE entities (
            entity_id VARCHAR NOT NULL, text VARCHAR NOT NULL, text_id VARCHAR NOT NULL, text_version VARCHAR,
            split VARCHAR NOT NULL, group_id BIGINT, query_tokens INTEGER, truncated BOOLEAN NOT NULL,
            text_key INTEGER NOT NULL)""",
        """CREATE TABLE catalog (
            candidate_id VARCHAR NOT NULL, text VARCHAR NOT NULL, text_id VARCHAR NOT NULL, certified BOOLEAN NOT NULL,
            "group" VARCHAR, item_tokens INTEGER, position INTEGER NOT NULL, text_key INTEGER NOT NULL)""",
        """CREATE TABLE reference_labels (
            entity_id VARCHAR NOT NULL, candidate_id VARCHAR NOT NULL, label BOOLEAN NOT NULL)""",
        """CREATE TABLE training_pairs (
            entity_id VARCHAR NOT NULL, candidate_id VARCHAR NOT NULL, label BOOLEAN NOT NULL, split VARCHAR NOT NULL,
            kind VARCHAR NOT NULL, position INTEGER NOT NULL)""",
        "CREATE TABLE scorers (scorer_key INTEGER NOT NULL, scorer_digest VARCHAR NOT NULL)",
        """CREATE TABLE blocks (
            block_id INTEGER NOT NULL, position INTEGER NOT NULL, candidate_text_key INTEGER NOT NULL)""",
        """CREATE TABLE scores (
            text_key INTEGER NOT NULL, block_id INTEGER NOT NULL, scorer_key INTEGER NOT NULL, margins FLOAT[] NOT NULL,
            run_id VARCHAR NOT NULL, scored_at TIMESTAMP NOT NULL)""",
        """CREATE TABLE labelers (
            labeler_digest VARCHAR NOT NULL, scorer_key INTEGER NOT NULL, threshold DOUBLE, platt_a DOUBLE,
            platt_b DOUBLE, created_at TIMESTAMP NOT NULL)""",
        "CREATE TABLE active_labeler (labeler_digest VARCHAR NOT NULL)",
        "CREATE TABLE scope (everything BOOLEAN NOT NULL, description VARCHAR NOT NULL, digest VARCHAR NOT NULL)",
        "INSERT INTO scope VALUES (true, 'all entities', 'all')",
        "CREATE TABLE prediction_scope (entity_id VARCHAR NOT NULL)",
        """CREATE TABLE refused_rows (
            run_id VARCHAR NOT NULL, source VARCHAR NOT NULL, row_id VARCHAR NOT NULL, reason VARCHAR NOT NULL,
            refused_at TIMESTAMP NOT NULL)""",
        """CREATE TABLE content_digests (
            table_name VARCHAR NOT NULL, digest VARCHAR NOT NULL, rows BIGINT NOT NULL, source_digest VARCHAR,
            run_id VARCHAR NOT NULL, updated_at TIMESTAMP NOT NULL, checked_at TIMESTAMP NOT NULL)""",
    ),
    (
        """CREATE TABLE left_out_candidates (
            candidate_id VARCHAR NOT NULL, text VARCHAR NOT NULL, text_id VARCHAR NOT NULL, "group" VARCHAR,
            text_key INTEGER NOT NULL)""",
        # When a purge first found nobody using it any more; null while it is in use.
        "ALTER TABLE texts ADD COLUMN unused_since TIMESTAMP",
        "ALTER TABLE scorers ADD COLUMN unused_since TIMESTAMP",
        # Which texts an entity had before, so that an erasure finds their margins too (see `erase_warehouse`).
        """CREATE TABLE former_texts (
            entity_id VARCHAR NOT NULL, text_key INTEGER NOT NULL, since TIMESTAMP NOT NULL)""",
        # One row after the first compaction: the size of the fresh file and what it held (see `compaction`).
        "CREATE TABLE compactions (compacted_at TIMESTAMP NOT NULL, bytes BIGINT NOT NULL, weight BIGINT NOT NULL)",
    ),
    (
        # How a pair came to be judged: 'reference', 'random' or 'active:...' (see `judgements`), and how likely it was.
        "ALTER TABLE reference_labels ADD COLUMN design VARCHAR DEFAULT 'reference'",
        "ALTER TABLE reference_labels ADD COLUMN inclusion_probability DOUBLE",
        # The newest text of an entity that came online, and what it is beside the source (see `online_texts`).
        """CREATE TABLE online_texts (
            entity_id VARCHAR NOT NULL, text_version BIGINT NOT NULL, text VARCHAR, text_id VARCHAR NOT NULL,
            state VARCHAR NOT NULL, older VARCHAR[] NOT NULL, accepted_at TIMESTAMP NOT NULL,
            run_id VARCHAR NOT NULL)""",
        # Segments of the spool that were taken: one that is still there after a kill is not taken again.
        """CREATE TABLE ingested_segments (
            name VARCHAR NOT NULL, updates INTEGER NOT NULL, run_id VARCHAR NOT NULL,
            ingested_at TIMESTAMP NOT NULL)""",
    ),
    (
        # What an entity was drawn for, kept when it leaves (see `remembered_splits`); '' is left out for good. The seed
        # as the settings say it, null where an earlier version drew.
        """CREATE TABLE remembered_splits (
            entity_id VARCHAR NOT NULL, split VARCHAR NOT NULL, seed VARCHAR, assigned_at TIMESTAMP NOT NULL)""",
        # Earlier versions gave a group to whatever they drew. Who was trained on never judges, whatever they said then.
        """INSERT INTO remembered_splits
        SELECT entity_id, CASE WHEN split = '' THEN '' WHEN trained THEN 'train' ELSE split END, NULL,
               now() AT TIME ZONE 'UTC'
        FROM (SELECT entity_id, split FROM entities WHERE group_id IS NOT NULL)
        FULL JOIN (SELECT DISTINCT entity_id, true AS trained FROM training_pairs) USING (entity_id)
        ORDER BY entity_id""",
    ),
    (
        # At most one row: by which rule `shortlists` were made, and for which catalog (see `shortlist_store`).
        """CREATE TABLE active_shortlist (
            digest VARCHAR NOT NULL, rule_digest VARCHAR NOT NULL, size BIGINT NOT NULL, encoder VARCHAR NOT NULL,
            encoder_digest VARCHAR NOT NULL)""",
        # The candidates that an entity text is scored for; empty where every pair is.
        "CREATE TABLE shortlists (text_key INTEGER NOT NULL, candidate_text_keys INTEGER[] NOT NULL)",
    ),
    (
        # Pairs that are neither YES nor NO though they could count as one: what references say of them contradicts
        # itself or cannot be read, or chance drew them and nobody judged them (see `judging.labels`).
        """CREATE TABLE undecided_pairs (
            entity_id VARCHAR NOT NULL, candidate_id VARCHAR NOT NULL, reason VARCHAR NOT NULL)""",
    ),
)

CHOSEN_FIRST = "md5(entity_id), entity_id"
"""The order in which a limited run takes entities: by hash, so a larger limit holds all that a smaller one held."""

# Views are derived: a writer that opens a warehouse with other ones makes them anew.
SCOPED_ENTITIES = """CREATE OR REPLACE VIEW scoped_entities AS
SELECT * FROM entities
WHERE (SELECT everything FROM scope) OR entity_id IN (SELECT entity_id FROM prediction_scope)"""


# The entities whose text is the one that came online last, whether the source says it too by now or not.
ONLINE_ENTITIES = """CREATE OR REPLACE VIEW online_entities AS
SELECT entity_id FROM entities JOIN online_texts USING (entity_id, text_id) WHERE state <> 'overtaken'"""


def shortlisted_pairs(entities: str) -> str:
    """The pairs (text_key, candidate_text_key) that stand in the shortlists of a relation of entities."""
    return (
        "SELECT text_key, unnest(candidate_text_keys) AS candidate_text_key FROM shortlists "
        f"SEMI JOIN {entities} shortlisted USING (text_key)"
    )


def predictions_query(entities: str, shortlisted: bool = False) -> str:
    """The query of the predictions for a relation of entities (entity_id, text_key, truncated).

    With `shortlisted` only pairs of the shortlists are predicted, whatever else has a margin.

    Scores are cut down to one scorer and to these entities before the unnest, because filters do not pass it; the
    candidates of a block are unnested beside its margins, which spares a join of every pair with `blocks`.
    """
    own = "e.text_key, " if shortlisted else ""
    kept = (
        f""" SEMI JOIN ({shortlisted_pairs(entities)}) k
ON k.text_key = p.text_key AND k.candidate_text_key = p.candidate_text_key"""
        if shortlisted
        else ""
    )
    return f"""WITH active AS (SELECT * FROM labelers SEMI JOIN active_labeler USING (labeler_digest)),
pairs AS (
    SELECT {own}e.entity_id, e.truncated, s.run_id, s.scored_at, unnest(b.candidate_text_keys) AS candidate_text_key,
           unnest(s.margins) AS margin
    FROM (SELECT * FROM scores WHERE scorer_key = (SELECT scorer_key FROM active)) s
    JOIN (SELECT block_id, list(candidate_text_key ORDER BY position) AS candidate_text_keys
          FROM blocks GROUP BY block_id) b ON b.block_id = s.block_id
    JOIN {entities} e ON e.text_key = s.text_key)
SELECT p.entity_id, c.candidate_id, p.margin,
       1 / (1 + exp(-(a.platt_a * CAST(p.margin AS DOUBLE) + a.platt_b))) AS probability,
       {decision_sql("p.margin", "a.threshold")} AS label, a.threshold, a.labeler_digest, p.scored_at, p.run_id,
       c.certified, p.truncated
FROM pairs p JOIN catalog c ON c.text_key = p.candidate_text_key CROSS JOIN active a{kept}"""


def views(shortlisted: bool = False) -> tuple[str, ...]:
    """The views of a warehouse, with or without shortlists."""
    return (
        SCOPED_ENTITIES,
        ONLINE_ENTITIES,
        f"CREATE OR REPLACE VIEW predictions AS {predictions_query('scoped_entities', shortlisted)}",
    )


VIEWS = views()
