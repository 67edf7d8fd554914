"""The Spark session of a run, and the tasks in it that the driver talks to."""
