"""Worker processes, here or on a Dask cluster, and the functions that they run."""
