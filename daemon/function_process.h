// The process of one instance, in its sandbox or as a plain child of the daemon.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/instance_record.h"
#include "daemon/node.h"
#include "functions/function_catalog.h"
#include "functions/function_logs.h"
#include "functions/instance_process.h"
#include "restore/cgroup.h"
#include "restore/clone.h"

namespace rekindle::daemon {

// What an instance has on this node beside its process.
struct InstancePlace {
  std::string socket;                           // of its Runtime API; removed with it. Empty: none
  std::string record;                           // a file that says which process it is; removed with it
  std::unique_ptr<const InstanceRecord> noted;  // that file, where it was written before this is given away
  std::shared_ptr<functions::LogStream> log;
  uint64_t memory_bytes = 0;  // its limit
  // Told when it asks for its first call, or when its runtime has said that the handler can't be loaded.
  std::function<void(const absl::Status& loaded)> loaded;
  // Where it has no control group: in its environment, so that what it has started is found (job_members.h).
  std::string mark;
  std::optional<uid_t> user;                              // whose function it is
  std::shared_ptr<const functions::RevisionFolder> code;  // stays as long as it runs
};

// A copy of an image. `has_answered` is called once, at its first answer; `damaged`, from any thread and
// ahead of `on_end`, with what was found where the copy could not go on because its image is damaged: it must
// be quick.
absl::StatusOr<std::unique_ptr<functions::InstanceProcess>> FollowCopy(
    Node& node, restore::CloneResult copy, InstancePlace place, std::function<void()> has_answered,
    std::function<void(const absl::Status& why)> damaged,
    std::function<void(const functions::InstanceEnd&)> on_end);

// `pid`, a child of this process and the first of its session; with it ends all that is in `group`, or, where
// that is null, what is of its session or has its mark.
absl::StatusOr<std::unique_ptr<functions::InstanceProcess>> FollowChild(
    Node& node, pid_t pid, std::unique_ptr<restore::Cgroup> group, InstancePlace place,
    std::function<void(const functions::InstanceEnd&)> on_end);

}  // namespace rekindle::daemon
