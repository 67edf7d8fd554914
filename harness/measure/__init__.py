"""Measures from a run folder what each fault cost, whom it hit, the errors logged, and the gaps of clients."""
