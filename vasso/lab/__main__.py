"""`python -m vasso.lab` is the command `vasso`."""

from vasso.lab.cli import main

if __name__ == "__main__":
    main()
