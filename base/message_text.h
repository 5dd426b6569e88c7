// Text in protobuf messages. A `string` field holds UTF-8: a reader refuses the whole message otherwise. But
// paths are bytes, and messages of errors quote them.
#pragma once

namespace google::protobuf {
class Message;
}

namespace rekindle {

// Are all its `string` fields UTF-8, and those of the messages in it?
bool IsText(const google::protobuf::Message& message);
// Makes them so: what is none becomes '?'.
void MakeText(google::protobuf::Message* message);

}  // namespace rekindle
