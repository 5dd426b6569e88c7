// A job's images on their way elsewhere: `rekindle copy`, run as the job's user, with his environment, by
// whoever supervises the job. So what he may not write nobody writes for him, and his object stores are
// known.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/file_rights.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"
#include "daemon/process_settings.h"
#include "rekindle/v1/supervised_job.pb.h"
#include "rekindle/v1/supervision.pb.h"

namespace rekindle::daemon {

struct NodeOptions;  // node.h

struct CopyPlan {
  std::string job;     // its name
  std::string images;  // the name of its images
  v1::CopyTo to;
  uint32_t keep = 0;  // how many copies stay there
  Owner user;
  std::optional<ProcessSettings> settings;  // limits and such of who started the job; nothing: not known
  std::vector<std::string> environment;
  std::string newest;         // the digest of its last image of that name; empty: there is none
  int64_t ended_unix_ns = 0;  // it takes no more; 0: it does

  // Is it to be done by the same command?
  bool SameCommand(const CopyPlan& other) const;
};

// Of a job that has a place for copies. `images`: their name.
CopyPlan CopyPlanOf(const v1::SupervisedJobRecord& record, const std::string& images);

// What a command writes, of which the last is kept. Not thread-safe.
class CommandOutput {
 public:
  static absl::StatusOr<CommandOutput> Make();
  int writing_end() const { return write_.get(); }
  // Once the command has it.
  void CloseWritingEnd() { write_.Reset(); }
  // Takes what is there, without waiting.
  void Take();
  // The last error that it told, or else its last line.
  std::string Error() const;

 private:
  UniqueFd read_, write_;
  std::string text_;
};

// Ends with the calling thread. `node`: whose store it copies from, a daemon's or that of this process.
// NotFound: the command is not installed.
absl::StatusOr<Subprocess> StartCopying(const NodeOptions& node, const CopyPlan& plan,
                                        const std::vector<std::string>& options, CommandOutput& output);

// InvalidArgument: the place can't be used so.
absl::Status CheckCopyTo(const v1::CopyTo& to);
// Could copies be written there? Takes a minute at most. The error says what that place is, and why not.
absl::Status TryCopyPlace(const NodeOptions& node, const CopyPlan& plan,
                          const std::function<bool()>& cancelled);

// Waits for their end, for all together: so long until they are killed, and then for some seconds. A file
// system whose server is gone may keep a process from ending for ever: then it is left alone.
void EndCopying(absl::Span<Subprocess* const> processes, absl::Duration patience);
void EndCopying(Subprocess& process, absl::Duration patience);

}  // namespace rekindle::daemon
