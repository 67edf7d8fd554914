"""The commands of ``jbod``, by what they are for; :mod:`harness.cli` puts them together."""
