"""The paper's experiments on your data, with the published figures beside them: ``python -m reproduction``.

Everything is computed with the public names of ``diptych``.
"""
