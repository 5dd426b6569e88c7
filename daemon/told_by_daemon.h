// Whether a call's status comes from a daemon, or from gRPC because none was reached: UNAVAILABLE is both.
#pragma once

#include <grpcpp/grpcpp.h>

namespace rekindle::daemon {

// In the metadata that follow the answer to every call that a daemon has taken. Older daemons do not tell.
inline constexpr char kToldByDaemonMetadata[] = "rekindle-told-by-daemon";

// How an UNAVAILABLE of a daemon that ends itself begins; what became of the call follows.
inline constexpr char kRekindledEnds[] = "rekindled ends: ";

// To be asked once the call has ended.
inline bool ToldByDaemon(const grpc::ClientContext& ended) {
  return ended.GetServerTrailingMetadata().contains(kToldByDaemonMetadata);
}

}  // namespace rekindle::daemon
