"""What `semlabel init` lays out besides the code location: settings, sample tables, a README. Data only, no code."""
