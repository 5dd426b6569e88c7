#include "daemon/told_by_daemon.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "base/cause_in_words.h"
#include "base/error_cause.h"

namespace rekindle::daemon {
namespace {

struct Carried {
  const char* payload;
  const char* metadata;
};
constexpr Carried kCarried[] = {{kErrnoPayload, "rekindle-errno"}, {kCausePayload, "rekindle-cause"}};

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
