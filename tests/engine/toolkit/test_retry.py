"""The decorator of document 001, its block form, and the waits of documents 000 and 004."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redrive.engine.errors import (
    AuthError,
    NotReady,
    PermanentError,
    RetryAfter,
    SkipTask,
    TaskTerminated,
    TransientError,
)
from redrive.engine.toolkit import retry as module
from redrive.engine.toolkit.retry import (
    backoff_delay,
    full_jitter,
    no_jitter,
    retry,
    retry_transient,
    retrying,
    set_observer,
    wait_seconds,
    wait_with_equal_jitter,
    wait_with_full_jitter,
)
from support.marks import for_each


class Flaky:
    """Raises the errors in order, then answers 42."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return 42


class FakeClock:
    """Time that passes only in ``sleep``."""

    def __init__(self) -> None:
        self.time = 0.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def observed() -> Iterator[None]:
    yield
    set_observer(None)


class TestWaits:
    def test_the_signature_of_document_000(self):
        """000.09: ``backoff_delay(attempt, base=1.0, cap=300.0, jitter="full")``."""
        parameters = inspect.signature(backoff_delay).parameters
        assert {name: parameter.default for name, parameter in parameters.items()} == {
            "attempt": inspect.Parameter.empty,
            "base": 1.0,
            "cap": 300.0,
            "jitter": "full",
        }

    def test_the_table_of_document_000(self):
        """000.11: the ceiling column, by the function that draws."""
        assert [backoff_delay(attempt, jitter="none") for attempt in range(10)] == [
            1, 2, 4, 8, 16, 32, 64, 128, 256, 300,
        ]  # fmt: skip

    @pytest.mark.parametrize(("jitter", "low", "high"), [("full", 0, 8), ("equal", 4, 8)])
    def test_each_jitter_stays_in_its_part_of_the_window(self, jitter, low, high):
        """000.10: and it draws by itself, from the process's own dice."""
        random.seed(3)
        drawn = [backoff_delay(3, jitter=jitter) for _ in range(500)]
        assert low <= min(drawn) < low + 0.1
        assert high - 0.1 < max(drawn) <= high

    def test_an_unknown_jitter_is_an_error(self):
        """000.10: document 000 takes "Full" for no jitter at all, without a word."""
        with pytest.raises(ValueError, match="jitter is one of"):
            backoff_delay(1, jitter="Full")  # type: ignore[arg-type]

    def test_attempt_ten_thousand_waits_the_cap(self):
        """000.10: ``base * 2**attempt`` of a float overflows at 1024; the cap is what was meant."""
        assert backoff_delay(10_000, jitter="none") == 300

    def test_the_waits_of_document_004(self):
        """004.23: 1 2 4 8 16 32 60 60 for base 1 and cap 60, in all 183 s."""
        waits = [wait_seconds(attempt) for attempt in range(8)]
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
        assert sum(waits) == 183

    def test_the_jittered_waits_of_document_004(self):
        """004.24: full: anywhere under the wait; equal: half and a random half."""
        random.seed(4)
        full = [wait_with_full_jitter(9) for _ in range(300)]
        equal = [wait_with_equal_jitter(9) for _ in range(300)]
        assert min(full) < 3 < 57 < max(full) <= 60
        assert 30 <= min(equal) < 32 < 58 < max(equal) <= 60

    def test_a_hundred_clients_are_spread_over_the_window(self):
        """004.21: without jitter a hundred clients land in one second, with it in as many as the window has."""
        random.seed(5)
        assert len({int(wait_seconds(2)) for _ in range(100)}) == 1
        assert {int(wait_with_full_jitter(2)) for _ in range(100)} == {0, 1, 2, 3}


