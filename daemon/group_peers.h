// The other daemons of a group, as clients see them. gRPC stays inside.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rekindle/v1/group.pb.h"

namespace rekindle::daemon {

struct GroupPeerOptions {
  std::string socket;  // of this daemon: how it reaches itself
  // Under which other daemons reach this one; empty: they can't.
  std::string address;
  std::string certificate, key, ca;  // PEM files: who this daemon is to others, and who vouches for them
};

// One call with messages both ways. One thread may read while others write.
template <typename Request, typename Event>
class PeerStream {
 public:
  virtual ~PeerStream() = default;                 // cancels it
  virtual bool Read(Event* event) = 0;             // connects first; false: there will be no more
  virtual bool Write(const Request& request) = 0;  // any thread, in turn; cancels what is not connected yet
  virtual void End() = 0;                          // no more requests
  virtual void Cancel() = 0;                       // any thread
  virtual absl::Status Finish() = 0;               // once Read has returned false
};
using PartStream = PeerStream<v1::PartRequest, v1::PartEvent>;
using RestoreStream = PeerStream<v1::RestorePartRequest, v1::RestorePartEvent>;

// Thread-safe.
class GroupPeer {
 public:
  virtual ~GroupPeer() = default;
  // These return at once, and `first` is written when somebody reads; what goes wrong the stream tells.
  // Aborted, in place of Unavailable: the daemon can't be reached.
  virtual std::unique_ptr<PartStream> TakePart(v1::PartRequest first) = 0;
  virtual std::unique_ptr<RestoreStream> RestorePart(v1::RestorePartRequest first) = 0;
  virtual absl::StatusOr<v1::SettlePartResponse> SettlePart(const v1::SettlePartRequest& request) = 0;
  virtual absl::StatusOr<v1::GetGroupDecisionResponse> GetGroupDecision(
      const v1::GetGroupDecisionRequest& request) = 0;
};

// How long a call that only looks or settles may take.
inline constexpr absl::Duration kPeerCallMayTake = absl::Seconds(5);
// A connection over which nothing comes is probed this often, and given up when that is not answered.
inline constexpr absl::Duration kPeerProbe = absl::Seconds(3);

// `host`: a gRPC target, over mutual TLS; empty: this daemon. InvalidArgument: there are no certificates.
absl::StatusOr<std::shared_ptr<GroupPeer>> ConnectToPeer(const GroupPeerOptions& options,
                                                         const std::string& host);

}  // namespace rekindle::daemon
