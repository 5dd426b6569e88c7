// Copies what is appended to a log to a descriptor, from a given place on, until told that no more will come.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle::cli {

// The log of a supervised job is cut off where its image had it when the job goes on from that, and the job
// writes on from there. What it writes as it did before is not shown again: the follower knows the content of
// what it has shown last. From the first line on that is another it shows all. A roll-back is known by the
// copy that it makes of what it cuts off, beside the log, before it does.
//
// The log is followed by its name, as rotating it takes it away: another file of this name is shown from its
// beginning, and the one before is followed further, since whoever has it open writes on there. A log that is
// cut off by somebody else (logrotate's copytruncate) is shown from its beginning. Thread-compatible.
class LogFollower {
 public:
  // `output` must stay open for the follower's life.
  static absl::StatusOr<std::unique_ptr<LogFollower>> Start(const std::string& path, uint64_t offset,
                                                            int output);
  ~LogFollower() { Finish().IgnoreError(); }

  // Copies what is there by now, and ends. An error: why not all was shown; that nobody reads it any more
  // (as of `| head`) is none.
  absl::Status Finish();

 private:
  struct File {
    UniqueFd fd;
    int watch = -1;  // for changes of it
    // Up to here it has been shown; `shown` holds the end of that, also what was there before the follower.
    uint64_t shown_until = 0;
    std::string shown;
  };

  LogFollower(const std::string& path, UniqueFd log, UniqueFd changes, UniqueFd stop, uint64_t offset,
              int output);
  void Loop();
  // Both false when the output takes no more.
  bool CopyWhatIsThere();
  bool Put(absl::string_view text);
  bool Copy(File& file);
  // The log has another beginning from now on, or another end.
  bool BeginAnew(File& file, uint64_t size);
  bool Show(File& file, const std::string& text);
  void TakeEvents();
  // The file that has the name now, if it is another one, is the last of `files_` from then on. False: it is
  // not, or there is none.
  bool FollowName();
  void Watch(File& file);
  void Unwatch(const File& file);

  const std::string path_, folder_, name_;
  UniqueFd changes_, stop_;
  const int output_;
  bool watches_folder_ = false;
  bool rolled_back_ = false;  // or about to be: what is written next was shown already, perhaps
  bool was_cut_ = false;      // by that
  // The last one has the name; those before it had it.
  std::vector<std::unique_ptr<File>> files_;
  const File* within_line_ = nullptr;  // whose line the output is in the middle of
  absl::Status failed_;                // the thread's, while there is one
  std::thread thread_;
};

}  // namespace rekindle::cli