class TestDocument001:
    def test_the_signature(self):
        """001.03: keyword-only, names and defaults as printed; 001.18: ``on_retry`` is the exercise's addition."""
        parameters = inspect.signature(retry).parameters
        assert {name: parameter.default for name, parameter in parameters.items()} == {
            "retries": 3,
            "base": 0.2,
            "max_delay": 2.0,
            "exceptions": (Exception,),
            "jitter": no_jitter,
            "sleep": time.sleep,
            "now": time.time,
            "deadline": None,
            "on_retry": None,
        }
        assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
        assert no_jitter(1.25) == 1.25

    def test_succeeds_with_backoff(self):
        """001.09: two TimeoutErrors, then 42, two sleeps."""
        flaky, sleeps = Flaky(TimeoutError(), TimeoutError()), []
        wrapped = retry(retries=5, base=0, sleep=sleeps.append, exceptions=(TimeoutError,))(flaky)
        assert wrapped() == 42
        assert sleeps == [0, 0]

    def test_filters_exceptions(self):
        """001.10, 001.20: what is not in ``exceptions`` is raised at once and bypasses the sleeps."""
        flaky, sleeps = Flaky(ValueError("no retry")), []
        with pytest.raises(ValueError, match="no retry"):
            retry(retries=2, base=0, exceptions=(TimeoutError,), sleep=sleeps.append)(flaky)()
        assert (flaky.calls, sleeps) == (1, [])

    def test_deadline_stops_early(self, clock):
        """001.11: base 1, max_delay 8, deadline 2.5: two calls, given up at t = 1."""
        flaky = Flaky(*(TimeoutError() for _ in range(20)))
        wrapped = retry(
            retries=10,
            base=1.0,
            max_delay=8.0,
            deadline=2.5,
            now=clock.now,
            sleep=clock.sleep,
            exceptions=(TimeoutError,),
        )(flaky)
        with pytest.raises(TimeoutError):
            wrapped()
        assert (flaky.calls, clock.time) == (2, 1.0)

    def test_the_defaults_sleep_1_4_seconds_in_all(self, clock):
        """001.04, 001.05, 001.07: three retries after the first try: 0.2, 0.4, 0.8."""
        flaky = Flaky(*(OSError() for _ in range(9)))
        with pytest.raises(OSError):
            retry(sleep=clock.sleep, now=clock.now)(flaky)()
        assert flaky.calls == 4
        assert clock.sleeps == pytest.approx([0.2, 0.4, 0.8])

    def test_the_delay_stops_growing_at_max_delay_and_jitter_comes_after(self, clock):
        """001.05: jitter is applied to the capped delay."""
        flaky = Flaky(*(OSError() for _ in range(5)))
        wrapped = retry(retries=5, base=1, max_delay=3, jitter=lambda d: d / 10, sleep=clock.sleep, now=clock.now)(
            flaky
        )
        assert wrapped() == 42
        assert clock.sleeps == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3])

    def test_the_deadline_is_held_against_the_capped_delay(self, clock):
        """001.06: document 001 compares the uncapped delay: base 10, max_delay 2, deadline 5 gave up at once."""
        flaky = Flaky(*(OSError() for _ in range(9)))
        with pytest.raises(OSError):
            retry(retries=9, base=10, max_delay=2, deadline=5, sleep=clock.sleep, now=clock.now)(flaky)()
        assert (flaky.calls, clock.sleeps) == (3, [2, 2])

    def test_no_sleep_ends_after_the_deadline_even_with_jitter_that_adds(self, clock):
        flaky = Flaky(*(OSError() for _ in range(9)))
        wrapped = retry(base=1, deadline=2.5, jitter=lambda d: 3 * d, sleep=clock.sleep, now=clock.now)(flaky)
        with pytest.raises(OSError):
            wrapped()
        assert (flaky.calls, clock.sleeps) == (1, [])

    def test_the_original_error_comes_out(self, clock):
        """001.06: re-raised, not wrapped, with the traceback of the last try."""
        last = KeyError("last")
        flaky = Flaky(KeyError("first"), last)
        with pytest.raises(KeyError) as caught:
            retry(retries=1, sleep=clock.sleep)(flaky)()
        assert caught.value is last
        assert caught.traceback[-1].name == "__call__"

    def test_full_jitter_is_the_exercises(self):
        """001.17: ``random.uniform(0, d)``."""
        random.seed(1)
        expected = random.uniform(0, 8)
        random.seed(1)
        assert full_jitter(8) == expected

    def test_on_retry_is_called_for_every_retry_and_for_nothing_else(self, clock):
        """001.18, 001.19: attempts 1..n with the error and the delay; not of the last failure, which is raised."""
        retries: list[tuple[int, str, float]] = []
        errors = [OSError("a"), OSError("b"), OSError("c")]
        wrapped = retry(
            retries=2,
            base=1,
            sleep=clock.sleep,
            jitter=lambda d: d / 2,
            on_retry=lambda attempt, error, delay: retries.append((attempt, str(error), delay)),
        )(Flaky(*errors))
        with pytest.raises(OSError, match="c"):
            wrapped()
        assert retries == [(1, "a", 0.5), (2, "b", 1.0)]

    def test_zero_retries_is_one_call(self):
        flaky = Flaky(OSError())
        with pytest.raises(OSError):
            retry(retries=0)(flaky)()
        assert flaky.calls == 1

    @for_each(
        "arguments, word",
        [
            ({"retries": -1}, "retries"),
            ({"retries": 1.5}, "retries"),
            ({"base": -0.1}, "base"),
            ({"max_delay": -1}, "cap"),
            ({"deadline": -1}, "deadline"),
            ({"deadline": float("nan")}, "deadline"),
            ({"exceptions": ()}, "exceptions"),
            ({"exceptions": ("OSError",)}, "exceptions"),
        ],
    )
    def test_arguments_that_make_no_sense_are_refused(self, arguments, word):
        """Part 5, 001: ``retries=-1`` returned None without calling the function."""
        with pytest.raises(ValueError, match=f"^{word} is "):
            retry(**arguments)

    def test_the_default_clock_does_not_follow_the_wall_clock(self, monkeypatch):
        """Part 5, 001: a wall clock that jumps a year neither ends nor extends a deadline."""
        monkeypatch.setattr(module.time, "monotonic", lambda: 5.0)  # type: ignore[attr-defined]
        flaky = Flaky(OSError(), OSError())
        assert retry(base=0, deadline=60)(flaky)() == 42

    def test_methods_keep_their_self(self):
        """001.01: a drop-in decorator around methods too."""

        class Loader:
            def __init__(self) -> None:
                self.tries = 0

            @retry(base=0)
            def load(self, amount: int, *, unit: str) -> str:
                """Load it."""
                self.tries += 1
                if self.tries < 3:
                    raise OSError
                return f"{amount} {unit}"

            @staticmethod
            @retry(base=0)
            def plain() -> int:
                return 1

            @classmethod
            @retry(base=0)
            def named(cls) -> str:
                return cls.__name__

        assert Loader().load(3, unit="rows") == "3 rows"
        assert (Loader.plain(), Loader.named()) == (1, "Loader")
        assert (Loader.load.__name__, Loader.load.__doc__) == ("load", "Load it.")

    def test_two_calls_of_one_function_do_not_share_their_tries(self, clock):
        flaky = Flaky(OSError(), OSError())
        wrapped = retry(retries=1, sleep=clock.sleep)(flaky)
        with pytest.raises(OSError):
            wrapped()
        assert wrapped() == 42


