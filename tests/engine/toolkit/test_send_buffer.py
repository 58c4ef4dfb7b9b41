"""Document 002: the send buffer, its incident, and the three layers of retries, in time that only passes when idle."""

from __future__ import annotations

import asyncio
import json
import logging
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from redrive.engine.core.failures.classify import classify_http
from redrive.engine.toolkit.retry import set_observer
from redrive.engine.toolkit.send_buffer import (
    BATCH_CODES,
    CHANNEL_CODES,
    QUERY_CODES,
    Budget,
    BufferFull,
    ClientConfig,
    Layer,
    SendBuffer,
    SendRejected,
    SendSettings,
    batch_layer,
    budgeted,
    call_through,
    channel_layer,
    exec_query,
    is_transient,
    query_layer,
)
from support.marks import for_each


class _Idle(selectors.DefaultSelector):
    """Instead of waiting for a timeout, lets it have passed."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing would ever happen again"
            self.passed += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only when nothing else is left to do: an hour takes no time."""

    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.passed


def run(main: Coroutine[Any, Any, Any]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


class GrpcError(Exception):
    """As grpc.aio raises it: code and details are methods."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self._code = code

    def code(self) -> SimpleNamespace:
        return SimpleNamespace(name=self._code)

    def details(self) -> str:
        return f"the server says {self._code}"


Step = Callable[[Sequence[Any]], Awaitable[Any]]


class Service:
    """services-provider: plays one step per call, then takes everything at once."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.calls: list[tuple[float, list[Any]]] = []

    async def __call__(self, items: Sequence[Any]) -> Any:
        self.calls.append((now(), list(items)))
        if self.steps:
            return await self.steps.pop(0)(items)
        return True

    @property
    def sizes(self) -> list[int]:
        return [len(items) for _, items in self.calls]


def after(seconds: float, answer: Any = True) -> Step:
    async def step(items: Sequence[Any]) -> Any:
        await asyncio.sleep(seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return step


DEADLINE = after(30, GrpcError("DEADLINE_EXCEEDED"))


def half(low: float, high: float) -> float:
    return (low + high) / 2


@pytest.fixture(autouse=True)
def unobserved():
    yield
    set_observer(None)


class TestTheIncident:
    SETTINGS = SendSettings(timeout_seconds=40)

    async def burst(self, service: Service, settings: SendSettings) -> list[Any]:
        buffer = SendBuffer(service, settings, uniform=half)
        futures = [buffer.put(index) for index in range(92)]
        return await asyncio.gather(*futures, return_exceptions=True)

    def test_one_slow_answer_no_longer_fails_a_batch(self):
        """002.01, 002.02: 92 calls; the first 50 take 17 s, the next 42 run into the deadline once: nobody fails."""
        service = Service(after(17), DEADLINE)
        outcomes = run(self.burst(service, self.SETTINGS))
        assert outcomes == [True] * 92
        assert service.sizes == [50, 42, 42]
        assert [at for at, _ in service.calls] == [0, 17, pytest.approx(47.125)]

    def test_without_retries_it_is_the_incident_again(self):
        """002.01, 002.02: with the retries of before, none, the same night fails 42 jobs."""
        service = Service(after(17), DEADLINE)
        outcomes = run(self.burst(service, SendSettings(retries=0, timeout_seconds=40)))
        assert outcomes[:50] == [True] * 50
        assert {type(outcome) for outcome in outcomes[50:]} == {GrpcError}
        assert len(outcomes[50:]) == 42

    def test_the_trace_of_after(self):
        """002.14, 002.23: 40 signals; two deadlines; 100 ms + up to 50, then 200 ms + up to 100; 40 times True."""

        async def main() -> None:
            service = Service(DEADLINE, DEADLINE)
            drawn: list[tuple[float, float]] = []

            def highest(low: float, high: float) -> float:
                drawn.append((round(low, 6), round(high, 6)))
                return high

            buffer = SendBuffer(service, self.SETTINGS, uniform=highest)
            futures = [buffer.put(index) for index in range(40)]
            await buffer.flush()
            assert [future.result() for future in futures] == [True] * 40
            assert service.sizes == [40, 40, 40]
            assert [at for at, _ in service.calls] == [0, 30.15, 60.45]
            assert drawn[:2] == [(0.1, 0.15), (0.2, 0.3)]

        run(main())

    def test_when_all_tries_are_spent_the_last_error_is_everybodys(self):
        """002.06, 002.16: 3 retries, 4 tries in all; ``Future.set_exception(last error)``."""

        async def main() -> None:
            errors = [GrpcError(code) for code in ("UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "UNAVAILABLE")]
            service = Service(*(after(0, error) for error in errors))
            buffer = SendBuffer(service, uniform=half)
            futures = [buffer.put(index) for index in range(3)]
            await buffer.flush()
            assert [future.exception() for future in futures] == [errors[-1]] * 3
            assert service.sizes == [3, 3, 3, 3]

        run(main())

    def test_buffers_that_failed_together_do_not_come_back_together(self):
        """002.24: jitter keeps concurrent buffers apart."""

        async def main() -> None:
            services = [Service(after(0, GrpcError("UNAVAILABLE"))) for _ in range(20)]
            buffers = [SendBuffer(service) for service in services]
            await asyncio.gather(*(buffer.put(1, urgent=True) for buffer in buffers))
            again = {service.calls[1][0] for service in services}
            assert len(again) > 10
            assert all(0.1 <= at <= 0.15 for at in again)

        run(main())


class TestBatches:
    def test_a_full_batch_goes_at_once(self):
        """002.09, 002.10, 002.21: at MAX_BATCH_SIZE, without waiting for the timer."""

        async def main() -> None:
            service = Service()
            buffer = SendBuffer(service, SendSettings(batch_size_max=3))
            await asyncio.gather(*(buffer.put(index) for index in range(3)))
            assert service.calls == [(0, [0, 1, 2])]

        run(main())

    def test_what_is_left_goes_when_the_interval_has_passed(self):
        """002.10, 002.22: FLUSH_INTERVAL counts from the first item, and later ones do not put it off."""

        async def main() -> None:
            service = Service()
            buffer = SendBuffer(service)
            first = buffer.put("a")
            await asyncio.sleep(0.06)
            buffer.put("b")
            await first
            assert service.calls == [(0.1, ["a", "b"])]

        run(main())

    def test_an_urgent_item_takes_along_what_waits_before_it(self):
        """002.10: a claim waits for no timer; the order is kept."""

        async def main() -> None:
            service = Service()
            buffer = SendBuffer(service)
            buffer.put("a")
            await buffer.put("claim", urgent=True)
            assert service.calls == [(0, ["a", "claim"])]

        run(main())

    def test_what_is_put_during_a_send_is_the_next_batch(self):
        """One batch at a time keeps the order; a slow send makes the next batch larger, not later."""

        async def main() -> None:
            service = Service(after(5))
            buffer = SendBuffer(service)
            buffer.put("a", urgent=True)
            await asyncio.sleep(1)
            futures = [buffer.put(letter) for letter in "bcd"]
            await asyncio.gather(*futures)
            assert service.calls == [(0, ["a"]), (5, ["b", "c", "d"])]

        run(main())

    def test_the_buffer_is_bounded(self):
        """No queue without a bound: put refuses, send waits for room."""

        async def main() -> None:
            service = Service(after(5))
            buffer = SendBuffer(service, SendSettings(batch_size_max=2), capacity=3)
            buffer.put(0, urgent=True)
            await asyncio.sleep(0)
            futures = [buffer.put(index) for index in (1, 2, 3)]
            with pytest.raises(BufferFull, match="3 items wait"):
                buffer.put(4)
            assert await buffer.send(4) is True
            assert [future.result() for future in futures[:2]] == [True, True]
            assert [item for _, items in service.calls for item in items] == [0, 1, 2, 3, 4]

        run(main())

    def test_close_sends_what_waits_and_takes_no_more(self):
        async def main() -> None:
            service = Service()
            async with SendBuffer(service) as buffer:
                future = buffer.put("last")
            assert future.result() is True
            with pytest.raises(RuntimeError, match="closed"):
                buffer.put("later")

        run(main())

    def test_when_the_flush_is_cancelled_nobody_waits_for_ever(self):
        async def main() -> None:
            buffer = SendBuffer(Service(after(1000)), SendSettings(batch_size_max=1, timeout_seconds=2000))
            sent, waiting = buffer.put(1), buffer.put(2)
            await asyncio.sleep(1)
            (flush,) = asyncio.all_tasks() - {asyncio.current_task()}
            flush.cancel()
            await asyncio.wait([sent, waiting])
            assert sent.cancelled()
            assert waiting.cancelled()
            assert len(buffer) == 0

        run(main())

    def test_a_fault_of_who_judges_the_errors_reaches_everybody_who_waits(self):
        def judge(error: Exception) -> bool:
            raise LookupError("no verdict")

        async def main() -> None:
            buffer = SendBuffer(Service(after(0, ValueError()), after(0)), retryable=judge)
            first = await asyncio.gather(buffer.put(1), buffer.put(2), return_exceptions=True)
            assert [type(outcome) for outcome in first] == [LookupError] * 2
            assert await buffer.send(3)

        run(main())

    def test_an_item_whose_sender_gave_up_does_not_hurt_its_batch(self):
        async def main() -> None:
            buffer = SendBuffer(Service(after(5)))
            gone, other = buffer.put(1), buffer.put(2)
            await asyncio.sleep(1)
            gone.cancel()
            assert await other is True

        run(main())


class TestOutcomes:
    @pytest.mark.parametrize("answer", [True, None, [True, None, True]])
    def test_success_is_true_for_each(self, answer):
        """002.12: ``set_result(True)``."""

        async def main() -> None:
            buffer = SendBuffer(Service(after(0, answer)))
            assert await asyncio.gather(*(buffer.put(index) for index in range(3))) == [True] * 3

        run(main())

    def test_a_rejection_is_not_retried(self):
        """002.13, 002.17: ``resp.success = False`` breaks the loop with a typed error."""

        async def main() -> None:
            service = Service(after(0, False))
            buffer = SendBuffer(service)
            with pytest.raises(SendRejected):
                await buffer.put(1)
            assert len(service.calls) == 1

        run(main())

    @pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED"])
    def test_permanent_codes_are_not_retried(self, code):
        """002.15, 002.17."""

        async def main() -> None:
            service = Service(after(0, GrpcError(code)))
            with pytest.raises(GrpcError, match=code):
                await SendBuffer(service).put(1)
            assert len(service.calls) == 1

        run(main())

    @pytest.mark.parametrize("code", ["DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL"])
    def test_transient_codes_are_retried(self, code):
        """002.06, 002.17."""
        assert is_transient(GrpcError(code))

    @pytest.mark.parametrize("error", [ValueError("not serializable"), TypeError("x"), StopIteration()])
    def test_an_unexpected_error_is_not_retried(self, error):
        """002.17, last row: a non-gRPC exception."""

        async def main() -> None:
            service = Service(after(0, error))
            future = SendBuffer(service).put(1)
            await asyncio.wait([future])
            assert isinstance(future.exception(), (ValueError, TypeError, RuntimeError))
            assert len(service.calls) == 1

        run(main())

    def test_one_bad_item_fails_alone(self):
        """002.11: per-item outcomes: when a batch fails for good it is sent again item by item."""

        async def send(items: Sequence[int]) -> bool:
            if 13 in items:
                raise ValueError("13 cannot be serialized")
            return True

        async def main() -> None:
            buffer = SendBuffer(send)
            outcomes = await asyncio.gather(*(buffer.put(index) for index in range(20)), return_exceptions=True)
            assert [index for index, outcome in enumerate(outcomes) if outcome is not True] == [13]
            assert isinstance(outcomes[13], ValueError)

        run(main())

    @for_each(
        "error, calls",
        [
            *((GrpcError(code), 1) for code in ("UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "UNIMPLEMENTED")),
            *((classify_http(status), 1) for status in (401, 403, 404, 405)),
            (SendRejected("the batch is refused"), 1),
            *((GrpcError(code), 21) for code in ("INVALID_ARGUMENT", "ALREADY_EXISTS", "OUT_OF_RANGE")),
            (classify_http(422), 21),
            (ValueError("one of them"), 21),
        ],
    )
    def test_a_refusal_of_the_caller_is_one_call_and_one_of_an_item_is_searched_for(self, error, calls):
        async def main() -> None:
            made = []

            async def send(items: Sequence[int]) -> bool:
                made.append(len(items))
                raise error

            async with SendBuffer(send) as buffer:
                futures = [buffer.put(index) for index in range(20)]
            assert all(future.exception() is error for future in futures)
            assert made == [20, *[1] * (calls - 1)]

        run(main())

    def test_a_credential_that_is_refused_during_the_search_ends_it(self):
        async def main() -> None:
            service = Service(after(0, GrpcError("INVALID_ARGUMENT")), after(0), after(0, GrpcError("UNAUTHENTICATED")))
            async with SendBuffer(service) as buffer:
                futures = [buffer.put(index) for index in range(20)]
            assert service.sizes == [20, 1, 1]
            assert futures[0].result() and all(future.exception() for future in futures[1:])

        run(main())

    def test_an_answer_may_speak_of_each_item(self):
        """002.11: only what failed and can heal is sent again."""

        async def main() -> None:
            service = Service(after(0, [True, False, GrpcError("UNAVAILABLE"), KeyError("x")]))
            buffer = SendBuffer(service, uniform=half)
            outcomes = await asyncio.gather(*(buffer.put(letter) for letter in "abcd"), return_exceptions=True)
            assert outcomes[0] is outcomes[2] is True
            assert isinstance(outcomes[1], SendRejected)
            assert isinstance(outcomes[3], KeyError)
            assert [items for _, items in service.calls] == [["a", "b", "c", "d"], ["c"]]

        run(main())

    @for_each("answer", [[True], [True] * 3, "yes", 200])
    def test_an_answer_that_does_not_fit_is_no_success(self, answer):
        async def main() -> None:
            buffer = SendBuffer(Service(after(0, answer)))
            outcomes = await asyncio.gather(buffer.put(1), buffer.put(2), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [SendRejected, SendRejected]

        run(main())

    def test_a_send_that_never_answers_is_a_deadline(self):
        """002.20: the timeout of one send is the buffer's own; its TimeoutError is retried."""

        async def main() -> None:
            service = Service(after(1e6))
            assert await SendBuffer(service, uniform=half).put(1, urgent=True) is True
            assert [at for at, _ in service.calls] == [0, pytest.approx(30.125)]

        run(main())

    def test_each_retry_is_logged_and_observed(self, caplog):
        """004.15: number, elapsed time and error of each retry."""
        received: list[Any] = []
        set_observer(received.append)

        async def main() -> None:
            await SendBuffer(Service(after(2, GrpcError("INTERNAL"))), uniform=half, name="signals").put(1, urgent=True)

        with caplog.at_level(logging.WARNING, logger="redrive.retry"):
            run(main())
        (told,) = received
        assert (told["function"], told["try"], told["elapsed_seconds"]) == ("signals", 1, pytest.approx(2))
        assert "signals: try 1 of 4 failed after 2.00 s: GrpcError('INTERNAL'); next in 0.12 s" in caplog.text


class TestSettings:
    def test_the_defaults_are_document_002s(self):
        """002.18 to 002.22."""
        assert SendSettings.from_environment({}) == SendSettings(3, 100, 30, 50, 0.1)

    def test_the_variables_and_their_first_names(self):
        """002.18 to 002.22: ``REDRIVE_...`` wins over the alias ``DIGITALKIN_...``; empty means not set."""
        environment = {
            "REDRIVE_SIGNAL_SEND_RETRIES": "5",
            "DIGITALKIN_SIGNAL_SEND_RETRIES": "9",
            "DIGITALKIN_SIGNAL_SEND_BACKOFF_MS": "250",
            "REDRIVE_GRPC_TIMEOUT": "60",
            "DIGITALKIN_SIGNAL_MAX_BATCH_SIZE": "10",
            "REDRIVE_SIGNAL_FLUSH_INTERVAL": "",
            "DIGITALKIN_SIGNAL_FLUSH_INTERVAL": "0.5",
        }
        assert SendSettings.from_environment(environment) == SendSettings(5, 250, 60, 10, 0.5)

    @for_each(
        "environment, words",
        [
            ({"REDRIVE_SIGNAL_SEND_RETRIES": "many"}, "REDRIVE_SIGNAL_SEND_RETRIES is a whole number of at least 0"),
            ({"DIGITALKIN_GRPC_TIMEOUT": "30s"}, "DIGITALKIN_GRPC_TIMEOUT is a finite number of at least 0"),
            ({"REDRIVE_SIGNAL_MAX_BATCH_SIZE": "0"}, "REDRIVE_SIGNAL_MAX_BATCH_SIZE is a whole number of at least 1"),
            ({"REDRIVE_SIGNAL_SEND_RETRIES": "-1"}, "RETRIES is a whole number of at least 0, not -1"),
            ({"REDRIVE_GRPC_TIMEOUT": "nan"}, "REDRIVE_GRPC_TIMEOUT is a finite number of at least 0, not nan"),
        ],
    )
    def test_a_number_that_is_none_is_named(self, environment, words):
        with pytest.raises(ValueError, match=words):
            SendSettings.from_environment(environment)


def failing(code: str, seconds: float = 0) -> tuple[list[float], Callable[[], Awaitable[None]]]:
    times: list[float] = []

    async def call() -> None:
        times.append(now())
        await asyncio.sleep(seconds)
        raise GrpcError(code)

    return times, call


class TestLayers:
    def test_the_defaults_of_the_three_layers(self):
        """002.04, 002.05, 002.06: attempts, first and last wait, codes."""
        a, b, c = channel_layer(), query_layer(), batch_layer()
        assert (a.policy.max_attempts, a.policy.base, a.policy.cap) == (5, 0.1, 10)
        assert (b.policy.max_attempts, b.policy.base, b.policy.jitter) == (3, 0.05, "none")
        assert (c.policy.max_attempts, c.policy.base, c.policy.jitter) == (4, 0.1, "add50")
        assert a.codes == CHANNEL_CODES == {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
        assert b.codes == QUERY_CODES == {"UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"}
        assert c.codes == BATCH_CODES == {"DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL"}

    def test_a_query_is_tried_three_times_50_and_100_ms_apart(self):
        """002.05."""

        async def main() -> None:
            times, call = failing("UNAVAILABLE")
            with pytest.raises(GrpcError):
                await exec_query(call)
            assert times == [0, 0.05, 0.15]

        run(main())

    @pytest.mark.parametrize("code", ["NOT_FOUND", "RESOURCE_EXHAUSTED"])
    def test_a_layer_lets_pass_what_is_not_its_own(self, code):
        """002.03: each layer catches only its codes."""

        async def main() -> None:
            times, call = failing(code)
            with pytest.raises(GrpcError):
                await exec_query(call)
            assert len(times) == 1

        run(main())

    def test_an_error_without_a_code_passes_all_layers(self):
        """002.17, last row."""
        calls = 0

        async def call() -> None:
            nonlocal calls
            calls += 1
            raise ValueError("not serializable")

        with pytest.raises(ValueError, match="not serializable"):
            run(call_through([channel_layer(), query_layer(), batch_layer()], call))
        assert calls == 1

    def test_each_layer_catches_what_the_one_inside_did_not(self):
        """002.03, 002.07: INTERNAL is none of the channel's; the query layer heals it; the caller sees a result."""

        async def main() -> None:
            errors = [GrpcError("INTERNAL"), GrpcError("INTERNAL")]

            async def call() -> str:
                if errors:
                    raise errors.pop()
                return "taken"

            assert await call_through([channel_layer(), query_layer()], call) == "taken"

        run(main())

    def test_three_layers_multiply_to_sixty_calls(self):
        """002.08: 5 x 3 x 4, without a budget."""

        async def main() -> None:
            times, call = failing("UNAVAILABLE")
            with pytest.raises(GrpcError):
                await call_through([channel_layer(None), query_layer(), batch_layer()], call)
            assert len(times) == 60

        run(main())

    def test_one_budget_counts_the_calls_of_all_layers(self):
        """002.08: the inner layers report to one counter."""

        async def main() -> None:
            times, call = failing("UNAVAILABLE")
            budget = Budget(calls=7, now=asyncio.get_running_loop().time)
            with pytest.raises(GrpcError):
                await call_through([channel_layer(None), query_layer(), batch_layer()], call, budget)
            assert len(times) == budget.calls_made == 7

        run(main())

    def test_a_batch_alone_takes_two_minutes_and_the_clamp_ends_it(self):
        """002.08: four calls of 30 s are over 120 s at layer C alone; one elapsed clamp over all layers ends that."""

        async def main() -> None:
            times, call = failing("DEADLINE_EXCEEDED", seconds=30)
            with pytest.raises(GrpcError):
                await call_through([batch_layer()], call)
            assert len(times) == 4
            assert 120.7 <= now() <= 121.05
            started = now()
            budget = Budget(elapsed_seconds=60, now=asyncio.get_running_loop().time)
            with pytest.raises(TimeoutError):
                await call_through([channel_layer(None), query_layer(), batch_layer()], call, budget)
            assert now() - started == pytest.approx(60)

        run(main())

    def test_no_wait_is_begun_that_the_clamp_would_cut(self):
        async def main() -> None:
            times, call = failing("UNAVAILABLE", seconds=1)
            budget = Budget(elapsed_seconds=1.12, now=asyncio.get_running_loop().time)
            slow = Layer("slow", batch_layer().policy, BATCH_CODES, uniform=half)
            with pytest.raises(GrpcError):
                await call_through([slow], call, budget)
            assert (times, now()) == ([0], 1)

        run(main())

    def test_the_channels_own_deadline_covers_all_of_its_attempts(self):
        """Part 5, 002: layer A lists DEADLINE_EXCEEDED but cannot retry its own deadline; only B and C can."""

        async def main() -> None:
            times: list[float] = []

            async def stuck() -> None:
                times.append(now())
                await asyncio.sleep(1e6)

            with pytest.raises(TimeoutError):
                await call_through([channel_layer(30)], stuck)
            assert times == [0]
            times.clear()
            with pytest.raises(TimeoutError):
                await call_through([channel_layer(30), query_layer()], stuck)
            assert len(times) == 3

        run(main())

    def test_the_outermost_budget_stays_in_force(self):
        """002.08: a layer that brings a budget of its own cannot spend more than was promised outside."""

        async def main() -> None:
            times, call = failing("UNAVAILABLE")
            clock = asyncio.get_running_loop().time
            with budgeted(Budget(calls=2, now=clock)), pytest.raises(GrpcError):
                await call_through([channel_layer(None)], call, Budget(calls=100, now=clock))
            assert len(times) == 2

        run(main())

    def test_layers_inside_a_send_share_the_budget_of_the_batch(self):
        """002.08: buffer, query and channel end together, and every future has an outcome."""

        async def main() -> None:
            times, call = failing("DEADLINE_EXCEEDED", seconds=10)

            async def send(items: Sequence[int]) -> None:
                await call_through([channel_layer(None), query_layer()], call)

            settings = SendSettings(elapsed_seconds_max=45)
            outcomes = await asyncio.gather(
                *(SendBuffer(send, settings).put(index, urgent=True) for index in range(2)), return_exceptions=True
            )
            assert all(isinstance(outcome, (GrpcError, TimeoutError)) for outcome in outcomes)
            assert now() <= 45.001
            assert len(times) <= 2 * 5

        run(main())

    def test_a_batch_does_not_spend_the_budget_of_whoever_filled_it(self):
        async def main() -> None:
            service = Service(after(0, GrpcError("UNAVAILABLE")))
            buffer = SendBuffer(service)
            with budgeted(Budget(calls=0, now=asyncio.get_running_loop().time)):
                assert await buffer.put(1) is True
            assert len(service.calls) == 2

        run(main())

    def test_a_real_channel_gets_the_same(self):
        """002.04, 002.25: the service config that gRPC reads; grpc itself is not needed to write it."""
        options = dict(ClientConfig().channel_options())
        assert options["grpc.enable_retries"] == 1
        assert json.loads(str(options["grpc.service_config"]))["methodConfig"][0]["retryPolicy"] == {
            "maxAttempts": 5,
            "initialBackoff": "0.1s",
            "maxBackoff": "10s",
            "backoffMultiplier": 2.0,
            "retryableStatusCodes": ["DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"],
        }
