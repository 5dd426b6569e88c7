// Sandboxes that are ready before anybody asks: made, with CRIU started in them and waiting for its request.
// Making one takes longer than most restores that it is for.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "criu/installation.h"
#include "restore/cgroup.h"
#include "restore/sandbox.h"
#include "restore/sandbox_protocol.h"

namespace rekindle::restore {

// What CRIU in a ready sandbox has open for the job. It takes each number for one purpose only, so there are
// several.
inline constexpr int kChannelInCriu = kFirstInheritedInCriu;
inline constexpr int kChannelsInCriu = 2;
inline constexpr int kNullInCriu = kChannelInCriu + kChannelsInCriu;
inline constexpr int kNullsInCriu = 4;
inline constexpr int kFirstFreeInCriu = kNullInCriu + kNullsInCriu;

struct ReadySandbox {
  std::unique_ptr<Cgroup> group;  // null: in the service's own; goes after the sandbox
  Sandbox sandbox;
  Sandbox::Criu criu;
  UniqueFd listener;  // the lazy-pages socket of its folder
  UniqueFd channel;   // our end of what kChannelInCriu is
  bool made_ahead = false;
};

struct SandboxKind {
  Network network = Network::kHost;
  bool grouped = false;  // in a cgroup of its own
  friend auto operator<=>(const SandboxKind&, const SandboxKind&) = default;
};

// Thread-safe.
class SandboxPool {
 public:
  // Keeps up to `size` of each kind that was asked for lately; 0: makes each when it is asked for.
  static absl::StatusOr<std::unique_ptr<SandboxPool>> Start(const std::string& directory,
                                                            const criu::Installation& criu, size_t size);
  ~SandboxPool();

  absl::StatusOr<ReadySandbox> Take(const SandboxKind& kind) ABSL_LOCKS_EXCLUDED(mutex_);
  // One of this kind will be taken soon: it is made now, unless one is ready or none are kept.
  absl::Status Expect(const SandboxKind& kind) ABSL_LOCKS_EXCLUDED(mutex_);
  // A sandbox whose CRIU gets more descriptors: (ours, number in CRIU).
  absl::StatusOr<ReadySandbox> MakeWith(const SandboxKind& kind,
                                        const std::vector<std::pair<int, int>>& descriptors);

 private:
  SandboxPool(std::string directory, criu::Installation criu, size_t size)
      : directory_(std::move(directory)), criu_(std::move(criu)), size_(size) {}
  void Refill() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of those asked for, one of which there are too few; null: there is none.
  const SandboxKind* Lacking() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; }

  const std::string directory_;
  const criu::Installation criu_;
  const size_t size_;
  std::unique_ptr<SandboxFactory> factory_;
  UniqueFd null_;

  absl::Mutex mutex_;
  std::map<SandboxKind, std::deque<ReadySandbox>> ready_ ABSL_GUARDED_BY(mutex_);
  std::set<SandboxKind> asked_for_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool failing_ ABSL_GUARDED_BY(mutex_) =
      false;  // the last one could not be made: nobody tries ahead of time
  std::thread thread_;
};

}  // namespace rekindle::restore
