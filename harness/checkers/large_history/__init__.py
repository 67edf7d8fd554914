"""Selects the few records of a large history that the judge must look at one by one."""
