"""From a stored answer to a verdict, and from verdicts to numbers with an interval. Pure: no I/O, no clock."""
