"""``python -m moesaic``: the command that the package carries."""

import os
import sys

from ._engine import command


def main() -> None:
    program = command()
    if not program.exists():
        sys.exit(f"{program} is not there: this package was built without the command")
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
