BEGIN TRANSACTION;
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
    input_hash    TEXT,                   -- of what its parents handed on
    params_hash   TEXT,
    image_hash    TEXT,                   -- interpreter and packages
    late          INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, name, attempt)
) WITHOUT ROWID;
INSERT INTO "attempt" VALUES('night-1','extract',1,0,'8ceea2d9b100b19c','6892d7b42a3a4dc197c74215cdffbfc4','worker-1',NULL,NULL,1795881209523460,1795881209534411,7546,30000000,5000000,'success',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,18008,0,2256,14,0,'b40b0c2d7dee7d80',NULL,'dee36ace772e','d4abdbeec64d',0);
INSERT INTO "attempt" VALUES('night-1','load',1,0,'f200bca2b23f5434','6892d7b42a3a4dc197c74215cdffbfc4','worker-1',NULL,NULL,1795881209534411,1795881209545376,6949,30000000,5000000,'error','KeyError','''price''',NULL,'Traceback (most recent call last):
  File "/srv/flows/shop.py", line 10, in load
    raise KeyError("price")
KeyError: ''price''
',NULL,'unclassified','other','4a9be0ec256f','f9f6ea069292','{"explain": "KeyError shop.py:10 in load", "parts": ["v3", "b40b0c2d7dee7d80", "KeyError|shop.py:10:load:7bc8fbe46ff7"], "fields": [["type", "KeyError"], ["place", "shop.py:load"]], "v1": "3851e665228f", "facts": {"types": ["builtins.KeyError", "builtins.LookupError"]}}','KeyError shop.py:10 in load',1,NULL,972,10000,NULL,18968,0,5577,10,0,'b40b0c2d7dee7d80','2682a2c974f7','dee36ace772e','d4abdbeec64d',0);
INSERT INTO "attempt" VALUES('night-1','load',2,0,'4d0fa8a49262aa46','6892d7b42a3a4dc197c74215cdffbfc4','worker-1',NULL,NULL,1795881209549608,1795881209558594,7179,30000000,5000000,'error','KeyError','''price''',NULL,'Traceback (most recent call last):
  File "/srv/flows/shop.py", line 10, in load
    raise KeyError("price")
KeyError: ''price''
',NULL,'unclassified','poisoned','4a9be0ec256f','f9f6ea069292','{"explain": "KeyError shop.py:10 in load", "parts": ["v3", "b40b0c2d7dee7d80", "KeyError|shop.py:10:load:7bc8fbe46ff7"], "fields": [["type", "KeyError"], ["place", "shop.py:load"]], "v1": "3851e665228f", "facts": {"types": ["builtins.KeyError", "builtins.LookupError"]}}','KeyError shop.py:10 in load',1,NULL,NULL,NULL,NULL,18956,5568,0,10,0,'b40b0c2d7dee7d80','2682a2c974f7','dee36ace772e','d4abdbeec64d',0);
INSERT INTO "attempt" VALUES('night-1','ping',1,0,'1a1688c9e0850706','6892d7b42a3a4dc197c74215cdffbfc4','worker-1',NULL,NULL,1795881209523460,1795881209545222,8074,30000000,5000000,'error','ConnectionError','connection refused',NULL,'Traceback (most recent call last):
  File "/srv/flows/shop.py", line 16, in ping
    raise ConnectionError("connection refused")
ConnectionError: connection refused
',NULL,'transient','transient','3a01ac396d15','64ff3aa38626','{"explain": "ConnectionError shop.py:16 in ping", "parts": ["v3", "b40b0c2d7dee7d80", "ConnectionError|shop.py:16:ping:3ca13d38ea93", "class=transient"], "fields": [["type", "ConnectionError"], ["place", "shop.py:ping"], ["class", "transient"]], "v1": "e2499702408f", "facts": {"types": ["builtins.ConnectionError", "builtins.OSError"]}}','ConnectionError shop.py:16 in ping',1,NULL,5859,10000,NULL,18924,2947,2947,0,0,'b40b0c2d7dee7d80',NULL,'dee36ace772e','d4abdbeec64d',0);
INSERT INTO "attempt" VALUES('night-1','ping',2,0,'47289506cbf76180','6892d7b42a3a4dc197c74215cdffbfc4','worker-1',NULL,NULL,1795881209552720,1795881209565114,10553,30000000,5000000,'error','ConnectionError','connection refused',NULL,'Traceback (most recent call last):
  File "/srv/flows/shop.py", line 16, in ping
    raise ConnectionError("connection refused")
ConnectionError: connection refused
',NULL,'transient','transient','3a01ac396d15','64ff3aa38626','{"explain": "ConnectionError shop.py:16 in ping", "parts": ["v3", "b40b0c2d7dee7d80", "ConnectionError|shop.py:16:ping:3ca13d38ea93", "class=transient"], "fields": [["type", "ConnectionError"], ["place", "shop.py:ping"], ["class", "transient"]], "v1": "e2499702408f", "facts": {"types": ["builtins.ConnectionError", "builtins.OSError"]}}','ConnectionError shop.py:16 in ping',1,NULL,NULL,NULL,NULL,18936,2774,2774,0,0,'b40b0c2d7dee7d80',NULL,'dee36ace772e','d4abdbeec64d',0);
CREATE TABLE breaker (
    downstream   TEXT PRIMARY KEY,
    state        TEXT NOT NULL,           -- CLOSED OPEN HALF_OPEN FORCED_OPEN DISABLED METRICS_ONLY
    reopens_at   INTEGER,
    window       TEXT NOT NULL DEFAULT '[]',
    tokens       REAL,
    detail       TEXT NOT NULL DEFAULT '{}',
    changed_at   INTEGER NOT NULL         -- when this state began
, opened_at INTEGER);
CREATE TABLE edge (                       -- child first: the other order makes the readiness query quadratic
    run_id  TEXT NOT NULL,
    child   TEXT NOT NULL,
    parent  TEXT NOT NULL, rule TEXT,
    PRIMARY KEY (run_id, child, parent)
) WITHOUT ROWID;
INSERT INTO "edge" VALUES('night-1','load','extract',NULL);
INSERT INTO "edge" VALUES('night-1','publish','load',NULL);
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
INSERT INTO "event" VALUES(1,1795881209514962,'executor','night-1',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"what":"started","executor_id":"6892d7b42a3a4dc197c74215cdffbfc4","pid":18857,"host":"worker-1"}');
INSERT INTO "event" VALUES(2,1795881209514962,'run','night-1',NULL,NULL,'RUNNING',NULL,NULL,NULL,NULL,NULL,'{"what":"created","set":{"dag_name":"shop","started_at":1795881209514962,"state":"RUNNING","deadline_at":1795892009514962,"max_parallel":4,"flow_path":"/srv/flows/shop.py","params":"{}","options":"{\"pools\":{},\"downstreams\":[],\"pages\":[]}","code_hash":"b40b0c2d7dee7d80","python_path":"/usr/lib/.types"},"tasks":4}');
INSERT INTO "event" VALUES(3,1795881209523460,'task','night-1','extract','PENDING','READY',NULL,0,NULL,NULL,NULL,'{}');
INSERT INTO "event" VALUES(4,1795881209523460,'task','night-1','ping','PENDING','READY',NULL,0,NULL,NULL,NULL,'{}');
INSERT INTO "event" VALUES(5,1795881209523460,'task','night-1','extract','READY','RUNNING',1,0,NULL,NULL,NULL,'{"set":{"attempt":1,"started_at":1795881209523460,"ended_at":null,"claim_token":"8ceea2d9b100b19c","first_started_at":1795881209523460},"attempt":{"generation":0,"started_at":1795881209523460,"executor_id":"6892d7b42a3a4dc197c74215cdffbfc4","host":"worker-1","code_hash":"b40b0c2d7dee7d80","image_hash":"d4abdbeec64d","params_hash":"dee36ace772e","input_hash":null,"timeout_us":30000000,"grace_us":5000000}}');
INSERT INTO "event" VALUES(6,1795881209523460,'task','night-1','ping','READY','RUNNING',1,0,NULL,NULL,NULL,'{"set":{"attempt":1,"started_at":1795881209523460,"ended_at":null,"claim_token":"1a1688c9e0850706","first_started_at":1795881209523460},"attempt":{"generation":0,"started_at":1795881209523460,"executor_id":"6892d7b42a3a4dc197c74215cdffbfc4","host":"worker-1","code_hash":"b40b0c2d7dee7d80","image_hash":"d4abdbeec64d","params_hash":"dee36ace772e","input_hash":null,"timeout_us":30000000,"grace_us":5000000}}');
INSERT INTO "event" VALUES(7,1795881209534411,'task','night-1','extract','RUNNING','SUCCESS',1,0,NULL,NULL,NULL,'{"set":{"ended_at":1795881209534411,"result":"[1,2,3]","next_retry_at":null,"claim_token":null},"attempt":{"ended_at":1795881209534411,"outcome":"success","exit_code":0,"max_rss_kb":18008,"cpu_user_us":0,"cpu_system_us":2256,"duration_us":7546,"output_bytes":14,"output_dropped_bytes":0}}');
INSERT INTO "event" VALUES(8,1795881209534411,'task','night-1','load','PENDING','READY',NULL,0,NULL,NULL,NULL,'{}');
INSERT INTO "event" VALUES(9,1795881209534411,'task','night-1','load','READY','RUNNING',1,0,NULL,NULL,NULL,'{"set":{"attempt":1,"started_at":1795881209534411,"ended_at":null,"claim_token":"f200bca2b23f5434","first_started_at":1795881209534411},"attempt":{"generation":0,"started_at":1795881209534411,"executor_id":"6892d7b42a3a4dc197c74215cdffbfc4","host":"worker-1","code_hash":"b40b0c2d7dee7d80","image_hash":"d4abdbeec64d","params_hash":"dee36ace772e","input_hash":"2682a2c974f7","timeout_us":30000000,"grace_us":5000000}}');
INSERT INTO "event" VALUES(10,1795881209545222,'task','night-1','ping','RUNNING','RETRYING',1,0,NULL,NULL,NULL,'{"set":{"ended_at":1795881209545222,"error":"connection refused","failure_fingerprint":"3a01ac396d15","failure_class":"transient","failure_mode":"transient","next_retry_at":1795881209551081,"delay_us":5859,"ceiling_us":10000,"shortened_us":null,"claim_token":null,"failures":1},"attempt":{"ended_at":1795881209545222,"outcome":"error","exit_code":1,"max_rss_kb":18924,"cpu_user_us":2947,"cpu_system_us":2947,"duration_us":8074,"error_type":"ConnectionError","error":"connection refused","diagnostic":null,"failure_class":"transient","fingerprint":"3a01ac396d15","fingerprint_loose":"64ff3aa38626","explain":"ConnectionError shop.py:16 in ping","failure_mode":"transient","delay_us":5859,"ceiling_us":10000},"explain":"ConnectionError shop.py:16 in ping"}');
INSERT INTO "event" VALUES(11,1795881209545376,'task','night-1','load','RUNNING','RETRYING',1,0,NULL,NULL,NULL,'{"set":{"ended_at":1795881209545376,"error":"''price''","failure_fingerprint":"4a9be0ec256f","failure_class":"unclassified","failure_mode":"other","next_retry_at":1795881209546348,"delay_us":972,"ceiling_us":10000,"shortened_us":null,"claim_token":null,"failures":1},"attempt":{"ended_at":1795881209545376,"outcome":"error","exit_code":1,"max_rss_kb":18968,"cpu_user_us":0,"cpu_system_us":5577,"duration_us":6949,"error_type":"KeyError","error":"''price''","diagnostic":null,"failure_class":"unclassified","fingerprint":"4a9be0ec256f","fingerprint_loose":"f9f6ea069292","explain":"KeyError shop.py:10 in load","failure_mode":"other","delay_us":972,"ceiling_us":10000,"output_bytes":10,"output_dropped_bytes":0},"explain":"KeyError shop.py:10 in load"}');
INSERT INTO "event" VALUES(12,1795881209549608,'task','night-1','load','RETRYING','READY',NULL,0,NULL,NULL,NULL,'{"set":{"next_retry_at":null}}');
INSERT INTO "event" VALUES(13,1795881209549608,'task','night-1','load','READY','RUNNING',2,0,NULL,NULL,NULL,'{"set":{"attempt":2,"started_at":1795881209549608,"ended_at":null,"claim_token":"4d0fa8a49262aa46"},"attempt":{"generation":0,"started_at":1795881209549608,"executor_id":"6892d7b42a3a4dc197c74215cdffbfc4","host":"worker-1","code_hash":"b40b0c2d7dee7d80","image_hash":"d4abdbeec64d","params_hash":"dee36ace772e","input_hash":"2682a2c974f7","timeout_us":30000000,"grace_us":5000000}}');
INSERT INTO "event" VALUES(14,1795881209552720,'task','night-1','ping','RETRYING','READY',NULL,0,NULL,NULL,NULL,'{"set":{"next_retry_at":null}}');
INSERT INTO "event" VALUES(15,1795881209552720,'task','night-1','ping','READY','RUNNING',2,0,NULL,NULL,NULL,'{"set":{"attempt":2,"started_at":1795881209552720,"ended_at":null,"claim_token":"47289506cbf76180"},"attempt":{"generation":0,"started_at":1795881209552720,"executor_id":"6892d7b42a3a4dc197c74215cdffbfc4","host":"worker-1","code_hash":"b40b0c2d7dee7d80","image_hash":"d4abdbeec64d","params_hash":"dee36ace772e","input_hash":null,"timeout_us":30000000,"grace_us":5000000}}');
INSERT INTO "event" VALUES(16,1795881209558594,'task','night-1','load','RUNNING','DEAD_LETTER',2,0,NULL,NULL,NULL,'{"set":{"ended_at":1795881209558594,"error":"''price''","failure_fingerprint":"4a9be0ec256f","failure_class":"unclassified","failure_mode":"poisoned","next_retry_at":null,"dead_letter_kind":"poison","claim_token":null,"failures":2},"attempt":{"ended_at":1795881209558594,"outcome":"error","exit_code":1,"max_rss_kb":18956,"cpu_user_us":5568,"cpu_system_us":0,"duration_us":7179,"error_type":"KeyError","error":"''price''","diagnostic":null,"failure_class":"unclassified","fingerprint":"4a9be0ec256f","fingerprint_loose":"f9f6ea069292","explain":"KeyError shop.py:10 in load","failure_mode":"poisoned","output_bytes":10,"output_dropped_bytes":0},"explain":"KeyError shop.py:10 in load","why":"the same failure 2 times in a row"}');
INSERT INTO "event" VALUES(17,1795881209558594,'page','night-1','load',NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"what":"opened","id":1,"cause":"f9f6ea069292","episode":1,"count":1,"title":"poison-pill","severity":"high","fingerprint":"f9f6ea069292","why":"no page is configured: the flow names no sender (flow.page)"}');
INSERT INTO "event" VALUES(18,1795881209565114,'task','night-1','ping','RUNNING','FAILED',2,0,NULL,NULL,NULL,'{"set":{"ended_at":1795881209565114,"error":"connection refused","failure_fingerprint":"3a01ac396d15","failure_class":"transient","failure_mode":"transient","next_retry_at":null,"claim_token":null,"failures":2},"attempt":{"ended_at":1795881209565114,"outcome":"error","exit_code":1,"max_rss_kb":18936,"cpu_user_us":2774,"cpu_system_us":2774,"duration_us":10553,"error_type":"ConnectionError","error":"connection refused","diagnostic":null,"failure_class":"transient","fingerprint":"3a01ac396d15","fingerprint_loose":"64ff3aa38626","explain":"ConnectionError shop.py:16 in ping","failure_mode":"transient"},"explain":"ConnectionError shop.py:16 in ping","why":"2 of 2 attempts failed"}');
INSERT INTO "event" VALUES(19,1795881209565114,'page','night-1','ping',NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"what":"opened","id":2,"cause":"64ff3aa38626","episode":1,"count":1,"title":"budget spent","severity":"normal","fingerprint":"64ff3aa38626"}');
INSERT INTO "event" VALUES(20,1795881209566645,'run','night-1',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"what":"blocked","set":{"blocked_since":1795881209566645},"why":"1 dead letter waits for a decision","asked":[]}');
INSERT INTO "event" VALUES(21,1795881209576891,'executor',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{"what":"stopped","executor_id":"6892d7b42a3a4dc197c74215cdffbfc4"}');
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
    run_id       TEXT
, state_path TEXT);
INSERT INTO "executor" VALUES('6892d7b42a3a4dc197c74215cdffbfc4',18857,52677,'bf853812-fb6d-42a1-97b6-65eed61d7e95','worker-1','0.1.0',1795881209514962,1795881209576891,1795881209576891,'night-1',NULL);
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
INSERT INTO "log" VALUES(1,'night-1','extract',1,1795881209534411,14,0,0,'3 orders read
',NULL);
INSERT INTO "log" VALUES(2,'night-1','load',1,1795881209545376,10,0,0,'loading 3
',NULL);
INSERT INTO "log" VALUES(3,'night-1','load',2,1795881209558594,10,0,0,'loading 3
',NULL);
CREATE TABLE log_size (                   -- of the output of a run, as it is stored
    run_id TEXT PRIMARY KEY,
    bytes  INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "log_size" VALUES('night-1',34);
CREATE TABLE meta (                       -- one row per fact about the file itself
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
INSERT INTO "meta" VALUES('uuid','7555771d403b48a7bd8041bb94257f1f');
INSERT INTO "meta" VALUES('created_at','1795881209511393');
INSERT INTO "meta" VALUES('schema_version','2');
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
    acked_by   TEXT, told_by TEXT,
    UNIQUE (cause, episode)
);
INSERT INTO "page" VALUES(1,'f9f6ea069292',1,'night-1','load','high','poison-pill on load','{"why": "the same failure 2 times in a row", "mode": "poisoned", "kind": "poison", "class": "unclassified", "error": "''price''", "diagnostic": null, "explain": "KeyError shop.py:10 in load", "fingerprint": "f9f6ea069292", "changed": [], "held": 1, "deadline_at": 1795892009514962, "downstream": null, "breaker": null, "owner": null, "memory": null, "command": "redrive requeue --state /srv/flows/shop.db --run night-1 --reason ... -- load", "attach": "redrive attach /srv/flows/shop.db --run night-1"}',1,0,'open',0,1795881209558594,1795881209558594,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "page" VALUES(2,'64ff3aa38626',1,'night-1','ping','normal','budget spent on ping','{"why": "2 of 2 attempts failed", "mode": "transient", "kind": null, "class": "transient", "error": "connection refused", "diagnostic": null, "explain": "ConnectionError shop.py:16 in ping", "fingerprint": "64ff3aa38626", "changed": [], "held": 0, "deadline_at": 1795892009514962, "downstream": null, "breaker": null, "owner": null, "memory": null, "command": "redrive requeue --state /srv/flows/shop.db --run night-1 --reason ... -- ping", "attach": "redrive attach /srv/flows/shop.db --run night-1"}',1,0,'open',0,1795881209565114,1795881209565114,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE page_task (                  -- whose failures a page has counted
    run_id  TEXT NOT NULL,
    task    TEXT NOT NULL,
    page_id INTEGER NOT NULL,
    done    INTEGER NOT NULL DEFAULT 0,   -- 1: it succeeded, or somebody decided; a page is resolved when all are
    PRIMARY KEY (run_id, task, page_id)
) WITHOUT ROWID;
INSERT INTO "page_task" VALUES('night-1','load',1,0);
INSERT INTO "page_task" VALUES('night-1','ping',2,0);
CREATE TABLE pruned_run (                 -- runs that are deleted, while they have rows in other tables
    run_id TEXT PRIMARY KEY
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
    max_parallel  INTEGER NOT NULL DEFAULT 4,
    flow_path     TEXT,                   -- what `resume` starts again; NULL for a flow built in a program
    params        TEXT NOT NULL DEFAULT '{}',
    options       TEXT NOT NULL DEFAULT '{}', -- pools, downstreams, ... as the flow declares them (JSON); part: what it runs
    code_hash     TEXT,
    pool_waits    TEXT,                   -- JSON: each pool of the machine that tasks wait for, and who holds it;
                                          -- each pool of Dask workers ("workers:...") and why none takes a task
    code_changed  TEXT,                   -- source files that changed after the executor loaded them, for people
    python_path   TEXT,                   -- PYTHONPATH of the start, absolute; NULL: none
    logical_time  INTEGER,                -- the instant of its schedule that it stands for; NULL: started by hand
    acknowledged_at INTEGER,              -- when an operator took note of how it ended; NULL again once it is reopened
    acknowledged_by TEXT
, deadline_is_time INTEGER NOT NULL DEFAULT 0, abandoned_at INTEGER, waited_us INTEGER NOT NULL DEFAULT 0);
INSERT INTO "run" VALUES('night-1','shop',1795881209514962,NULL,'RUNNING',1795881209566645,NULL,NULL,1795892009514962,NULL,4,'/srv/flows/shop.py','{}','{"pools":{},"downstreams":[],"pages":[]}','b40b0c2d7dee7d80',NULL,NULL,'/usr/lib/.types',NULL,NULL,NULL,0,NULL,0);
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
CREATE TABLE sla (                        -- promises that were not kept, each told once
    dag_name     TEXT NOT NULL,
    logical_time INTEGER NOT NULL,
    promise      TEXT NOT NULL CHECK (promise IN ('start', 'end')),
    promised_at  INTEGER NOT NULL,
    run_id       TEXT,                    -- end: which run
    at           INTEGER NOT NULL,        -- when it was noticed
    PRIMARY KEY (dag_name, logical_time, promise)
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
    canary        TEXT,                         -- the task of the same cause that runs first; this one follows it
    position      INTEGER NOT NULL DEFAULT 0,   -- order in the flow
    rule          TEXT NOT NULL DEFAULT 'all_success', -- when its parents let it start: as in spec, for SQL to read
    spec          TEXT NOT NULL DEFAULT '{}', element TEXT, aside TEXT, element_keys TEXT,   -- TaskSpec as JSON
    PRIMARY KEY (run_id, name)
) WITHOUT ROWID;
INSERT INTO "task" VALUES('night-1','extract','SUCCESS',1,2,1795881209523460,1795881209534411,NULL,NULL,NULL,0,0,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,1795881209523460,NULL,NULL,NULL,'[1,2,3]',NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,NULL,0,NULL,0,'all_success','{"name":"extract","retry":{"max_attempts":2,"base":0.01,"cap":0.01,"factor":2.0,"jitter":"full","max_elapsed":null,"retry_on":[],"never_retry":[],"poison_after":"evidence","ambiguous_attempts":3,"poison_seconds":60.0},"timeout":30.0,"source":"/srv/flows/shop.py:3","code":"3.11:878f5af4366b"}',NULL,NULL,NULL);
INSERT INTO "task" VALUES('night-1','load','DEAD_LETTER',2,2,1795881209549608,1795881209558594,NULL,'''price''','4a9be0ec256f',0,2,0,0,0,'unclassified','poisoned','poison',972,10000,NULL,1795881209534411,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,NULL,0,NULL,1,'all_success','{"name":"load","parents":["extract"],"retry":{"max_attempts":2,"base":0.01,"cap":0.01,"factor":2.0,"jitter":"full","max_elapsed":null,"retry_on":[],"never_retry":[],"poison_after":"evidence","ambiguous_attempts":3,"poison_seconds":60.0},"timeout":30.0,"requires":["extract"],"source":"/srv/flows/shop.py:7","code":"3.11:06b2d32c2ab9"}',NULL,NULL,NULL);
INSERT INTO "task" VALUES('night-1','ping','FAILED',2,2,1795881209552720,1795881209565114,NULL,'connection refused','3a01ac396d15',0,2,0,0,0,'transient','transient',NULL,5859,10000,NULL,1795881209523460,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,NULL,0,NULL,3,'all_success','{"name":"ping","retry":{"max_attempts":2,"base":0.01,"cap":0.01,"factor":2.0,"jitter":"full","max_elapsed":null,"retry_on":[],"never_retry":[],"poison_after":"evidence","ambiguous_attempts":3,"poison_seconds":60.0},"timeout":30.0,"source":"/srv/flows/shop.py:14","code":"3.11:048eca6c5e4d"}',NULL,NULL,NULL);
INSERT INTO "task" VALUES('night-1','publish','PENDING',0,2,NULL,NULL,NULL,NULL,NULL,0,0,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,NULL,0,NULL,2,'all_success','{"name":"publish","parents":["load"],"retry":{"max_attempts":2,"base":0.01,"cap":0.01,"factor":2.0,"jitter":"full","max_elapsed":null,"retry_on":[],"never_retry":[],"poison_after":"evidence","ambiguous_attempts":3,"poison_seconds":60.0},"timeout":30.0,"requires":["load"],"source":"/srv/flows/shop.py:11","code":"3.11:de6217325d8f"}',NULL,NULL,NULL);
CREATE INDEX idx_run_late ON run(dag_name) WHERE ended_at IS NULL OR ended_at > deadline_at;
CREATE INDEX idx_run_attention ON run(started_at) -- what may need a human: lists.py
    WHERE acknowledged_at IS NULL AND (ended_at IS NULL OR state IN ('FAILED','PARTIAL') OR ended_at > deadline_at);
CREATE INDEX idx_run_flow ON run(dag_name, started_at, state);
CREATE INDEX idx_task_state ON task(run_id, state);
CREATE INDEX idx_task_failure ON task(run_id, failure_fingerprint, state, dead_letter_kind) -- settle.py
    WHERE failure_fingerprint IS NOT NULL;
CREATE INDEX idx_edge_parent ON edge(run_id, parent);
CREATE INDEX idx_attempt_running ON attempt(outcome) WHERE outcome = 'running';
CREATE INDEX idx_attempt_name ON attempt(name, started_at);
CREATE INDEX idx_attempt_cause ON attempt(fingerprint_loose, run_id) WHERE fingerprint_loose IS NOT NULL;
CREATE INDEX idx_event_run ON event(run_id, seq);
CREATE INDEX idx_event_command ON event(command_id) WHERE command_id IS NOT NULL;
CREATE INDEX idx_event_ladder ON event(run_id, seq) -- the instants of every kill, for those who open a run late
    WHERE kind IN ('attempt.deadline', 'attempt.stack', 'attempt.sigterm', 'attempt.sigkill');
CREATE INDEX idx_event_decision ON event(run_id, seq) -- what operators decided about what needs a human: memory.py
    WHERE kind = 'task' AND old IN ('DEAD_LETTER', 'FAILED') AND command_id IS NOT NULL;
CREATE INDEX idx_event_note ON event(run_id, seq) WHERE kind = 'note';
CREATE INDEX idx_log_attempt ON log(run_id, name, attempt, id);
CREATE INDEX idx_quarantine_task ON quarantine(run_id, name, state);
CREATE INDEX idx_quarantine_held ON quarantine(run_id) WHERE state = 'held';
CREATE INDEX idx_page_task ON page_task(page_id, done);
CREATE VIEW task_view AS
SELECT run_id, name, state, attempt, max_attempts,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_at / 1000000.0, 'unixepoch')    AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', ended_at / 1000000.0, 'unixepoch')      AS ended_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', next_retry_at / 1000000.0, 'unixepoch') AS next_retry_at,
       error, failure_fingerprint, dead_letter_kind, blocked_by
FROM task;
CREATE INDEX idx_task_notice ON task(run_id) WHERE stale = 1 AND notice IS NOT NULL;
CREATE INDEX idx_page_task_open ON page_task(task) WHERE done = 0;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('event',21);
COMMIT;
