-- One file remembers everything. Read by the SQLite of old servers (3.24), so: no STRICT, no generated columns,
-- no ->>, no RETURNING. Instants are INTEGER microseconds UTC; durations come from the monotonic clock.

CREATE TABLE meta (                       -- one row per fact about the file itself
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE run (
    run_id        TEXT PRIMARY KEY,
    dag_name      TEXT NOT NULL,
    started_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    state         TEXT NOT NULL CHECK (state IN ('RUNNING','SUCCESS','FAILED','PARTIAL','ABANDONED')),
    blocked_since INTEGER,                -- nothing can move and a dead letter waits
    paused_since  INTEGER,
    paused_by     TEXT,
    deadline_at   INTEGER,                -- NULL: none, or an operator has lifted it
    deadline_passed_at INTEGER,           -- when the deadline has begun to end the run
    deadline_is_time INTEGER NOT NULL DEFAULT 0, -- 1: a time of day, as an operator gave it: no step of the clock moves it
    abandoned_at INTEGER,                 -- when an operator has ended the run; its clean-ups may still run
    max_parallel  INTEGER NOT NULL DEFAULT 4,
    flow_path     TEXT,                   -- what `resume` starts again; NULL for a flow built in a program
    params        TEXT NOT NULL DEFAULT '{}',
    options       TEXT NOT NULL DEFAULT '{}', -- pools, downstreams, ... as the flow declares them (JSON)
    code_hash     TEXT,
    pool_waits    TEXT,                   -- JSON: each pool of the machine that tasks wait for, and who holds it;
                                          -- each pool of Dask workers ("workers:...") and why none takes a task
    code_changed  TEXT,                   -- source files that changed after the executor loaded them, for people
    python_path   TEXT,                   -- PYTHONPATH of the start, absolute; NULL: none
    logical_time  INTEGER,                -- the instant of its schedule that it stands for; NULL: started by hand
    acknowledged_at INTEGER,              -- when an operator took note of how it ended; NULL again once it is reopened
    acknowledged_by TEXT,
    waited_us     INTEGER NOT NULL DEFAULT 0 -- how long it was blocked, or ended and reopened: nobody worked
);

CREATE INDEX idx_run_late ON run(dag_name) WHERE ended_at IS NULL OR ended_at > deadline_at;
CREATE INDEX idx_run_attention ON run(started_at) -- what may need a human: lists.py
    WHERE acknowledged_at IS NULL AND (ended_at IS NULL OR state IN ('FAILED','PARTIAL') OR ended_at > deadline_at);
CREATE INDEX idx_run_flow ON run(dag_name, started_at, state); -- the latest runs of a flow

CREATE TABLE task (
    run_id        TEXT NOT NULL REFERENCES run(run_id),
    name          TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('PENDING','READY','RUNNING','SUCCESS','RETRYING','SENSING','FAILED',
                                                 'DEAD_LETTER','UPSTREAM_FAILED','SKIPPED','CANCELLED')),
    attempt       INTEGER NOT NULL DEFAULT 0,   -- attempts ever started; counted in the claim
    max_attempts  INTEGER NOT NULL DEFAULT 3,   -- starts that failures may use up in one generation
    started_at    INTEGER,                      -- of the latest attempt
    ended_at      INTEGER,
    next_retry_at INTEGER,                      -- RETRYING: due; SENSING: next look; PENDING: not before
    error         TEXT,                         -- one line; the whole story is in the attempt
    failure_fingerprint TEXT,
    generation    INTEGER NOT NULL DEFAULT 0,   -- +1 with each requeue
    failures      INTEGER NOT NULL DEFAULT 0,   -- these four belong to the generation
    losses        INTEGER NOT NULL DEFAULT 0,
    deferrals     INTEGER NOT NULL DEFAULT 0,
    refusals      INTEGER NOT NULL DEFAULT 0,
    failure_class TEXT,
    failure_mode  TEXT,                         -- transient, hang, poisoned: what the on-call must tell apart
    dead_letter_kind TEXT,
    delay_us      INTEGER,                      -- the delay drawn for next_retry_at, and the ceiling it was drawn under
    ceiling_us    INTEGER,
    shortened_us  INTEGER,                      -- the delay drawn before the deadline of the run cut it
    first_started_at INTEGER,                   -- of this generation: max_elapsed counts from here
    blocked_by    TEXT,                         -- UPSTREAM_FAILED: the ancestor that failed
    skip_cause    TEXT,
    claim_token   TEXT,                         -- of the running attempt; a result with another token is late
    result        TEXT,                         -- small JSON handed to children
    progress_done INTEGER,
    progress_total INTEGER,
    last_heartbeat_at INTEGER,
    stale         INTEGER NOT NULL DEFAULT 0,   -- 1: ran before a parent was run again
    notice        TEXT,                         -- that it is later or slower than expected, for people
    checkpoint    TEXT,                         -- JSON that an attempt left for the next one of its generation
    bad_rows      INTEGER NOT NULL DEFAULT 0,   -- held in quarantine
    cancel_requested_at INTEGER,                -- RUNNING: an operator wants its end; who and why: the event then
    expires_at    INTEGER,                      -- DEAD_LETTER: when it becomes FAILED by itself (dead_letter_ttl)
    overrides     TEXT,                         -- JSON: what a requeue changed for this generation alone
    key_generation INTEGER NOT NULL DEFAULT 0,  -- the generation that the idempotency key was made in
    element       TEXT,                         -- of a child of a map task: what its element is known by, or the value
    aside         TEXT,                         -- JSON: the columns with which a child comes back whose element is gone
    element_keys  TEXT,                         -- JSON, beside a list: map task -> the keys of its elements
    canary        TEXT,                         -- the task of the same cause that runs first; this one follows it
    position      INTEGER NOT NULL DEFAULT 0,   -- order in the flow
    rule          TEXT NOT NULL DEFAULT 'all_success', -- when its parents let it start: as in spec, for SQL to read
    spec          TEXT NOT NULL DEFAULT '{}',   -- TaskSpec as JSON
    PRIMARY KEY (run_id, name)
) WITHOUT ROWID;

