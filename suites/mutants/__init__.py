"""Mutants: builds of Kafka with one defect each, which show how many defects the suites catch."""
