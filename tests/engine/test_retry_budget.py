"""The retry bucket of a downstream: what costs a token, and what must not (SPEC 4.12)."""

from redrive.engine.core.breaker import DownstreamHealth
from redrive.engine.core.downstreams import DownstreamStates
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.spec import DownstreamSpec, FlowSpec, TaskSpec

SECOND = 1_000_000
BLIP = Outcome(OutcomeKind.ERROR, Failure("E", "503", FailureClass.TRANSIENT, Fingerprint("s", "l")))
SUCCESS = Outcome(OutcomeKind.SUCCESS)


class Api:
    """One downstream with four tokens; its clock is set by hand."""

    def __init__(self, release_per_second: float = 0, bucket_per_second: float = 5) -> None:
        self.now = 0
        spec = DownstreamSpec(
            "api",
            minimum_calls=3,
            open_seconds=30,
            probes=1,
            bucket_capacity=4,
            release_per_second=release_per_second,
            bucket_per_second=bucket_per_second,
        )
        flow = FlowSpec("f", tuple(TaskSpec(name, downstream="api") for name in "abcdef"), downstreams=(spec,))
        self.downstreams = DownstreamStates(flow, lambda: self.now, lambda name: None)

    @property
    def tokens(self) -> float:
        tokens = self.downstreams.change_event("api").tokens
        assert tokens is not None
        return tokens

    def admits(self, task: str, is_retry: bool = False) -> bool:
        return self.downstreams.admit(task, "api", is_retry).call is not None

    def fail(self, *tasks: str) -> None:
        for task in tasks:
            assert self.admits(task)
            self.downstreams.record(task, BLIP, 0, 3)


def test_a_retry_costs_a_token_and_a_first_try_none():
    api = Api()
    assert api.admits("a") and 4 == api.tokens
    assert api.admits("b", is_retry=True) and 3 == api.tokens


def test_a_retry_that_the_breaker_holds_costs_no_token_however_often_it_asks():
    api = Api()
    api.fail("a", "b", "c")
    assert not any(api.admits("a", is_retry=True) for _ in range(100))
    assert 4 == api.tokens


def test_a_probe_is_the_breakers_question_and_costs_none():
    api = Api()
    api.fail("a", "b", "c")
    api.now = 31 * SECOND
    assert api.downstreams.is_probe_due("api") and api.admits("a", is_retry=True)
    assert 4 == api.tokens


def test_an_empty_bucket_holds_retries_and_never_first_tries():
    api = Api()
    for task in "abcd":
        assert api.admits(task, is_retry=True)
    assert not api.admits("e", is_retry=True)
    assert api.admits("f")
    api.downstreams.record("f", SUCCESS, 0, 3)
    assert 0 < api.tokens < 1


def test_a_retry_that_the_bucket_refuses_uses_up_no_paced_start():
    """With one due retry before each first try, no first try started in 20 s."""
    api = Api(release_per_second=5, bucket_per_second=0.001)
    api.downstreams.operate("api", "open")
    api.downstreams.operate("api", "close")
    for task in "abcd":
        api.now += SECOND
        assert api.admits(task, is_retry=True)
    started = 0
    for _ in range(100):
        api.now += SECOND // 5
        assert not api.admits("e", is_retry=True)
        started += api.admits("f")
    assert 100 == started


def test_a_call_that_a_task_retries_by_itself_counts_for_breaker_and_budget():
    """Ten calls of one attempt, all refused, were one call of the breaker's window."""
    api = Api()
    assert api.admits("a")
    api.downstreams.record_retry("a")
    assert 3 == api.tokens and 1 == api.downstreams.change_event("api").failures
    api.downstreams.record_retry("a")
    assert not api.downstreams.is_open("api"), "what one task meets again and again is one piece of evidence"
    for task in "bc":
        assert api.admits(task)
        api.downstreams.record_retry(task)
    assert api.downstreams.is_open("api")
    assert DownstreamHealth.DOWN is api.downstreams.record("a", BLIP, 0, 3).health
