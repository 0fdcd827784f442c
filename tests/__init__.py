"""Facts about vasso; how they are sorted is in STYLE.md, rule 9."""
