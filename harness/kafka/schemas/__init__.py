"""Schemas of requests that kafka-python does not know: Kafka's own, without the texts for people.

They are in the jar kafka-clients of each build, in ``common/message``; kafka-python makes classes of such files.
"""
