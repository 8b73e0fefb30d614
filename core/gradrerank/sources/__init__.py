"""Named sources become one pool of candidates, and the sources worth reading are chosen.

In the order of the method: :mod:`~gradrerank.sources.pool` reads the sources and merges
duplicates, :mod:`~gradrerank.sources.embedding` turns texts into vectors, and
:mod:`~gradrerank.sources.combination` chooses the combination of sources.
"""
