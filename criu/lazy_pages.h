// The receiving side of CRIU's lazy-pages protocol: during a restore with --lazy-pages CRIU connects to a
// socket in its work directory and hands over the userfaultfd of each task.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::criu {

inline constexpr char kLazyPagesSocket[] = "lazy-pages.socket";

// One restore's connection, after accept(). Not thread-safe. Never blocks on a non-blocking descriptor.
class LazyPagesConnection {
 public:
  explicit LazyPagesConnection(UniqueFd connection) : connection_(std::move(connection)) {}
  int fd() const { return connection_.get(); }

  struct Event {
    enum class What {
      kNothing,   // yet: call again when the descriptor is readable
      kTask,      // `pid` has memory to be served through `userfaultfd`
      kZombie,    // `pid` has none
      kFinished,  // all tasks are about to run: from now on pages may be put in unasked
      kClosed,    // CRIU has gone: before kFinished that means that the restore has failed
    };
    What what = What::kNothing;
    pid_t pid = 0;  // in the image
    UniqueFd userfaultfd;
  };
  // DataLoss when CRIU says something that is not in its protocol. ResourceExhausted: there is no descriptor
  // for a userfaultfd; it is still to be had.
  absl::StatusOr<Event> Next();

 private:
  // Fills `word_`; false when more has to come.
  absl::StatusOr<bool> ReadWord(bool* closed);

  UniqueFd connection_;
  int32_t word_ = 0;
  size_t word_bytes_ = 0;
  bool awaits_descriptor_ = false;
};

}  // namespace rekindle::criu
