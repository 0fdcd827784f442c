"""`torchrun -m vasso.lab.cli` is the command `vasso`."""

from vasso.lab.cli.main import main

if __name__ == "__main__":
    main()
