// Whether a call's status comes from a daemon, or from gRPC because none was reached (UNAVAILABLE is both),
// and what an error was made of (base/error_cause.h).
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"

namespace rekindle::daemon {

// In the metadata that follow the answer to every call that a daemon has taken. Older daemons do not tell, or
// tell no causes.
inline constexpr char kToldByDaemonMetadata[] = "rekindle-told-by-daemon";
inline constexpr char kTellsCauses[] = "causes";

// How an UNAVAILABLE of a daemon that ends itself begins; what became of the call follows.
inline constexpr char kRekindledEnds[] = "rekindled ends: ";

// To be asked once the call has ended.
inline bool ToldByDaemon(const grpc::ClientContext& ended) {
  return ended.GetServerTrailingMetadata().contains(kToldByDaemonMetadata);
}

// Sends what `status` was made of behind the answer.
void TellCause(const absl::Status& status, grpc::ServerContext* context);

// `status`, with which the call has ended, as it was where it was made.
absl::Status WithToldCause(const grpc::ClientContext& ended, absl::Status status);

}  // namespace rekindle::daemon
