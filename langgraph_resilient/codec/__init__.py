"""Objects to frames of bytes and back. Knows no SQL.

`types` takes objects apart, `msgpack` walks and packs them, `frame` compresses and seals the
bytes, `digest` names them by content.
"""
