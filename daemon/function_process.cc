#include "daemon/function_process.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "daemon/instance_record.h"
#include "daemon/job_members.h"
#include "daemon/process_info.h"

namespace rekindle::daemon {
namespace {

using functions::InstanceEnd;

constexpr absl::Duration kChildrenKnownFor = absl::Seconds(1);

// What an instance has in memory, and what its limit does to it. Thread-safe.
class MemoryWatch {
 public:
  explicit MemoryWatch(std::shared_ptr<const restore::Cgroup> group) : group_(std::move(group)) {}

  // In bytes; 0: it is not known.
  uint64_t Now() const { return group_ ? group_->MemoryInUse() : 0; }
  uint64_t Peak() const { return group_ ? group_->PeakMemory() : 0; }  // since ResetPeak
  void ResetPeak() {
    if (group_) group_->ResetPeak();
  }
  // Of processes, since the last call of this or End.
  uint64_t TakeKills() {
    if (!group_) return 0;
    const uint64_t kills = group_->OutOfMemoryKills();
    return kills - taken_.exchange(kills);
  }
  // Of the first process.
  InstanceEnd End(const ExitState& exit) {
    InstanceEnd end;
    end.exit = exit;
    end.out_of_memory = restore::EndedByMemoryLimit(exit, group_ ? group_->OutOfMemoryKills() - taken_ : 0);
    if (end.out_of_memory) TakeKills();
    return end;
  }

 private:
  const std::shared_ptr<const restore::Cgroup> group_;
  std::atomic<uint64_t> taken_{0};
};

class Process : public functions::InstanceProcess {
 public:
  Process(pid_t pid, UniqueFd killed_by, const restore::Cgroup* group, std::shared_ptr<MemoryWatch> memory,
          InstancePlace place, std::function<void()> has_answered)
      : pid_(pid),
        killed_by_(std::move(killed_by)),
        memory_(std::move(memory)),
        place_(std::move(place)),
        has_answered_(std::move(has_answered)) {
    if (place_.noted == nullptr)
      place_.noted = std::make_unique<InstanceRecord>(place_.record, pid_, group, place_.mark);
  }
  ~Process() override {
    Kill();
    if (!place_.mark.empty()) KillJobMembers({0, place_.mark, std::nullopt, {}});
    if (!place_.socket.empty()) ::unlink(place_.socket.c_str());
  }

  pid_t pid() const override { return pid_; }
  void Kill() override { SendSignal(killed_by_.get(), SIGKILL); }
  uint64_t MemoryBytes() const override {
    if (const uint64_t charged = memory_->Now(); charged > 0) return charged;
    // Without a group it is asked for often: after each invocation, and of all instances at a time.
    const TreeUse use = MeasureTree(pid_, *RecentChildren(kChildrenKnownFor));
    return use.processes > 0 ? use.resident_bytes : MeasureTree(pid_).resident_bytes;  // it is new
  }
  uint64_t PeakBytes() const override { return peak_bytes_; }
  void IsReady() override { place_.loaded(absl::OkStatus()); }
  void HasAnswered() override {
    if (has_answered_) has_answered_();
  }
  void WasEnded(const std::string& why) override {
    place_.log->Note(absl::StrCat("rekindle: the instance was ended: ", why));
  }
  void StartFails(const functions::StartFailure& failure) override {
    if (!failure.problem.empty()) place_.log->Note(absl::StrCat("Error: ", failure.problem));
    functions::StartReport report;
    report.duration_seconds = absl::ToDoubleSeconds(failure.duration);
    report.error_type = failure.error_type;
    report.timed_out = failure.timed_out;
    place_.log->FailStart(report);
    // What its time or memory was not enough for may pass.
    if (failure.problem.empty()) place_.loaded(absl::UnknownError(failure.error_type));
  }
  void InvocationBegins(const std::string& request_id) override {
    memory_->ResetPeak();
    log_from_ = place_.log->Begin(request_id);
  }
  void InvocationIsTakenBack(const std::string& request_id) override {
    place_.log->Note(
        absl::StrCat("rekindle: RequestId: ", request_id,
                     " was not given to the function, which had not asked for it: another instance has it"));
  }
  std::string InvocationEnds(const functions::InvocationOutcome& report) override {
    functions::InvocationReport entry;
    entry.request_id = report.request_id;
    entry.duration_seconds = absl::ToDoubleSeconds(report.duration);
    if (report.start > absl::ZeroDuration()) entry.init_seconds = absl::ToDoubleSeconds(report.start);
    entry.memory_limit_bytes = place_.memory_bytes;
    peak_bytes_ = entry.most_memory_bytes = memory_->Peak();
    if (entry.most_memory_bytes == 0) entry.most_memory_bytes = MemoryBytes();
    if (const uint64_t kills = memory_->TakeKills(); kills > 0) {
      place_.log->Note(absl::StrCat("rekindle: it was at its memory limit of ", place_.memory_bytes >> 20,
                                    " MB: the kernel ended ", kills,
                                    " of the processes that it has started"));
    }
    if (!report.problem.empty()) {
      place_.log->Note(absl::StrCat("RequestId: ", report.request_id, " Error: ", report.problem));
      entry.status = report.timed_out ? "timeout" : "error";
    }
    place_.log->End(entry);
    return place_.log->TailSince(log_from_);
  }

