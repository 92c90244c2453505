# A queue by its table alone: `freshq work --queue dynamodb://NAME` runs its tasks, and programs put with the same
# address. docs/iam.md has the policies of producers and workers.

resource "aws_dynamodb_table" "tasks" {
  name         = "tasks"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "taskId"

  attribute {
    name = "taskId"
    type = "S"
  }
  attribute {
    name = "pendingShard"
    type = "S"
  }
  attribute {
    name = "taskCreated"
    type = "N"
  }
  attribute {
    name = "dueShard"
    type = "S"
  }
  attribute {
    name = "dueAt"
    type = "N"
  }

  global_secondary_index {
    name               = "status-created-index"
    hash_key           = "pendingShard"
    range_key          = "taskCreated"
    projection_type    = "INCLUDE"
    non_key_attributes = ["deadline"]
  }
  global_secondary_index {
    name            = "due-index"
    hash_key        = "dueShard"
    range_key       = "dueAt"
    projection_type = "KEYS_ONLY"
  }

  stream_enabled   = true
  stream_view_type = "NEW_AND_OLD_IMAGES"

  ttl {
    attribute_name = "ttl"
    enabled        = true
  }
  server_side_encryption {
    enabled = true
  }
  point_in_time_recovery {
    enabled = true
  }
  lifecycle {
    prevent_destroy = true
  }
}

output "address" {
  value = "dynamodb://${aws_dynamodb_table.tasks.name}"
}
