// A member's side of a group's restore: its job stands ready until all do, and is kept when all run.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "criu/process_tree.h"
#include "daemon/group_member.h"
#include "daemon/groups.h"
#include "daemon/request_check.h"
#include "daemon/rpcs.h"

namespace rekindle::daemon {
namespace {

// For the others, while this one's processes exist and have not run: so much, and what it takes to read
// images like this one's from a slow store.
constexpr absl::Duration kReadyLimit = absl::Minutes(10);
constexpr double kLeastBytesASecond = 100e6;
// For the others to say that they run, which they do already.
constexpr absl::Duration kKeepLimit = absl::Minutes(1);

class RestoredPart {
 public:
  RestoredPart(const v1::RestorePartBegin& request, uint64_t image_bytes,
               const RestorePartCaller& coordinator)
      : name_(absl::StrCat("member ", request.member(), ", image ", request.restore().image())),
        ready_limit_(kReadyLimit + absl::Seconds(static_cast<double>(image_bytes) / kLeastBytesASecond)),
        coordinator_(coordinator) {}

  void Listen() {
    v1::RestorePartRequest request;
    while (coordinator_.read(&request)) {
      absl::MutexLock lock(&mutex_);
      go_ = go_ || request.has_go();
      keep_ = keep_ || (go_ && request.has_keep());
    }
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  absl::Status BeforeRunning() {
    v1::RestorePartEvent event;
    event.mutable_ready();
    coordinator_.write(event);
    return Await(&go_, ready_limit_, "to be ready");
  }
  absl::Status AwaitKeep() { return Await(&keep_, kKeepLimit, "to run"); }

  bool gives_up() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return ended_ && !keep_;
  }
  void AwaitEnd(absl::Duration limit) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    AwaitUntil(mutex_, absl::Condition(&ended_), Deadline(limit));
  }

 private:
  absl::Status Await(const bool* said, absl::Duration limit, const char* what_for)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto known = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return *said || ended_; };
    if (!AwaitUntil(mutex_, absl::Condition(&known), Deadline(limit))) {
      return absl::DeadlineExceededError(absl::StrCat(name_, ": the other members took longer than ",
                                                      absl::FormatDuration(limit), " ", what_for,
                                                      "; nothing of it is left running"));
    }
    if (*said) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat(
        name_, ": its coordinator gave the group up or can't be reached; nothing of it is left running"));
  }

  const std::string name_;
  const absl::Duration ready_limit_;
  const RestorePartCaller& coordinator_;
  mutable absl::Mutex mutex_;
  bool go_ ABSL_GUARDED_BY(mutex_) = false;
  bool keep_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// 0: it is not there, of which the restore tells.
uint64_t BytesOf(Node& node, const std::string& image) {
  const auto store = node.OpenStore(Node::Access::kRead);
  const auto info = store.ok() ? (*store)->Find(image) : absl::StatusOr<store::ImageInfo>(store.status());
  return info.ok() ? info->stats.logical_bytes : 0;
}

}  // namespace

absl::Status Groups::RestorePart(const Call& call, const RestorePartCaller& coordinator) {
  RK_RETURN_IF_ERROR(MayUse(call));
  v1::RestorePartRequest first;
  if (!coordinator.read(&first)) return absl::CancelledError("the coordinator has gone");
  RK_RETURN_IF_ERROR(CheckRequest(first));
  if (!first.has_restore() || first.restore().restore().has_clone()) {
    return absl::InvalidArgumentError("a group's member is told first what to restore, and makes no clones");
  }
  RestoredPart part(first.restore(), BytesOf(node_, first.restore().restore().image()), coordinator);
  const PartListener listener(part, coordinator);

  PartOfGroup of_group;
  of_group.before_running = [&part] { return part.BeforeRunning(); };
  Call inner = call;
  inner.part = &of_group;
  inner.cancelled = [&part] { return part.gives_up(); };
  v1::RestoreRequest request = first.restore().restore();
  request.set_detach(true);
  std::optional<v1::JobStarted> started;
  absl::Status restored = Restore(node_, inner, request, [&](const v1::JobEvent& event) {
    if (event.has_started()) started = event.started();
    if (event.has_rolled_back()) {
      v1::RestorePartEvent rolled_back;
      *rolled_back.mutable_rolled_back() = event.rolled_back();
      coordinator.write(rolled_back);
    }
    return true;
  });
  if (restored.ok() && !started) restored = absl::InternalError("the restore ended without a job");
  if (!restored.ok()) {
    SendFailure(coordinator, restored);
    return absl::OkStatus();
  }
  v1::RestorePartEvent running;
  *running.mutable_running() = *started;
  coordinator.write(running);
  absl::Status keep = part.AwaitKeep();
  if (!keep.ok()) {
    // Unless it has ended by itself, and its number is another's.
    const pid_t root = started->job().pid();
    if (criu::StartTicks(root) == started->process().start_ticks())
      criu::KillTree(root, /*reap_root=*/false);  // the reaper has it
    Log(LogLevel::kWarning, keep.message());
    SendFailure(coordinator, keep);
    return absl::OkStatus();
  }
  v1::RestorePartEvent kept;
  kept.mutable_kept();
  coordinator.write(kept);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
