#include "daemon/told_by_daemon.h"

#include <cerrno>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_cause.h"

namespace rekindle::daemon {
namespace {

struct Carried {
  const char* payload;
  const char* metadata;
};
constexpr Carried kCarried[] = {{kErrnoPayload, "rekindle-errno"}, {kCausePayload, "rekindle-cause"}};

// Of a daemon that only has its message to tell it.
absl::Status WithCauseInWords(absl::Status status) {
  const absl::string_view message = status.message();
  if (!absl::IsNotFound(status)) return status;
  if (absl::StartsWith(message, "there is no store at ")) {
    return WithCause(std::move(status), absl::StrContains(message, "the folder is empty")  ? kCauseEmptyFolder
                                        : absl::StrContains(message, "nothing is mounted") ? kCauseNotMounted
                                                                                           : kCauseNoStore);
  }
  if (absl::EndsWith(message, ": No such file or directory"))
    status.SetPayload(kErrnoPayload, absl::Cord(absl::StrCat(ENOENT)));
  return status;
}

}  // namespace

void TellCause(const absl::Status& status, grpc::ServerContext* context) {
  for (const Carried& carried : kCarried) {
    if (const auto payload = status.GetPayload(carried.payload))
      context->AddTrailingMetadata(carried.metadata, std::string(*payload));
  }
}

absl::Status WithToldCause(const grpc::ClientContext& ended, absl::Status status) {
  const auto& metadata = ended.GetServerTrailingMetadata();
  const auto told = metadata.find(kToldByDaemonMetadata);
  if (told == metadata.end() || told->second != kTellsCauses) return WithCauseInWords(std::move(status));
  for (const Carried& carried : kCarried) {
    const auto value = metadata.find(carried.metadata);
    if (value != metadata.end())
      status.SetPayload(carried.payload,
                        absl::Cord(absl::string_view(value->second.data(), value->second.size())));
  }
  return status;
}

}  // namespace rekindle::daemon
