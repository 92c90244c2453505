"""Code that only the Lambda functions use."""
