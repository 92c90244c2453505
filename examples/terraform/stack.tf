# The whole stack by its template: its functions, topics, alarms and table. First package it:
#
#   sam build && sam package --resolve-s3 --output-template-file examples/terraform/packaged.yaml

variable "bucket" {
  type        = string
  description = "A bucket for the packaged template, which is too long to be sent in a request."
}

resource "aws_s3_object" "template" {
  bucket = var.bucket
  key    = "freshq/${filemd5("${path.module}/packaged.yaml")}.yaml"
  source = "${path.module}/packaged.yaml"
}

resource "aws_cloudformation_stack" "freshq" {
  name         = "freshq"
  template_url = "https://${aws_s3_object.template.bucket}.s3.amazonaws.com/${aws_s3_object.template.key}"
  capabilities = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
  parameters   = { Stage = "dev" }
}

output "table" {
  value = aws_cloudformation_stack.freshq.outputs["QueueTableName"]
}
