"""Report of a store: statistics, tables, JSON and a page, made from its files alone."""
