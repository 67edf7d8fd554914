"""Producer, live consumer and independent readers, all in Spark tasks."""
