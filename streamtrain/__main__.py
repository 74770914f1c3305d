"""`python -m streamtrain` is `streamtrain`."""

from streamtrain.cli.cli import main

main()
