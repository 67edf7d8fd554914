"""The stored history: its tables, the format of a record, a record's outcome, and the write-ahead."""
