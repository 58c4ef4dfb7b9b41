"""What two attempts of a task may not have had in common: columns of the attempt, and what people call them.

"What would change between attempt one and two?" (document 004). Where nothing did and the failure is the same, another
try is no try; where something did, it is the first one under these circumstances.
"""

from __future__ import annotations

from collections.abc import Mapping

ENVIRONMENT_FIELDS: Mapping[str, str] = {
    "code_hash": "code",
    "input_hash": "input",
    "params_hash": "parameters",
    "image_hash": "image",
    "host": "host",
}
