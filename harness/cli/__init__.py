"""The commands of ``jbod`` and their output; :mod:`harness.cli.main` registers them."""
