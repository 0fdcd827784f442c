"""The lab: data, models, runs and studies that put the methods to the test."""
