"""The environment of an attempt: columns that may differ between two attempts of a task, and their names in sentences.

A failure that repeats in the same environment will repeat again; in another one it counts as the first.
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
