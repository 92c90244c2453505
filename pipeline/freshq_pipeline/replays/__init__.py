"""The recorded load under other policies and capacities, queue by queue."""