class TestWhatIsNotRetried:
    @pytest.mark.parametrize("error", [PermanentError("p"), AuthError("a"), NotReady("n"), SkipTask("s")])
    def test_a_tasks_own_word_that_it_is_pointless(self, error, clock):
        """004.31, 004.32: permanent errors come out at once even where ``Exception`` is retried."""
        flaky = Flaky(error)
        with pytest.raises(type(error)):
            retry(sleep=clock.sleep)(flaky)()
        assert (flaky.calls, clock.sleeps) == (1, [])

    def test_unless_the_caller_names_it(self, clock):
        assert retry(exceptions=(AuthError,), sleep=clock.sleep)(Flaky(AuthError("refresh")))() == 42

    @pytest.mark.parametrize("error", [TaskTerminated("SIGTERM"), asyncio.CancelledError(), GeneratorExit()])
    def test_the_end_of_the_work_passes_through(self, error, clock):
        """000.24: an attempt that is told to stop must not be kept alive by its own retries."""
        flaky = Flaky(error)
        with pytest.raises(type(error)):
            retry(exceptions=(BaseException,), sleep=clock.sleep)(flaky)()
        assert flaky.calls == 1

    def test_what_merely_calls_a_generator_is_refused(self):
        """Calling a generator function cannot fail, so a decorated one would never be retried."""

        def rows() -> Iterator[int]:
            yield 1

        async def pages() -> Any:
            yield 1

        for function in (rows, pages, functools.partial(rows)):
            with pytest.raises(TypeError, match="is a generator function"):
                retry()(function)

    def test_the_wrong_order_of_decorators_is_named(self):
        with pytest.raises(TypeError, match="put @retry below @classmethod"):
            retry()(classmethod(lambda cls: None))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="decorates a function"):
            retry()(42)  # type: ignore[arg-type]


