"""Write a published model for other programs: `privfed export RUN --to model.safetensors`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from privfed.commands.parsing import Parser, add_simulation, guarded
from privfed.models.export import FORMATS, export
from privfed.models.published_model import read_published


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a model; return the exit code."""
    parser = Parser(
        prog="privfed export",
        description="Write a published model for other programs, without heads.",
    )
    parser.hint = "see --help"
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "--to",
        required=True,
        type=Path,
        metavar="FILE",
        help=f"a name that ends in {', '.join(FORMATS)}",
    )
    add_simulation(parser, "write the model of a simulation on a real table, labelled as such")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)

    def work() -> None:
        published = read_published(options.run)
        export(published, options.to, options.simulation)
        shapes = ", ".join(f"{name} {array.shape}" for name, array in published.arrays.items())
        count = len(published.arrays)
        print(f"written to {options.to}: {shapes if count <= 9 else f'{count} arrays'}")

    return guarded(work, "interrupted; nothing is half written")
