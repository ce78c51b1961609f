"""Sources fill tables with data from disk, as actors do with what they collect."""
