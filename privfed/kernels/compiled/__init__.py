"""Drop-ins for the NumPy functions of `privfed.kernels`, compiled by Numba.

A module here is imported only once its `privfed.foundation.compilation.DropIn` was chosen.
Importing it imports Numba. The function `prepare_name` of a module `name` compiles
what the module is used for.
"""
