"""Starting the agent that goes on, with the history it is given."""
