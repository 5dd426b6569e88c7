// Text in protobuf messages. A `string` field holds UTF-8: a reader refuses the whole message otherwise. But
// paths are bytes, and messages of errors quote them.
#pragma once

#include <optional>
#include <string>

namespace google::protobuf {
class Message;
}

namespace rekindle {

// Are all its `string` fields UTF-8, and those of the messages in it?
bool IsText(const google::protobuf::Message& message);
// One that is not, or a key of a map that is not; nothing: all are. Thread-safe, as the others.
std::optional<std::string> FindWhatIsNoText(const google::protobuf::Message& message);
// Makes them so: what is none becomes '?'.
void MakeText(google::protobuf::Message* message);

}  // namespace rekindle
