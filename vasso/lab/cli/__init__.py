"""The command `vasso`: one module for each subcommand, and what they share."""
