-- The tables of the file of ``redrive serve``, which ``statefile/supervisor_file.py`` reads. Instants are microseconds UTC.
CREATE TABLE IF NOT EXISTS supervisor (
    id           TEXT PRIMARY KEY,
    pid          INTEGER NOT NULL,
    host         TEXT NOT NULL,
    sources      TEXT NOT NULL,           -- JSON: the folders and files that it serves
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    stopped_at   INTEGER                  -- it was stopped in order
);
CREATE TABLE IF NOT EXISTS schedule (
    id              INTEGER PRIMARY KEY,
    flow            TEXT NOT NULL,
    state_path      TEXT,                 -- NULL: its file was never readable
    target          TEXT NOT NULL,        -- FILE:OBJECT, as `redrive run` takes it; FILE if it was never readable
    file            TEXT NOT NULL,
    object          TEXT,
    supervisor_id   TEXT NOT NULL,
    spec            TEXT NOT NULL,        -- JSON of the flow without tasks: what holds while its file is broken
    expression      TEXT,
    timezone        TEXT,
    next_at         INTEGER,              -- when the next run is due
    next_logical    INTEGER,
    last_run_id     TEXT,
    last_state      TEXT,                 -- as lists print it: RUNNING, BLOCKED, SUCCESS, ...
    last_started_at INTEGER,
    usual_us        INTEGER,              -- median duration of its latest successful runs
    running_since   INTEGER,              -- an executor owns its state file
    late_since      INTEGER,              -- a run was due then and has not started
    edits           TEXT NOT NULL DEFAULT '',  -- JSON: schedules that its file had since an instant, and that come yet
    gone_since      INTEGER,              -- it is in no file that is served
    paused_until    INTEGER NOT NULL DEFAULT 0,
    pause_reason    TEXT NOT NULL DEFAULT '',
    paused_by       TEXT NOT NULL DEFAULT '',
    skip_logical    INTEGER,              -- this logical time will not run
    skipped_by      TEXT NOT NULL DEFAULT '',
    start_error     TEXT,                 -- why the latest start failed; NULL after one that succeeded
    failed_since    INTEGER,              -- the first of the starts that failed since the last good one
    failed_at       INTEGER,
    acknowledged_at INTEGER,              -- an operator has seen the failed start
    stuck_run_id    TEXT,                 -- a run that cannot be resumed, since when, and why
    stuck_since     INTEGER,
    stuck_error     TEXT,
    warning         TEXT,                 -- what an operator has to know; NULL: acknowledged, or nothing
    warned_at       INTEGER,
    ledger_until    INTEGER NOT NULL DEFAULT 0,  -- the ledger has all logical times up to here; 0: none yet
    seen_run        INTEGER NOT NULL DEFAULT 0,  -- the ledger knows the runs up to this row of the state file
    UNIQUE (flow, state_path)
);
CREATE TABLE IF NOT EXISTS ledger (       -- what became of logical times, the latest one by one, older ones in ranges
    schedule   INTEGER NOT NULL,
    first      INTEGER NOT NULL,
    last       INTEGER NOT NULL,
    times      INTEGER NOT NULL,          -- how many between first and last; ranges of other fates may lie among them
    fate       TEXT NOT NULL CHECK (fate IN ('run', 'missed', 'skipped', 'dropped')),
    why        TEXT NOT NULL,
    who        TEXT NOT NULL,             -- user@host; empty: the supervisor
    decided_at INTEGER NOT NULL,
    listed     INTEGER NOT NULL           -- how many of them an operator can start or dismiss
);
CREATE INDEX IF NOT EXISTS ledger_times ON ledger (schedule, last);
CREATE INDEX IF NOT EXISTS ledger_listed ON ledger (schedule, first) WHERE listed > 0;
CREATE TABLE IF NOT EXISTS past_run (     -- how runs ended and how long they took, also of those that are pruned
    schedule     INTEGER NOT NULL,
    run_id       TEXT NOT NULL,
    logical_time INTEGER,
    started_at   INTEGER NOT NULL,
    state        TEXT NOT NULL,
    lasts_us     INTEGER NOT NULL,
    PRIMARY KEY (schedule, run_id)
);
CREATE TABLE IF NOT EXISTS predecessor (  -- the flows that a flow comes after
    schedule    INTEGER NOT NULL,
    flow        TEXT NOT NULL,
    waits       TEXT NOT NULL,            -- why the next run waits for it; empty: it does not
    stuck_since INTEGER,                  -- since when that needs a human; NULL: it does not
    newer       TEXT NOT NULL,            -- days of which it has run again, after the run of the schedule
    PRIMARY KEY (schedule, flow)
);
CREATE TABLE IF NOT EXISTS left_out (     -- files that mention flows, and are not served
    file          TEXT NOT NULL,
    supervisor_id TEXT NOT NULL,
    why           TEXT NOT NULL,
    PRIMARY KEY (file, supervisor_id)
);
PRAGMA user_version = 2;
