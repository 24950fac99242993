"""``python -m langgraph_resilient`` is the command ``langgraph-resilient``."""

from langgraph_resilient.cli import main

if __name__ == "__main__":
    main()
