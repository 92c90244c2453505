"""What only the Lambda functions use."""
