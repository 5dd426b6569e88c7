def handler(event, context):
    return __name__
