-- An ops.sqlite of schema 4 as semlabel wrote it, migrated from schema 3, with certify uses that tell what was asked.
BEGIN TRANSACTION;
CREATE TABLE acknowledgements (
            incident INTEGER PRIMARY KEY REFERENCES outbox (id), who TEXT NOT NULL, reason TEXT NOT NULL,
            acknowledged_at TEXT NOT NULL);
INSERT INTO "acknowledgements" VALUES(1,'ann','known','2026-11-30T02:10:06.189027+00:00');
CREATE TABLE approvals (
            subject_digest TEXT NOT NULL, who TEXT NOT NULL, reason TEXT NOT NULL, approved_at TEXT NOT NULL);
INSERT INTO "approvals" VALUES('subject','ann','why','2026-11-30T02:09:05.915538+00:00');
CREATE TABLE certify_entities (
            use_id INTEGER NOT NULL REFERENCES certify_ledger (id), entity_digest TEXT NOT NULL,
            PRIMARY KEY (use_id, entity_digest)) WITHOUT ROWID;
INSERT INTO "certify_entities" VALUES(2,'a');
INSERT INTO "certify_entities" VALUES(3,'a');
INSERT INTO "certify_entities" VALUES(4,'a');
INSERT INTO "certify_entities" VALUES(2,'b');
INSERT INTO "certify_entities" VALUES(3,'d');
CREATE TABLE certify_ledger (
            id INTEGER PRIMARY KEY, set_digest TEXT NOT NULL, labeler_digest TEXT NOT NULL, confidence REAL,
            verdict TEXT, run_id TEXT, used_at TEXT NOT NULL, question_digest TEXT);
INSERT INTO "certify_ledger" VALUES(1,'set','labeler',NULL,NULL,NULL,'2026-11-30T02:09:05.987094+00:00',NULL);
INSERT INTO "certify_ledger" VALUES(2,'set','labeler 3',0.95,'pass','run','2026-11-30T18:54:04.497380+00:00',NULL);
INSERT INTO "certify_ledger" VALUES(3,'set','labeler 4',0.9,'fail','run','2026-11-30T22:25:54.766177+00:00','question');
INSERT INTO "certify_ledger" VALUES(4,'set','',0.99,NULL,'killed','2026-11-30T22:25:54.769034+00:00','question 2');
CREATE TABLE channels (
            target TEXT PRIMARY KEY, failures INTEGER NOT NULL DEFAULT 0, error TEXT, attempted_at TEXT,
            succeeded_at TEXT, outbox_id INTEGER, token TEXT, host TEXT, pid INTEGER, boot_id TEXT,
            process_start TEXT, claimed_at TEXT);
