"""Writes README.md: page.md with the tables of the study normalisation.

    vasso study normalisation --store runs --jobs 2
    vasso export runs records --study normalisation
    python records/normalisation/page.py

The first command trains every setting with all seeds; the record has the others for one seed alone.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `records`

from records.chosen_settings import ACCURACY, TWICE, write

HERE = Path(__file__).parent


def main() -> None:
    write(HERE, __doc__, ACCURACY, ("SGD", f"SGD {TWICE}", "SAM"), "batches of 128")


if __name__ == "__main__":
    main()
