"""The frame of a result that is written without an encoder is the one that the encoder writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from redrive.engine.core.result_codec import dump_result
from redrive.engine.runner import direct_call, protocol
from redrive.engine.runner.child import FlowFacts

LIMIT = 10**18
FACTS = cast(FlowFacts, SimpleNamespace())
START = cast(protocol.Start, SimpleNamespace(function="t"))


@pytest.mark.parametrize("value", [0, 7, -7, 10, LIMIT - 1, 1 - LIMIT, LIMIT, -LIMIT, 2**100, True, 1.5, "7"])
def test_a_frame_is_that_of_the_encoder(value: object) -> None:
    expected = protocol.encode(protocol.Succeeded(dump_result(value)))
    assert direct_call.frame_of_value(value, START, FACTS) == expected