class TestRetryAfter:
    def test_it_is_never_retried_sooner(self, clock):
        """004.04: a floor above max_delay; jitter only adds to it."""
        wrapped = retry(base=0.5, max_delay=1, sleep=clock.sleep, now=clock.now)(Flaky(RetryAfter(30)))
        assert wrapped() == 42
        assert clock.sleeps == [30.5]

    def test_a_wait_beyond_the_deadline_is_not_begun(self, clock):
        flaky = Flaky(RetryAfter(30))
        with pytest.raises(RetryAfter):
            retry(deadline=10, sleep=clock.sleep, now=clock.now)(flaky)()
        assert clock.sleeps == []


class TestAsync:
    async def test_a_coroutine_function_is_awaited_and_retried(self):
        """Part 5, 001: the printed decorator returned the coroutine and never saw its errors."""
        flaky = Flaky(OSError(), OSError())

        @retry(base=0)
        async def fetch() -> int:
            return flaky()

        assert inspect.iscoroutinefunction(fetch)
        assert await fetch() == 42
        assert flaky.calls == 3

    async def test_the_wait_does_not_block_the_loop(self):
        """001.13: sleeping on the loop's thread is a pitfall: another task runs during the wait."""
        order: list[str] = []
        flaky = Flaky(OSError())

        @retry(base=0.05)
        async def fetch() -> int:
            order.append("try")
            return flaky()

        async def neighbour() -> None:
            order.append("neighbour")

        await asyncio.gather(fetch(), neighbour())
        assert order == ["try", "neighbour", "try"]

    async def test_sleep_may_be_awaitable_or_not(self, clock):
        """001.08: the twin takes either kind of injected sleep."""

        async def nap(delay: float) -> None:
            clock.sleep(delay)

        for sleep in (nap, clock.sleep):
            flaky = Flaky(OSError())

            @retry(base=1, sleep=sleep)
            async def fetch(flaky: Flaky = flaky) -> int:
                return flaky()

            assert await fetch() == 42
        assert clock.sleeps == [1, 1]

    async def test_cancellation_is_not_retried(self):
        tries = 0

        @retry(exceptions=(BaseException,), base=0)
        async def fetch() -> None:
            nonlocal tries
            tries += 1
            await asyncio.sleep(60)

        task = asyncio.create_task(fetch())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert tries == 1

    async def test_objects_and_partials_with_an_async_call(self):
        class Fetch:
            def __init__(self) -> None:
                self.flaky = Flaky(OSError())

            async def __call__(self) -> int:
                return self.flaky()

        async def fetch(flaky: Flaky) -> int:
            return flaky()

        assert await retry(base=0)(Fetch())() == 42
        assert await retry(base=0)(functools.partial(fetch, Flaky(OSError())))() == 42


class TestBlock:
    def test_a_block_is_retried(self, clock):
        """001.16: ``for attempt in retrying(...): with attempt:``."""
        flaky, numbers = Flaky(OSError(), OSError()), []
        for attempt in retrying(base=1, sleep=clock.sleep, now=clock.now):
            with attempt:
                numbers.append(attempt.number)
                answer = flaky()
        assert (answer, numbers, clock.sleeps) == (42, [1, 2, 3], [1, 2])

    def test_the_last_error_comes_out(self, clock):
        flaky = Flaky(*(OSError(str(index)) for index in range(9)))
        with pytest.raises(OSError, match="2"):
            for attempt in retrying(retries=2, sleep=clock.sleep):
                with attempt:
                    flaky()
        assert flaky.calls == 3

    def test_what_is_not_named_comes_out_at_once(self, clock):
        with pytest.raises(KeyError):
            for attempt in retrying(exceptions=(OSError,), sleep=clock.sleep):
                with attempt:
                    raise KeyError("x")
        assert clock.sleeps == []

    def test_leaving_the_loop_is_fine(self, clock):
        def fetch() -> int:
            for attempt in retrying(sleep=clock.sleep):
                with attempt:
                    return 7
            raise AssertionError("unreachable")

        assert fetch() == 7

    def test_a_forgotten_with_is_named(self):
        with pytest.raises(RuntimeError, match="with attempt:"):
            for _ in retrying():
                pass

    def test_the_deadline_counts_from_the_first_try(self, clock):
        flaky = Flaky(*(OSError() for _ in range(9)))
        with pytest.raises(OSError):
            for attempt in retrying(retries=9, base=1, max_delay=8, deadline=2.5, sleep=clock.sleep, now=clock.now):
                with attempt:
                    flaky()
        assert (flaky.calls, clock.time) == (2, 1.0)

    async def test_the_async_form(self):
        """001.08, 001.16: ``async for`` awaits the waits."""
        flaky, order = Flaky(OSError()), []

        async def fetch() -> int:
            async for attempt in retrying(base=0.05):
                with attempt:
                    order.append("try")
                    return flaky()
            raise AssertionError("unreachable")

        async def neighbour() -> None:
            order.append("neighbour")

        assert (await asyncio.gather(fetch(), neighbour()))[0] == 42
        assert order == ["try", "neighbour", "try"]


