"""Judges a history that is too large for one task: most of it is shown to be clean, and only the rest is judged.

It does not use SQL, which is slower, and would need a second definition of each kind of anomaly. On 2 x 10^7 records
this judge found all kinds in 17.4 s; DuckDB took 19.8 s for three of the kinds. Spark would shuffle every row, for a
join or a sort. Before replacing this code, measure both with a history of :mod:`harness.bench.histories`.

The modules, in the order in which they work:

* :mod:`.fingerprints`: sums over the rows of a window that show whether two streams have the same rows there
* :mod:`.seen_seqs`: one bit for each record that was sent, which shows records with two rows and missing rows
* :mod:`.summarise`: what a task keeps of its part of the history
* :mod:`.clean_windows`: the windows in which nothing can be found, and why that is so
* :mod:`.select`: the whole search, which returns the rows of all other windows
"""
