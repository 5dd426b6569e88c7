#include "base/status_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/cause_in_words.h"
#include "base/error_cause.h"
#include "base/status.h"

namespace rekindle {
namespace {

// There with every error of a program that tells what its errors were made of: 0 where that was none.
constexpr char kErrnoKey[] = "errno";
constexpr char kCauseKey[] = "cause";

}  // namespace

void PutStatus(const absl::Status& status, nlohmann::json* json, const char* message) {
  (*json)["code"] = static_cast<int>(status.code());
  (*json)[message] = std::string(status.message());
  if (status.ok()) return;
  (*json)[kErrnoKey] = ErrnoOf(status);
  if (const std::string cause = CauseOf(status); !cause.empty()) (*json)[kCauseKey] = cause;
}

absl::Status StatusOf(const nlohmann::json& json, const char* message) {
  const auto code =
      static_cast<absl::StatusCode>(json.value("code", static_cast<int>(absl::StatusCode::kInternal)));
  absl::Status status(code, json.at(message).get<std::string>());
  if (status.ok()) return status;
  if (!json.contains(kErrnoKey)) return WithCauseInWords(std::move(status));
  return WithErrno(WithCause(std::move(status), json.value(kCauseKey, "")), json.at(kErrnoKey));
}

}  // namespace rekindle
