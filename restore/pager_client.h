// Talking to the pager (pager.h) for one lazy restore; starts it when there is none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/packet_socket.h"
#include "base/subprocess.h"
#include "base/timeline.h"
#include "base/unique_fd.h"
#include "restore/fill.h"
#include "restore/frame_cache.h"

namespace rekindle::restore {

struct PagerPlace {
  std::string runtime_directory;  // of its socket and log
  std::string store;
  uint64_t cache_bytes = 0;  // for a pager that is started
};

// Owned by one thread at a time.
class PagerClient {
 public:
  // `socket`: connected to a pager.
  explicit PagerClient(UniqueFd socket) : socket_(std::move(socket)) {}
  // A pager of another build of Rekindle is left to the jobs that it has, and one of this build is used.
  // One that had to be started is handed to `started`, to be waited for when it ends.
  static absl::StatusOr<PagerClient> Connect(const PagerPlace& place, Subprocess* started);
  // NotFound: none runs.
  static absl::StatusOr<PagerClient> ConnectToRunning(const PagerPlace& place);
  // All that run, those of other builds too: after an upgrade the jobs of before have theirs.
  static absl::StatusOr<std::vector<PagerClient>> ConnectToAllRunning(const PagerPlace& place);

  // From now on nobody waits for an answer once `cancel_fd` (-1: none) is readable: Cancelled. A pager that
  // was given up, for this or because it did not answer for very long (DeadlineExceeded), can't be asked any
  // more over this connection.
  void CancelBy(int cancel_fd) { cancel_fd_ = cancel_fd; }
  // The pager at the other end has ended, and has said nothing more.
  bool HasEnded() const;

  // From now on CRIU's lazy restore of `image` on the socket `listener` is served. `keeper` is the sandbox's.
  // `memory_group`: the folder of the cgroup that limits its memory; -1: none. Returns how many pages will
  // come in while the job runs.
  struct AttachOptions {
    std::string clone;  // its sandbox
    std::string image;
    restore::Fill fill = restore::Fill::kIdle;
    absl::Duration record;      // at most
    bool until_answer = false;  // at most until the job has answered on a socket that it listens on
    bool until_ready = false;   // it is to say that it is: see Ready()
    bool timeline = false;      // keep one: see Timeline()
  };
  absl::StatusOr<uint64_t> Attach(const AttachOptions& options, int listener, int keeper, int memory_group);
  // A copy of the image with this digest will be attached soon, maybe over another connection.
  absl::Status Expect(const std::string& image);
  struct Prefilled {
    uint64_t pages = 0;
    // That each copy of the image gets before it runs; 0: not known for good yet, or too much to be kept.
    uint64_t settled_bytes = 0;
    double seconds = 0;
  };
  // `processes`: the tasks by their PIDs in the image.
  absl::StatusOr<Prefilled> Prefill(const std::string& clone, const std::vector<pid_t>& pids,
                                    const std::vector<UniqueFd>& processes);
  absl::Status Ready(const std::string& clone);
  // Brings in all of its memory that is missing. True: it is there, and the copy like any other process.
  absl::StatusOr<bool> Fill(const std::string& clone);
  // What the pager has done until now for the clone that was attached over this connection.
  absl::StatusOr<rekindle::Timeline> Timeline();
  struct Numbers {
    uint64_t clones = 0, missing_pages = 0;  // being served; of these
    uint64_t clones_served = 0, images = 0;
    FrameCacheStats cache;
    uint64_t huge_bytes = 0;
    bool warming = false;
  };
  absl::StatusOr<Numbers> Stats();
  // Drops the working set of the image with this digest: the pager may have it, and put it back. False: none
  // was recorded.
  absl::StatusOr<bool> DropWorkingSet(const std::string& image);
  // Images that were removed are closed, and, where gc has `collected`, frames that it has freed are
  // discarded; copies that run keep theirs. Nothing depends on it: one that hangs is not waited for for long.
  absl::Status ForgetRemovedImages(bool collected);
  // Of the cache. Returns the size that it has now.
  absl::StatusOr<uint64_t> Resize(uint64_t cache_bytes);

 private:
  class Answer;
  // Far more than filling in a large copy takes, and waiting for a few of others that are being filled.
  static constexpr absl::Duration kAnswersWithin = absl::Hours(1);
  absl::StatusOr<Answer> Ask(const std::string& request, const std::vector<int>& descriptors = {},
                             absl::Duration within = kAnswersWithin);
  absl::Status WaitForAnswer(absl::Duration within) const;

  UniqueFd socket_;
  int cancel_fd_ = -1;
};

}  // namespace rekindle::restore
