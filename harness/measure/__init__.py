"""Measures from a run folder what each fault cost, which role it hit, the errors logged, and the gaps of clients."""