 private:
  const pid_t pid_;
  const UniqueFd killed_by_;  // pidfd: with this process end all others
  const std::shared_ptr<MemoryWatch> memory_;
  InstancePlace place_;
  const std::function<void()> has_answered_;
  std::atomic<uint64_t> log_from_{0};  // of the invocation in work
  std::atomic<uint64_t> peak_bytes_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<functions::InstanceProcess>> FollowCopy(
    Node& node, restore::CloneResult copy, InstancePlace place, std::function<void()> has_answered,
    std::function<void(const absl::Status& why)> damaged, std::function<void(const InstanceEnd&)> on_end) {
  struct Kept {
    std::shared_ptr<restore::Cgroup> group;
    UniqueFd channel;
    std::string directory;
    restore::SandboxEnd end;
    ~Kept() { RemoveTree(directory).IgnoreError(); }
  };
  auto kept = std::make_shared<Kept>();
  kept->group = std::move(copy.group);
  kept->channel = std::move(copy.channel);
  kept->directory = copy.sandbox.directory;
  auto memory = std::make_shared<MemoryWatch>(kept->group);
  auto process = std::make_unique<Process>(copy.root, std::move(copy.sandbox.init), kept->group.get(), memory,
                                           std::move(place), std::move(has_answered));
  // On failure the destructor of `process` ends it.
  RK_RETURN_IF_ERROR(node.reaper()
                         .Watch(
                             std::move(copy.sandbox.control),
                             [kept](int ended) {
                               kept->end = restore::ReadEnd(ended, kept->directory);
                               return kept->end.exit;
                             },
                             [kept, memory, damaged = std::move(damaged),
                              on_end = std::move(on_end)](const ExitState& exit) mutable {
                               InstanceEnd end = memory->End(exit);
                               end.why = kept->end.why;
                               if (kept->end.damaged) damaged(restore::DamageOf(kept->end, "its copy"));
                               // With the process goes the group, which others don't wait for (JobReaper).
                               kept.reset();
                               memory.reset();
                               on_end(end);
                             })
                         .status());
  return process;
}

absl::StatusOr<std::unique_ptr<functions::InstanceProcess>> FollowChild(
    Node& node, pid_t pid, std::unique_ptr<restore::Cgroup> group, InstancePlace place,
    std::function<void(const InstanceEnd&)> on_end) {
  std::shared_ptr<restore::Cgroup> shared = std::move(group);
  std::function<void()> end_session;
  if (!place.mark.empty()) {
    end_session = [pid, mark = place.mark, user = place.user] {
      SendKillToJobMembers({pid, mark, user, {}});
    };
  }
  auto memory = std::make_shared<MemoryWatch>(shared);
  auto process = std::make_unique<Process>(pid, UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))),
                                           shared.get(), memory, std::move(place), nullptr);
  RK_RETURN_IF_ERROR(node.reaper()
                         .Adopt(
                             pid,
                             [memory, on_end = std::move(on_end)](const ExitState& exit) mutable {
                               const InstanceEnd end = memory->End(exit);
                               memory.reset();  // as above
                               on_end(end);
                             },
                             std::move(end_session))
                         .status());
  return process;
}

}  // namespace rekindle::daemon
