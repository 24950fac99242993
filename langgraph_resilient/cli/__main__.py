"""``python -m langgraph_resilient.cli``: the same as the command ``langgraph-resilient``."""

from langgraph_resilient.cli import main

if __name__ == "__main__":
    main()
