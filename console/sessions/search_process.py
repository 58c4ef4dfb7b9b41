"""The process that searches stored output for a local session: a search would hold the interpreter of the console.

Reads requests as JSON lines and answers each with one line, ``[id, value]`` or ``[id, null, error]``, until its input
ends.
"""

from __future__ import annotations

import json
import sys

from ...engine.errors import RedriveError
from ...engine.statefile.reader import read
from ...engine.store import database


def main(path: str) -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        number, name, options = json.loads(line)
        try:
            with database.reading(path) as connection:
                answer = [number, read(connection, name, options)]
        except RedriveError as error:
            answer = [number, None, str(error)]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
