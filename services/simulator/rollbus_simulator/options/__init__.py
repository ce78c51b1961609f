"""Sources of reset options, one file each: what every episode begins with. docs/environments.md."""
