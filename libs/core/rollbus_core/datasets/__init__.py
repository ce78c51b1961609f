"""LeRobot datasets v3 on disk: written by `rollbus collect`, read into tables by a source."""