INSERT INTO "channels" VALUES('mail',0,NULL,NULL,'2026-11-30T02:09:06.189027+00:00',NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE deliveries (
            id INTEGER PRIMARY KEY, outbox_id INTEGER NOT NULL REFERENCES outbox (id), target TEXT NOT NULL,
            delivered INTEGER NOT NULL, error TEXT, attempted_at TEXT NOT NULL);
INSERT INTO "deliveries" VALUES(1,1,'mail',1,NULL,'2026-11-30T02:09:06.189027+00:00');
CREATE TABLE erasures (
            id_digest TEXT PRIMARY KEY, started_at TEXT NOT NULL, finished_at TEXT, counts_json TEXT NOT NULL, trained INTEGER NOT NULL DEFAULT 0);
INSERT INTO "erasures" VALUES('trained','2026-11-30T18:54:04.499386+00:00','2026-11-30T18:54:04.499613+00:00','{"warehouse: training_pairs": 2}',1);
INSERT INTO "erasures" VALUES('not trained','2026-11-30T18:54:04.509797+00:00','2026-11-30T18:54:04.510047+00:00','{"warehouse: entities": 1, "warehouse: training_pairs": 0}',0);
CREATE TABLE gate_results (
            id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, gate TEXT NOT NULL, asset TEXT NOT NULL,
            severity TEXT NOT NULL, verdict TEXT NOT NULL, value REAL, limit_value REAL, labeler_digest TEXT,
            subject_digest TEXT NOT NULL, gate_code_version NOT NULL, sentence TEXT NOT NULL,
            computed INTEGER NOT NULL, evidence_json TEXT NOT NULL, evaluated_at TEXT NOT NULL);
INSERT INTO "gate_results" VALUES(1,'run','catalog_contract','catalog','ERROR','fail',1.0,0.5,'labeler','subject',1,'a sentence',1,'{"examples": [{"row_id": "x"}]}','2026-11-30T02:09:05.664476+00:00');
CREATE TABLE leases (
            name TEXT PRIMARY KEY, token TEXT NOT NULL, run_id TEXT NOT NULL, host TEXT NOT NULL,
            pid INTEGER NOT NULL, boot_id TEXT NOT NULL, process_start TEXT NOT NULL,
            acquired_at TEXT NOT NULL, heartbeat TEXT NOT NULL);
CREATE TABLE metrics (labeler_digest TEXT PRIMARY KEY, metrics_json TEXT NOT NULL, saved_at TEXT NOT NULL);
INSERT INTO "metrics" VALUES('labeler','{"test": {"auc": 0.9}}','2026-11-30T02:09:06.015399+00:00');
CREATE TABLE outbox (
            id INTEGER PRIMARY KEY, asset TEXT NOT NULL, gate TEXT NOT NULL, severity TEXT NOT NULL,
            kind TEXT NOT NULL, verdict TEXT NOT NULL, message TEXT NOT NULL, run_id TEXT NOT NULL,
            created_at TEXT NOT NULL, incident INTEGER, value REAL, limit_value REAL);
INSERT INTO "outbox" VALUES(1,'catalog','catalog_contract','ERROR','failed','fail','a sentence','run','2026-11-30T02:09:05.664889+00:00',1,NULL,NULL);
CREATE TABLE plans (
            plan_id TEXT PRIMARY KEY, scorer_digest TEXT NOT NULL, subject_digest TEXT NOT NULL,
            state TEXT NOT NULL, rounds_total INTEGER NOT NULL, rounds_done INTEGER NOT NULL DEFAULT 0,
            pairs INTEGER NOT NULL DEFAULT 0, estimated_seconds REAL, measured_seconds REAL, payload BLOB,
            created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO "plans" VALUES('b63466b8a4604c8d84da62b8e08a3f3f','scorer','e394ac6cc195623a0bcb89659bf34c39822657e63cd301445715e2ed9b7ad164','done',3,3,15,NULL,1.05168740599947341252e+00,NULL,'2026-11-30T02:09:03.350210+00:00','2026-11-30T02:09:04.515854+00:00');
INSERT INTO "plans" VALUES('p1','scorer','subject','open',3,0,15,NULL,NULL,X'0102','2026-11-30T02:09:05.709009+00:00','2026-11-30T02:09:05.709009+00:00');
CREATE TABLE progress (
            run_id TEXT NOT NULL, stage TEXT NOT NULL, done INTEGER NOT NULL, total INTEGER NOT NULL,
            unit TEXT NOT NULL, updated_at TEXT NOT NULL, PRIMARY KEY (run_id, stage));
INSERT INTO "progress" VALUES('run','scoring',1,2,'pairs','2026-11-30T02:09:06.228392+00:00');
CREATE TABLE promotions (
            id INTEGER PRIMARY KEY, labeler_digest TEXT NOT NULL, who TEXT NOT NULL, reason TEXT NOT NULL,
            promoted_at TEXT NOT NULL);
INSERT INTO "promotions" VALUES(1,'labeler','ann','first','2026-11-30T02:09:05.721284+00:00');
CREATE TABLE publications (
            id INTEGER PRIMARY KEY, version TEXT NOT NULL, path TEXT NOT NULL, action TEXT NOT NULL,
            labeler_digest TEXT, run_id TEXT, who TEXT, reason TEXT, recorded_at TEXT NOT NULL);
INSERT INTO "publications" VALUES(1,'000001-20260101T000000Z','path','published','labeler',NULL,NULL,NULL,'2026-11-30T02:09:06.019916+00:00');
CREATE TABLE recipients (
            outbox_id INTEGER NOT NULL REFERENCES outbox (id), target TEXT NOT NULL,
            PRIMARY KEY (outbox_id, target));
INSERT INTO "recipients" VALUES(1,'mail');
CREATE TABLE runs (
            run_id TEXT PRIMARY KEY, job TEXT NOT NULL, status TEXT NOT NULL, started_at TEXT NOT NULL,
            finished_at TEXT, note TEXT, pairs_scored INTEGER NOT NULL DEFAULT 0,
            pairs_reused INTEGER NOT NULL DEFAULT 0, model_loads INTEGER NOT NULL DEFAULT 0,
            scoring_seconds REAL NOT NULL DEFAULT 0, host TEXT NOT NULL, pid INTEGER NOT NULL,
            boot_id TEXT NOT NULL, process_start TEXT NOT NULL);
INSERT INTO "runs" VALUES('run','nightly_labeling','STARTED','2026-11-30T02:08:58.479883+00:00',NULL,NULL,15,0,0,1.05168740599947341252e+00,'a-host',29216,'a62dd7e6-9dc8-4d10-bfa4-3167e4df18f1','1530415');
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO "settings" VALUES('publishing_paused','because','2026-11-30T02:09:06.087324+00:00');
CREATE INDEX gate_results_by_subject ON gate_results (gate, subject_digest, id);
CREATE INDEX gate_results_by_run ON gate_results (run_id, id);
CREATE INDEX outbox_by_key ON outbox (asset, gate, severity, id);
CREATE INDEX deliveries_by_row ON deliveries (outbox_id, target);
CREATE INDEX runs_by_start ON runs (started_at);
CREATE INDEX plans_by_subject ON plans (scorer_digest, subject_digest, state);
CREATE INDEX approvals_by_subject ON approvals (subject_digest);
CREATE INDEX certify_ledger_by_set ON certify_ledger (set_digest);
CREATE INDEX outbox_by_incident ON outbox (incident);
CREATE INDEX certify_entities_by_digest ON certify_entities (entity_digest);
PRAGMA user_version = 4;
COMMIT;
