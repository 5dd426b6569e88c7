// What no request may have, whatever it asks for.
#pragma once

#include "absl/status/status.h"

namespace google::protobuf {
class Message;
}

namespace rekindle::daemon {

// InvalidArgument, naming the field, where a request or a message in it has
//  - a field that this version does not know: it may say that nothing is to be done, or to be kept. Clients
//    leave out what is at its default, so older daemons do all that they know for newer clients;
//  - a value of an enum that this version does not know: a later one means something by it, and what this
//    one would do instead could be the opposite;
//  - a number that is not finite: it passes many a comparison;
//  - a negative time (a number whose field ends in _seconds or _ns): it would be taken for the default;
//  - a NUL byte in a text, or in bytes that the kernel takes as such (paths, arguments, variables): it would
//    be cut off there.
absl::Status CheckRequest(const google::protobuf::Message& request);

}  // namespace rekindle::daemon
