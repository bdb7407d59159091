"""The command-line programs: parse arguments, call a use case, print the result."""
