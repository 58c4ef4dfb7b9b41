"""The columns that events carry: the keys of the mappings ``set`` and ``attempt_set`` of payloads.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import TYPE_CHECKING, List, Optional

if TYPE_CHECKING:
    from typing import TypedDict

    class TaskColumns(TypedDict, total=False):
        """Columns of table ``task`` that change."""

        state: str
        attempt: int
        max_attempts: int
        started_at: Optional[int]
        ended_at: Optional[int]
        next_retry_at: Optional[int]
        error: Optional[str]
        failure_fingerprint: Optional[str]
        generation: int
        failures: int
        losses: int
        deferrals: int
        refusals: int
        failure_class: Optional[str]
        failure_mode: Optional[str]
        dead_letter_kind: Optional[str]
        delay_us: Optional[int]
        ceiling_us: Optional[int]
        shortened_us: Optional[int]
        first_started_at: Optional[int]
        blocked_by: Optional[str]
        skip_cause: Optional[str]
        claim_token: Optional[str]
        result: Optional[str]
        progress_done: Optional[int]
        progress_total: Optional[int]
        last_heartbeat_at: Optional[int]
        stale: int
        notice: Optional[str]
        bad_rows: int
        owner_note: Optional[str]
        cancel_requested_at: Optional[int]
        expires_at: Optional[int]
        overrides: Optional[str]
        key_generation: int
        checkpoint: Optional[str]
        canary: Optional[str]

    class AttemptColumns(TypedDict, total=False):
        """Columns of table ``attempt``. Events leave out the long texts and the identity of processes."""

        attempt: int
        generation: int
        started_at: int
        ended_at: Optional[int]
        duration_us: Optional[int]
        timeout_us: Optional[int]
        grace_us: Optional[int]
        outcome: str
        error_type: Optional[str]
        error: Optional[str]
        diagnostic: Optional[str]
        failure_class: Optional[str]
        failure_mode: Optional[str]
        fingerprint: Optional[str]
        fingerprint_loose: Optional[str]
        fingerprint_detail: Optional[str]
        explain: Optional[str]
        exit_code: Optional[int]
        signal: Optional[int]
        delay_us: Optional[int]
        ceiling_us: Optional[int]
        shortened_us: Optional[int]
        max_rss_kb: Optional[int]
        cpu_user_us: Optional[int]
        cpu_system_us: Optional[int]
        output_bytes: int
        output_dropped_bytes: int
        traceback: Optional[str]
        stack: Optional[str]
        pid: Optional[int]
        pid_start_ticks: Optional[int]
        executor_id: Optional[str]
        host: Optional[str]
        code_hash: Optional[str]
        input_hash: Optional[str]
        params_hash: Optional[str]
        image_hash: Optional[str]
        late: int

    class RunColumns(TypedDict, total=False):
        """Columns of table ``run`` that change."""

        dag_name: str
        started_at: int
        ended_at: Optional[int]
        state: str
        blocked_since: Optional[int]
        paused_since: Optional[int]
        paused_by: Optional[str]
        deadline_at: Optional[int]
        deadline_passed_at: Optional[int]
        max_parallel: int
        flow_path: Optional[str]
        params: str
        options: str
        code_hash: Optional[str]
        code_changed: Optional[str]
        pool_waits: Optional[str]
        python_path: Optional[str]
        logical_time: Optional[int]

    class PageColumns(TypedDict, total=False):
        """Columns of table ``page`` that change."""

        state: str
        rearmed: int
        acked_by: Optional[str]
        snoozed_until: Optional[int]

    class AnswerFields(TypedDict, total=False):
        """The answer to an operator's act. ``results``: [task, outcome, sentence] of each target."""

        ok: bool
        message: str
        results: List[List[str]]

else:  # old interpreters have no TypedDict
    TaskColumns = AttemptColumns = RunColumns = PageColumns = AnswerFields = dict
