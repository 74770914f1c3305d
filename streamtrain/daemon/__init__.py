"""The daemon's composition: the one place where the stages meet."""