CREATE INDEX idx_task_state ON task(run_id, state);
CREATE INDEX idx_task_notice ON task(run_id) WHERE stale = 1 AND notice IS NOT NULL; -- lists.py
CREATE INDEX idx_task_failure ON task(run_id, failure_fingerprint, state, dead_letter_kind) -- settle.py
    WHERE failure_fingerprint IS NOT NULL;

CREATE TABLE pruned_run (                 -- runs that are deleted, while they have rows in other tables
    run_id TEXT PRIMARY KEY
) WITHOUT ROWID;

CREATE TABLE edge (                       -- child first: the other order makes the readiness query quadratic
    run_id  TEXT NOT NULL,
    child   TEXT NOT NULL,
    parent  TEXT NOT NULL,
    rule    TEXT,                             -- by which the parent counts; NULL: task.rule of the child
    PRIMARY KEY (run_id, child, parent)
) WITHOUT ROWID;

CREATE INDEX idx_edge_parent ON edge(run_id, parent);

CREATE TABLE attempt (
    run_id        TEXT NOT NULL,
    name          TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    generation    INTEGER NOT NULL,
    token         TEXT NOT NULL,
    executor_id   TEXT,
    host          TEXT,
    pid           INTEGER,
    pid_start_ticks INTEGER,
    started_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    duration_us   INTEGER,                -- monotonic
    timeout_us    INTEGER,
    grace_us      INTEGER,
    outcome       TEXT NOT NULL DEFAULT 'running', -- running success error timed_out lost cancelled deferred skipped
    error_type    TEXT,
    error         TEXT,
    diagnostic    TEXT,                   -- what the other side said about it: first thing to read
    traceback     TEXT,
    stack         TEXT,                   -- at the deadline, before SIGTERM: its threads, then its processes
    failure_class TEXT,
    failure_mode  TEXT,
    fingerprint   TEXT,                   -- strict: same code, same place
    fingerprint_loose TEXT,               -- the cause: for clusters, pages and history
    fingerprint_detail TEXT,              -- JSON
    explain       TEXT,                   -- the failure in a few words: "ZeroDivisionError settle.py:87 in settle"
    exit_code     INTEGER,
    signal        INTEGER,
    delay_us      INTEGER,
    ceiling_us    INTEGER,
    shortened_us  INTEGER,
    max_rss_kb    INTEGER,
    cpu_user_us   INTEGER,
    cpu_system_us INTEGER,
    output_bytes  INTEGER NOT NULL DEFAULT 0,
    output_dropped_bytes INTEGER NOT NULL DEFAULT 0,
    code_hash     TEXT,
    input_hash    TEXT,                   -- of what its parents handed on; of a map child, "-" and of its element alone
    params_hash   TEXT,
    image_hash    TEXT,                   -- interpreter and packages
    late          INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, name, attempt)
) WITHOUT ROWID;

