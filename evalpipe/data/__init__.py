"""From files to Examples: `open_dataset(config)`.

Left to right: files.py (or hub.py) finds the data, readers.py turns it into rows, columns.py says which column is
what, spool.py writes them once to a scratch file, order.py chooses and shuffles, dataset.py hands out Examples.
Nothing here keeps more than one block of rows in memory; the scratch file is memory-mapped.
"""

from evalpipe.data.dataset import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]
