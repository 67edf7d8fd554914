"""Measures, from a run folder: what each fault cost, whom it hit, errors logged, gaps of clients."""
