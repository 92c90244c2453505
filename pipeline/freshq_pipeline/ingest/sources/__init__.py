"""Records of one format to canonical events: one module per format, all DataFrame -> DataFrame."""
