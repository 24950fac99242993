"""Where the product plugs into LangChain and LangGraph."""
