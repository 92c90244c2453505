// Two ways to use freshq from the CDK: the whole stack by its packaged template, or a queue by its table alone.
//
//   sam build && sam package --resolve-s3 --output-template-file examples/cdk/packaged.yaml
//   cd examples/cdk && npm ci
//   npx aws-cdk deploy FreshqStack    # or FreshqQueue
const { App, CfnOutput, CfnStack, RemovalPolicy, Stack } = require("aws-cdk-lib");
const dynamodb = require("aws-cdk-lib/aws-dynamodb");
const { Asset } = require("aws-cdk-lib/aws-s3-assets");
const path = require("node:path");

const { AttributeType, ProjectionType } = dynamodb;
const app = new App();

// The stack: its functions, topics, alarms and table. The parameters are those of `sam deploy`.
const stack = new Stack(app, "FreshqStack");
const template = new Asset(stack, "Template", {
  path: process.env.FRESHQ_TEMPLATE ?? path.join(__dirname, "packaged.yaml"),
});
const freshq = new CfnStack(stack, "Freshq", {
  templateUrl: template.httpUrl,
  parameters: { Stage: "dev" },
});
new CfnOutput(stack, "Table", { value: freshq.getAtt("Outputs.QueueTableName").toString() });

// A queue: `freshq work --queue dynamodb://NAME` runs its tasks, and programs put with the same address.
const queue = new Stack(app, "FreshqQueue");
const table = new dynamodb.Table(queue, "Tasks", {
  partitionKey: { name: "taskId", type: AttributeType.STRING },
  billingMode: dynamodb.BillingMode.PAY_PER_REQUEST,
  encryption: dynamodb.TableEncryption.AWS_MANAGED,
  stream: dynamodb.StreamViewType.NEW_AND_OLD_IMAGES,
  timeToLiveAttribute: "ttl",
  removalPolicy: RemovalPolicy.RETAIN,
});
table.addGlobalSecondaryIndex({
  indexName: "status-created-index",
  partitionKey: { name: "pendingShard", type: AttributeType.STRING },
  sortKey: { name: "taskCreated", type: AttributeType.NUMBER },
  projectionType: ProjectionType.INCLUDE,
  nonKeyAttributes: ["deadline"],
});
table.addGlobalSecondaryIndex({
  indexName: "due-index",
  partitionKey: { name: "dueShard", type: AttributeType.STRING },
  sortKey: { name: "dueAt", type: AttributeType.NUMBER },
  projectionType: ProjectionType.KEYS_ONLY,
});
new CfnOutput(queue, "Address", { value: `dynamodb://${table.tableName}` });

app.synth();