class TestRetryTransient:
    def test_transient_errors_are_retried_with_a_sleep(self, clock):
        """004.39 and Part 5, 004: three tries, and unlike the printed sample it waits between them: 1 s, 2 s."""
        flaky = Flaky(TransientError("a"), TransientError("b"))
        assert retry_transient(max_attempts=3, jitter=no_jitter, sleep=clock.sleep)(flaky)() == 42
        assert (flaky.calls, clock.sleeps) == (3, [1, 2])

    @pytest.mark.parametrize("error", [PermanentError("p"), KeyError("bug")])
    def test_everything_else_comes_out_at_once(self, error, clock):
        """004.39: permanent errors and bugs are not retried, and not slept on."""
        flaky = Flaky(error)
        with pytest.raises(type(error)):
            retry_transient(sleep=clock.sleep)(flaky)()
        assert (flaky.calls, clock.sleeps) == (1, [])

    def test_the_budget_is_a_total(self, clock):
        """004.13: ``max_attempts`` counts the first try."""
        flaky = Flaky(*(TransientError(str(index)) for index in range(9)))
        with pytest.raises(TransientError, match="2"):
            retry_transient(sleep=clock.sleep)(flaky)()
        assert flaky.calls == 3
        assert all(slept <= 2 for slept in clock.sleeps)

    def test_no_attempts_is_refused(self):
        with pytest.raises(ValueError, match="max_attempts"):
            retry_transient(0)


class TestVisibility:
    def test_each_retry_is_logged_with_number_and_elapsed_time(self, clock, caplog):
        """004.15: the fourth property: a recovery that nobody sees looks like no failure at all."""

        flaky = Flaky(OSError("reset"), OSError("reset"))

        def fetch() -> int:
            return flaky()

        with caplog.at_level(logging.WARNING, logger="redrive.retry"):
            retry(base=1, sleep=clock.sleep, now=clock.now)(fetch)()
        assert [record.getMessage() for record in caplog.records] == [
            f"{fetch.__qualname__}: try 1 of 4 failed after 0.00 s: OSError('reset'); next in 1.00 s",
            f"{fetch.__qualname__}: try 2 of 4 failed after 1.00 s: OSError('reset'); next in 2.00 s",
        ]

    def test_the_observer_receives_every_retry_of_the_process(self, clock):
        """001.18, 004.17: that is how the executor learns of retries inside an attempt."""
        retries: list[Any] = []
        set_observer(retries.append)
        retry(base=1, sleep=clock.sleep, now=clock.now)(Flaky(TimeoutError("slow")))()
        assert retries == [
            {
                "function": "Flaky",
                "try": 1,
                "error_type": "TimeoutError",
                "message": "slow",
                "delay_seconds": 1.0,
                "elapsed_seconds": 0.0,
            }
        ]
        set_observer(None)
        retry(base=1, sleep=clock.sleep)(Flaky(TimeoutError("slow")))()
        assert len(retries) == 1

    def test_a_broken_observer_does_not_break_the_call(self, clock, caplog):
        """A closed pipe to the executor must not replace the error that was being retried."""

        def broken(calls: object) -> None:
            raise OSError("closed pipe")

        set_observer(broken)
        assert retry(base=1, sleep=clock.sleep)(Flaky(TimeoutError("slow")))() == 42
        assert "could not be reported" in caplog.text