CREATE INDEX idx_attempt_running ON attempt(outcome) WHERE outcome = 'running';
CREATE INDEX idx_attempt_name ON attempt(name, started_at); -- history across runs: durations, healed fingerprints
CREATE INDEX idx_attempt_cause ON attempt(fingerprint_loose, run_id) WHERE fingerprint_loose IS NOT NULL; -- causes.py

CREATE TABLE event (                      -- append-only; told in the transaction of the change
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    run_id     TEXT,
    task       TEXT,
    old        TEXT,
    new        TEXT,
    attempt    INTEGER,
    generation INTEGER,
    actor      TEXT,
    reason     TEXT,
    command_id TEXT,
    data       TEXT NOT NULL DEFAULT '{}'
);

CREATE INDEX idx_event_run ON event(run_id, seq);
CREATE INDEX idx_event_command ON event(command_id) WHERE command_id IS NOT NULL;
CREATE INDEX idx_event_ladder ON event(run_id, seq) -- the instants of every kill, for those who open a run late
    WHERE kind IN ('attempt.deadline', 'attempt.stack', 'attempt.sigterm', 'attempt.sigkill');
CREATE INDEX idx_event_decision ON event(run_id, seq) -- what operators decided about what needs a human: causes.py
    WHERE kind = 'task' AND old IN ('DEAD_LETTER', 'FAILED') AND command_id IS NOT NULL;
CREATE INDEX idx_event_note ON event(run_id, seq) WHERE kind = 'note';

CREATE TABLE log (                        -- output of attempts: pieces as they came, in order of id; older ones packed
    id      INTEGER PRIMARY KEY,          -- packed: of the last piece
    run_id  TEXT NOT NULL,
    name    TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at      INTEGER NOT NULL,             -- packed: of the first piece
    bytes   INTEGER NOT NULL,             -- of the text in UTF-8
    tail    INTEGER NOT NULL DEFAULT 0,   -- 0: the beginning, which goes last when the run has too much output
    dropped INTEGER NOT NULL DEFAULT 0,   -- bytes that were dropped between the row before and this one
    text    TEXT NOT NULL,                -- packed: empty
    packed  BLOB                          -- zlib of JSON: [id, at, text] of each piece
);

CREATE INDEX idx_log_attempt ON log(run_id, name, attempt, id);

