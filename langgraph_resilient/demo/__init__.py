"""The package's main job, shown: an agent dies by SIGKILL and ends as if nothing had happened.

``runner`` plays the small agent of ``agent`` (five model calls, three tool calls, a real e-mail
to the sink of ``smtp``); ``conversation`` replays recorded conversations. Both start real child
processes on a real SQLite file and count the calls from outside. Nothing is imported here, so
that a child process loads only what its own job needs.
"""
