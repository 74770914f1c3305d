"""The command line: what each command takes and prints."""