CREATE TABLE log_size (                   -- of the output of a run, as it is stored
    run_id TEXT PRIMARY KEY,
    bytes  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE quarantine (
    id          INTEGER PRIMARY KEY,
    run_id      TEXT NOT NULL,
    name        TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    generation  INTEGER NOT NULL DEFAULT 0, -- in which it was set aside; once requeued: in which it runs again
    row_key     TEXT NOT NULL,
    payload     TEXT,
    error       TEXT,
    fingerprint TEXT,
    state       TEXT NOT NULL DEFAULT 'provisional', -- provisional held requeued resolved dropped discarded
    at          INTEGER NOT NULL
);

CREATE INDEX idx_quarantine_task ON quarantine(run_id, name, state);
CREATE INDEX idx_quarantine_held ON quarantine(run_id) WHERE state = 'held';

CREATE TABLE breaker (
    downstream   TEXT PRIMARY KEY,
    state        TEXT NOT NULL,           -- CLOSED OPEN HALF_OPEN FORCED_OPEN DISABLED METRICS_ONLY
    reopens_at   INTEGER,
    window       TEXT NOT NULL DEFAULT '[]',
    tokens       REAL,
    detail       TEXT NOT NULL DEFAULT '{}',
    changed_at   INTEGER NOT NULL,        -- when this state began; a probe renews it
    opened_at    INTEGER                  -- since when calls are held, probes apart; NULL: they pass
);

CREATE TABLE page (                       -- outbox: written with the change that causes it, sent apart
    id         INTEGER PRIMARY KEY,
    cause      TEXT NOT NULL,             -- downstream, loose fingerprint, or run
    episode    INTEGER NOT NULL,
    run_id     TEXT,
    task       TEXT,
    severity   TEXT NOT NULL,
    title      TEXT NOT NULL,
    body       TEXT NOT NULL DEFAULT '{}',
    count      INTEGER NOT NULL DEFAULT 1,
    sent_count INTEGER NOT NULL DEFAULT 0, -- the count in the latest message
    state      TEXT NOT NULL DEFAULT 'open', -- open acked snoozed resolved
    rearmed    INTEGER NOT NULL DEFAULT 0, -- 1: one of its tasks was requeued, so the next failure is a new episode
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    sent_at    INTEGER,
    send_error TEXT,
    snoozed_until INTEGER,
    acked_by   TEXT,
    told_by    TEXT,                      -- the flow whose page has told the receivers: one cause on the machine, one page
    UNIQUE (cause, episode)
);

CREATE TABLE page_task (                  -- whose failures a page has counted
    run_id  TEXT NOT NULL,
    task    TEXT NOT NULL,
    page_id INTEGER NOT NULL,
    done    INTEGER NOT NULL DEFAULT 0,   -- 1: it succeeded, or somebody decided; a page is resolved when all are
    PRIMARY KEY (run_id, task, page_id)
) WITHOUT ROWID;

CREATE INDEX idx_page_task ON page_task(page_id, done);
CREATE INDEX idx_page_task_open ON page_task(task) WHERE done = 0; -- what a success of a later run ends: settle.py

CREATE TABLE executor (
    executor_id  TEXT PRIMARY KEY,
    pid          INTEGER NOT NULL,
    start_ticks  INTEGER,
    boot_id      TEXT,
    host         TEXT NOT NULL,
    version      TEXT NOT NULL,
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    stopped_at   INTEGER,
    run_id       TEXT,
    state_path   TEXT                     -- of this file, links resolved: in a copy it names the original
);

CREATE TABLE schedule (                   -- a flow that `redrive serve` starts from here, and how far it has come
    dag_name      TEXT PRIMARY KEY,
    expression    TEXT NOT NULL,
    timezone      TEXT NOT NULL,
    misfire       TEXT NOT NULL,
    flow_path     TEXT,
    since         INTEGER NOT NULL,       -- from when on it holds
    decided_until INTEGER NOT NULL,       -- logical times up to here have run, or were given up
    next_at       INTEGER,                -- when the next one is due, its splay included
    next_local    TEXT                    -- its logical time by the clocks of its zone, in ISO 8601
) WITHOUT ROWID;

CREATE TABLE slot (                       -- logical times: no second row for one, so no second run
    dag_name     TEXT NOT NULL,
    logical_time INTEGER NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('run', 'missed')),
    run_id       TEXT,                    -- run: written in one transaction with it
    run_state    TEXT,                    -- how its run ended, once that is deleted
    decided_at   INTEGER NOT NULL,
    PRIMARY KEY (dag_name, logical_time)
) WITHOUT ROWID;

CREATE TABLE sla (                        -- promises that were not kept, each told once
    dag_name     TEXT NOT NULL,
    logical_time INTEGER NOT NULL,
    promise      TEXT NOT NULL CHECK (promise IN ('start', 'end')),
    promised_at  INTEGER NOT NULL,
    run_id       TEXT,                    -- end: which run
    at           INTEGER NOT NULL,        -- when it was noticed
    PRIMARY KEY (dag_name, logical_time, promise)
) WITHOUT ROWID;

-- The documents' own columns, with instants as text, for people at a sqlite3 prompt.
CREATE VIEW task_view AS
SELECT run_id, name, state, attempt, max_attempts,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000000.0, 'unixepoch')    AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', ended_at / 1000000.0, 'unixepoch')      AS ended_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', next_retry_at / 1000000.0, 'unixepoch') AS next_retry_at,
       error, failure_fingerprint, dead_letter_kind, blocked_by
FROM task;
