"""The handler's second argument, with the names that AWS documents."""

import os
import time


class LambdaContext:
    def __init__(self, headers, client_context, cognito_identity):
        environment = os.environ.get
        self.aws_request_id = headers.get("lambda-runtime-aws-request-id")
        self.invoked_function_arn = headers.get("lambda-runtime-invoked-function-arn")
        self.tenant_id = headers.get("lambda-runtime-aws-tenant-id")
        self.function_name = environment("AWS_LAMBDA_FUNCTION_NAME")
        self.function_version = environment("AWS_LAMBDA_FUNCTION_VERSION")
        self.memory_limit_in_mb = environment("AWS_LAMBDA_FUNCTION_MEMORY_SIZE")
        self.log_group_name = environment("AWS_LAMBDA_LOG_GROUP_NAME")
        self.log_stream_name = environment("AWS_LAMBDA_LOG_STREAM_NAME")
        self.client_context = None if client_context is None else ClientContext(client_context)
        self.identity = CognitoIdentity(cognito_identity or {})
        self._deadline_ms = int(headers.get("lambda-runtime-deadline-ms") or 0)

    def get_remaining_time_in_millis(self):
        return max(0, self._deadline_ms - int(time.time() * 1000))

    def log(self, message):
        import sys

        sys.stdout.write(str(message))

    def __repr__(self):
        return _shown(self, [name for name in vars(self) if not name.startswith("_")])


class CognitoIdentity:
    __slots__ = ("cognito_identity_id", "cognito_identity_pool_id")

    def __init__(self, given):
        self.cognito_identity_id = given.get("cognitoIdentityId")
        self.cognito_identity_pool_id = given.get("cognitoIdentityPoolId")

    def __repr__(self):
        return _shown(self, self.__slots__)


class Client:
    __slots__ = ("app_package_name", "app_title", "app_version_code", "app_version_name", "installation_id")

    def __init__(self, given):
        for name in self.__slots__:
            setattr(self, name, given.get(name))

    def __repr__(self):
        return _shown(self, self.__slots__)


class ClientContext:
    __slots__ = ("client", "custom", "env")

    def __init__(self, given):
        self.custom = given.get("custom")
        self.env = given.get("env")
        client = given.get("client")
        self.client = None if client is None else Client(client)

    def __repr__(self):
        return _shown(self, self.__slots__)


def _shown(thing, names):
    return "%s([%s])" % (type(thing).__name__, ",".join("%s=%s" % (name, getattr(thing, name)) for name in names))
