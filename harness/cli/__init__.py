"""The commands of ``jbod`` and what they print; :mod:`harness.cli.main` puts them together."""
