"""Performance of the saver as ratios against its rivals, measured in one run on one machine."""
