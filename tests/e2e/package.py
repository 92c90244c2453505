"""The application as `sam deploy` uploads it, to deploy it again without SAM.

SAM takes six seconds of processor time for each deployment; CloudFormation alone takes half a second.
"""

import io
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import boto3
from local.emulator import REGION, Connection, complete

# CloudFormation takes larger templates than 51,200 bytes only from a bucket.
TEMPLATE = "deployed.template"
WAITING: Final[Any] = {"Delay": 1, "MaxAttempts": 120}


@dataclass(frozen=True)
class Package:
    """A template, and the bucket with the code that it names."""

    template: str
    bucket: str
    objects: Mapping[str, bytes]

    @classmethod
    def uploaded(cls, stack: str, connection: Connection) -> Self:
        """Return the package of a stack that `sam deploy` made."""
        cloudformation = boto3.client("cloudformation", **connection)
        template = cloudformation.get_template(StackName=stack, TemplateStage="Original")["TemplateBody"]
        s3 = boto3.client("s3", **connection)
        (bucket,) = [entry["Name"] for entry in s3.list_buckets()["Buckets"] if "sam-cli" in entry["Name"]]
        keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]]
        objects = {key: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
        return cls(str(template), bucket, objects)

    def upload(self, connection: Connection) -> None:
        """Upload the code and the template to another emulator."""
        s3 = boto3.client("s3", **connection)
        region = connection["region_name"]
        where: Any = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != REGION else {}
        s3.create_bucket(Bucket=self.bucket, **where)
        for key, content in self.objects.items():
            s3.put_object(Bucket=self.bucket, Key=key, Body=content)
        self.add_template(connection)

    def elsewhere(self) -> Self:
        """Return the package for another region or account, in a bucket of another name."""
        bucket = f"sam-cli-{uuid.uuid4().hex}"
        return replace(self, bucket=bucket, template=self.template.replace(self.bucket, bucket))

    def add_template(self, connection: Connection) -> None:
        """Add the template to an emulator that has the code."""
        s3 = boto3.client("s3", **connection)
        s3.put_object(Bucket=self.bucket, Key=TEMPLATE, Body=self.template.encode())

    def deploy(self, stack: str, values: Mapping[str, str], connection: Connection) -> dict[str, str]:
        """Make a stack with the values of some of its parameters; return its outputs."""
        client = boto3.client("cloudformation", **connection)
        client.create_stack(**self._request(stack, values))
        client.get_waiter("stack_create_complete").wait(StackName=stack, WaiterConfig=WAITING)
        return complete(stack, connection)

    def update(self, stack: str, values: Mapping[str, str], connection: Connection) -> None:
        """Update a stack with these parameters, and defaults for all others.

        Raises:
            botocore.exceptions.WaiterError: If the update was rolled back.
        """
        client = boto3.client("cloudformation", **connection)
        client.update_stack(**self._request(stack, values))
        client.get_waiter("stack_update_complete").wait(StackName=stack, WaiterConfig=WAITING)

    def with_file(self, beside: str, name: str, text: str) -> Self:
        """Return the package with another file in the code of a function.

        Args:
            beside: Text that the function's `app.py` has, and no other.
            name: Name of the file.
            text: Its content.
        """

        def extended(content: bytes) -> bytes:
            if not zipfile.is_zipfile(buffer := io.BytesIO(content)):
                return content
            with zipfile.ZipFile(buffer, "a") as archive:
                if "app.py" in archive.namelist() and beside in archive.read("app.py").decode():
                    archive.writestr(name, text)
            return buffer.getvalue()

        return replace(self, objects={key: extended(content) for key, content in self.objects.items()})

    def _request(self, stack: str, values: Mapping[str, str]) -> Any:
        return {
            "StackName": stack,
            "TemplateURL": f"https://s3.amazonaws.com/{self.bucket}/{TEMPLATE}",
            "Parameters": [{"ParameterKey": name, "ParameterValue": value} for name, value in values.items()],
            "Capabilities": ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"],
        }
