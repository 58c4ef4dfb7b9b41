"""What is said too often is told in part, with the number of what was left out."""

from redrive.engine import Executor, Flow, retry
from redrive.engine.domain.event_payloads import AttemptRetry
from redrive.engine.executor.attempts import FULL_RATE_COUNT, INTERVAL_SECONDS, RetrySampler


def test_the_first_retries_are_emitted_one_by_one_and_the_others_are_emitted_or_counted():
    sampler, total = RetrySampler(), 5000
    emitted: list[AttemptRetry] = []
    for number in range(total):
        if (one := sampler.sample(AttemptRetry(number), now=number * INTERVAL_SECONDS / 1000)) is not None:
            emitted.append(one)
    last = sampler.flush()
    assert last is not None
    emitted.append(last)
    assert [AttemptRetry(number) for number in range(FULL_RATE_COUNT)] == emitted[:FULL_RATE_COUNT]
    assert len(emitted) == FULL_RATE_COUNT + 4 + 1
    assert emitted[-1].try_number == total - 1
    assert total == len(emitted) + sum(one.untold for one in emitted)
    assert sampler.flush() is None


def test_rare_retries_are_all_emitted():
    sampler = RetrySampler()
    for number in range(3 * FULL_RATE_COUNT):
        assert sampler.sample(AttemptRetry(number), now=number * INTERVAL_SECONDS) == AttemptRetry(number)
    assert sampler.flush() is None


def test_a_loop_of_retries_without_a_wait_does_not_fill_the_file(tmp_path):
    """002.08: retries at two layers are seen and counted."""
    flow, events = Flow("f"), []

    @flow.task
    def hammer():
        left = iter(range(3000))

        @retry(retries=3000, base=0, exceptions=(ConnectionError,))
        def call():
            if next(left, None) is not None:
                raise ConnectionError("refused")

        call()

    executor = Executor(run_id="r", flow=flow, state=tmp_path / "state.db", on_events=events.extend)
    assert executor.run() == "SUCCESS"
    retried = [event.payload for event in events if event.kind == "attempt.retry"]
    assert FULL_RATE_COUNT < len(retried) < 1000
    assert 3000 == len(retried) + sum(retry.untold for retry in retried)
