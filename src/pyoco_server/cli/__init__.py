"""The commands. They read arguments, call what does the work, and say what happened."""
