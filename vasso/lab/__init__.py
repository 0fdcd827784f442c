"""The lab: data sets, models, training runs and studies that compare the methods."""
