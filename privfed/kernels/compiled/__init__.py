"""Drop-ins for the NumPy functions of `privfed.kernels`, compiled by Numba.

A module here is imported only once its `privfed.foundation.compilation.DropIn` was chosen.
Importing it imports Numba. Its function `prepare` compiles what the module is used for.
"""
