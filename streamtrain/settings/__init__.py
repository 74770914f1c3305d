"""From a settings file, the environment and secrets to `config.Settings`, with the place of every mistake."""
