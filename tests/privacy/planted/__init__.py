"""How each bug is planted in the real code: context managers that undo it."""
