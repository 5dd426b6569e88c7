// What --json prints: a message of the API as one line of JSON, with the field names of rekindle.proto. All
// functions are thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/exit_code.h"

namespace google::protobuf {
class Message;
}

namespace rekindle::cli {

// Every field is there, also those with default values; numbers are numbers, enumerations their lower-case
// names, absent sub-messages null. Text that is not UTF-8 has U+FFFD in its place. No newline at the end.
std::string ToJson(const google::protobuf::Message& message);

// {"error":{"code":"NOT_FOUND","message":"…","exit_code":3}}
std::string ErrorToJson(const absl::Status& status, ExitCode code);

}  // namespace rekindle::cli
