#include "daemon/owner_program.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>

#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/network_namespace.h"
#include "base/parallel.h"
#include "base/status.h"
#include "daemon/function_instances.h"
#include "daemon/function_process.h"
#include "daemon/instance_record.h"
#include "daemon/job_launcher.h"
#include "daemon/job_members.h"
#include "daemon/process_output.h"
#include "functions/request_id.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kLookForEnd = absl::Milliseconds(100);

// As those see it who have these mounts. The folder outlives them while it is open.
UniqueFd OpenFolderIn(const UniqueFd& mounts, const std::string& path) {
  UniqueFd folder;
  CatchNoMoreThreads([&] {
    std::thread([&] {
      if (::unshare(CLONE_FS) == 0 && ::setns(mounts.get(), CLONE_NEWNS) == 0)
        folder.Reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    }).join();
    return absl::OkStatus();
  }).IgnoreError();
  return folder;
}

}  // namespace

absl::StatusOr<OwnerProgramEnd> RunOwnerProgram(Node& node, const OwnerProgram& program,
                                                const Cancellation* cancel) {
  LaunchOptions launch;
  launch.argv = program.command;
  Environment environment = program.environment;
  std::string mark;
  if (!FunctionInstances::LimitsUsable().ok()) {
    environment[kInstanceMark] = absl::StrCat(program.name, "-", functions::NewRequestId());
    mark = absl::StrCat(kInstanceMark, "=", environment[kInstanceMark]);
  }
  launch.environment = AsStrings(environment);
  launch.working_directory = program.working_directory;
  launch.run_as = UserOf(program.owner);
  RK_ASSIGN_OR_RETURN(launch.mounts, restore::MountsWithOwnTemporary(program.temporary));
  if (program.network != restore::Network::kHost) {
    RK_ASSIGN_OR_RETURN(launch.network, NewNetwork(program.network == restore::Network::kOwn));
  }
  std::unique_ptr<restore::Cgroup> group;  // ends what it leaves running
  if (auto made = restore::Cgroup::Make(); made.ok() && (*made)->Set(program.limits).ok()) {
    group = *std::move(made);
    launch.groups = group->processes();
  }
  RK_ASSIGN_OR_RETURN(auto output, ProcessOutput::Make(program.most_output));
  launch.log_file = output->TakeWriteEnd();
  RK_RETURN_IF_ERROR(output->Follow());
  const std::string records = InstanceRecords(node.options().runtime_directory, node.options().store);
  RK_RETURN_IF_ERROR(MakeDirectories(records, 0711));
  std::unique_ptr<const InstanceRecord> left;
  const auto note = [&](pid_t pid) {
    left = std::make_unique<InstanceRecord>(absl::StrCat(records, "/", program.name, "-", pid, ".pid"), pid,
                                            group.get(), mark);
    return absl::OkStatus();
  };
  RK_ASSIGN_OR_RETURN(const pid_t pid, LaunchJob(launch, /*warnings=*/nullptr, note));
  launch.log_file.Reset();
  RK_ASSIGN_OR_RETURN(std::shared_ptr<const JobEnd> end,
                      AdoptWithGroup(node.reaper(), pid, [pid, mark, uid = program.owner.uid] {
                        const std::optional<uid_t> user = uid == 0 ? std::nullopt : std::optional(uid);
                        if (!mark.empty()) SendKillToJobMembers({pid, mark, user, {}});
                      }));
  const Deadline deadline(program.longest);
  bool unwanted = false;
  while (!end->WaitFor(kLookForEnd)) {
    unwanted = node.stopping() || (cancel != nullptr && cancel->cancelled());
    if (!unwanted && !deadline.passed()) continue;
    ::kill(pid, SIGKILL);
    break;
  }
  OwnerProgramEnd ended;
  ended.late = deadline.passed();
  ended.exit = end->WaitFor(absl::InfiniteDuration());
  ended.out_of_memory = group != nullptr && group->OutOfMemoryKills() > 0;
  group.reset();
  if (!mark.empty()) KillJobMembers({0, mark, std::nullopt, {}});
  if (unwanted) return absl::CancelledError(node.stopping() ? "the daemon is ending" : "cancelled");
  ended.output = output->Text();
  if (!program.results.empty()) ended.results = OpenFolderIn(launch.mounts, program.results);
  return ended;
}

}  // namespace rekindle::daemon
