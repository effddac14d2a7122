"""The commands, one file each: `privfed COMMAND`."""
