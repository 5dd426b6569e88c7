// One clone in the making: its steps, in the order in which CloneStarter takes them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/timeline.h"
#include "base/unique_fd.h"
#include "restore/cgroup.h"
#include "restore/clone.h"
#include "restore/pager_client.h"
#include "restore/sandbox.h"
#include "restore/sandbox_pool.h"
#include "restore/socket_folders.h"
#include "restore/standby.h"

namespace rekindle::restore {

// Owned by one thread at a time. What has been made goes with it, unless Finish has given it away.
class CloneRun {
 public:
  // `image` must outlive it.
  CloneRun(const PreparedImage& image, const SandboxKind& kind, const CloneOptions& options,
           const std::string& runtime_directory, std::vector<std::string> kept, PagerClient pager)
      : image_(image),
        kind_(kind),
        options_(options),
        runtime_directory_(runtime_directory),
        kept_(std::move(kept)),
        pager_(std::move(pager)) {
    pager_.CancelBy(options_.cancel_fd);
  }

  // What the job gets in place of what was its starter's: terminal, pipes, control channel.
  absl::Status TakeSandbox(SandboxPool& pool);
  // So that making it takes no more either. The other limits would only hold that up.
  absl::Status LimitMemory();
  absl::Status AttachPager();
  absl::Status MakeOwnPlaces();
  // What a copy sees in the place of the machine's, before anything of the image is opened.
  absl::Status Bind();
  absl::Status MakeSocketFolders();
  // With `park` the copy waits for its owner just before it runs; the times are his then.
  absl::Status RunCriu(const StandbyPool::Park& park);
  absl::StatusOr<CloneResult> Finish();

  // What else is known of why a step failed: who takes a sandbox down takes CRIU with it, whose words do not
  // tell.
  absl::Status Explain(absl::Status failure);
  const std::string& directory() const { return sandbox_.directory(); }  // the sandbox's

 private:
  // What one copy has for itself. Any time before it runs.
  absl::Status Personalize();
  // Waits in the channel until the job wakes up.
  absl::Status SayHello();
  std::string What() const;
  absl::Status CheckOpened(const std::vector<UniqueFd>& processes) const;
  // In the numbers of the copy, which is all that is left of it.
  std::optional<pid_t> DeadProcess() const;
  std::string Root() const;  // of the copy, as we see it
  std::string CriuLog() const;
  void EndPhase(const char* name, std::map<std::string, int64_t> numbers = {});
  void AddSpan(const char* name, int64_t begin_ns, std::map<std::string, int64_t> numbers = {});

  const PreparedImage& image_;
  const SandboxKind kind_;
  CloneOptions options_;
  const std::string runtime_directory_;
  std::vector<std::string> kept_;
  PagerClient pager_;
  std::unique_ptr<Cgroup> group_;  // goes after the sandbox
  Sandbox sandbox_;
  std::string host_name_;  // that it has got
  Sandbox::Criu criu_process_;
  SocketFolders socket_folders_;
  UniqueFd listener_;
  std::vector<std::pair<int, std::string>> inherited_;
  pid_t root_ = 0;
  std::vector<UniqueFd> others_;  // its processes without the root, once all are there
  bool in_our_hands_ = true;      // and not in CRIU's
  CloneResult result_;
  Stopwatch total_, phase_;
  int64_t phase_begin_ns_ = MonotonicNanos(), criu_began_unix_ns_ = 0;
};

}  // namespace rekindle::restore
