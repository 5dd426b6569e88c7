// What goes to a function and what comes back from it, as AWS Lambda has it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace rekindle::functions {

// Lambda's own limits, in bytes.
inline constexpr size_t kLargestPayload = 6 << 20;
inline constexpr size_t kLargestAsyncPayload = 256 << 10;
inline constexpr size_t kLargestClientContext = 2687;  // 3583 of its base64
inline constexpr size_t kLargestAnswer = 6'291'556;

struct Invocation {
  std::string request_id;                      // a UUID's text
  std::shared_ptr<const std::string> payload;  // not null
  std::string content_type = "application/json";
  absl::Time deadline;  // told to the function; who invokes watches it
  std::string function_arn;
  std::string trace_id;          // X-Ray's; empty: none
  std::string client_context;    // JSON; empty: none
  std::string cognito_identity;  // JSON; empty: none
  // Whoever sets it first has the invocation: the RuntimeApi, before it gives it to the runtime, or who
  // invokes, who takes it back. Null: it is not taken back.
  std::shared_ptr<std::atomic<bool>> taken;
};

// What a function answered. When it `failed`, `body` is the error's JSON ({"errorMessage", "errorType", …})
// as the runtime made it.
struct Answer {
  std::string body;
  std::string content_type;
  bool failed = false;
  std::string error_type;  // when it failed; empty where the runtime did not say
};

}  // namespace rekindle::functions
