"""The judge: a history goes in, anomalies come out."""
