"""A LangGraph checkpointer that makes agents survive anything."""
