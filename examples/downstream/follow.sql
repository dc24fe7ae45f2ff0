-- Brings `labels` up to date with the published table. Before it: SET VARIABLE published = '/path/to/published';
-- Ends with one row: what was done ('unchanged', 'followed', 'snapshot'), the version held now, and its rows.

CREATE TABLE IF NOT EXISTS labels (
    entity_id VARCHAR, candidate_id VARCHAR, label BOOLEAN, margin FLOAT, PRIMARY KEY (entity_id, candidate_id));
CREATE TABLE IF NOT EXISTS held (version VARCHAR);

-- The one time that `current` is resolved; everything below reads the folder of that version.
CREATE OR REPLACE TEMP TABLE manifest AS
SELECT version, previous_version, "rows" AS pairs, coalesce(erasures, []) AS erasures, CAST(NULL AS VARCHAR) AS mode
FROM read_json(
    getvariable('published') || '/current/manifest.json',
    columns = {
        version: 'VARCHAR', previous_version: 'VARCHAR', "rows": 'BIGINT',
        erasures: 'STRUCT(id_digest VARCHAR, erased_at VARCHAR, "rows" BIGINT)[]'},
    maximum_object_size = 268435456);
UPDATE manifest SET mode = CASE
    WHEN version = (SELECT version FROM held) THEN 'unchanged'
    WHEN previous_version = (SELECT version FROM held) THEN 'followed'
    ELSE 'snapshot' END;
SET VARIABLE folder = getvariable('published') || '/versions/' || (SELECT version FROM manifest);

BEGIN;

-- Erased entities are in no feed; the manifest of every later version names them by the sha256 of their ids.
DELETE FROM labels
WHERE (SELECT mode FROM manifest) <> 'snapshot'
  AND sha256(entity_id) IN (SELECT unnest(erasures).id_digest FROM manifest);

-- The next version: every pair whose label or margin differs, a removed one without a new margin.
DELETE FROM labels USING read_parquet(getvariable('folder') || '/changes.parquet') c
WHERE (SELECT mode FROM manifest) = 'followed' AND c.new_margin IS NULL
  AND labels.entity_id = c.entity_id AND labels.candidate_id = c.candidate_id;
INSERT OR REPLACE INTO labels
SELECT entity_id, candidate_id, new_label, new_margin FROM read_parquet(getvariable('folder') || '/changes.parquet')
WHERE (SELECT mode FROM manifest) = 'followed' AND new_margin IS NOT NULL;

-- A copy that has not as many pairs as the version has is not trusted, whatever became of it.
UPDATE manifest SET mode = 'snapshot' WHERE pairs <> (SELECT count(*) FROM labels);

-- Any other version: everything anew.
DELETE FROM labels WHERE (SELECT mode FROM manifest) = 'snapshot';
INSERT INTO labels
SELECT entity_id, candidate_id, label, margin FROM read_parquet(getvariable('folder') || '/predictions/*.parquet')
WHERE (SELECT mode FROM manifest) = 'snapshot';

DELETE FROM held;
INSERT INTO held SELECT version FROM manifest;

COMMIT;

SELECT mode, version, (SELECT count(*) FROM labels) AS pairs FROM manifest;
