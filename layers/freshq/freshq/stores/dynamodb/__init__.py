"""The store on DynamoDB tables. Its root loads nothing: two of the functions use only some of its modules."""
