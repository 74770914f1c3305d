"""`python -m streamtrain` is `streamtrain`."""

from streamtrain.cli import main

main()
