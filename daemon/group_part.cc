// A member's side of a group checkpoint.
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "ckpt/capture.h"
#include "ckpt/standing_job.h"
#include "daemon/group_member.h"
#include "daemon/group_point.h"
#include "daemon/groups.h"
#include "daemon/request_check.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/supervisor.h"
#include "group/member_state.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

using group::MemberState;

constexpr absl::Duration kFreezeLimit = absl::Seconds(10);
// One that waits for the decision looks so often whether somebody else has settled it.
constexpr absl::Duration kLookEvery = absl::Seconds(1);
// A coordinator that lets a stopped job wait for so long is asked whether it is still there: its kernel may
// answer for one that hangs.
constexpr absl::Duration kAskEvery = absl::Seconds(30);

// What the coordinator has said, and the capture's gate, which waits for it.
class Part final : public ckpt::CaptureGate {
 public:
  Part(const v1::PreparePart& request, absl::Duration prepare_limit, const PartCaller& coordinator)
      : name_(absl::StrCat("group ", request.group(), ", member ", request.member())),
        freeze_limit_(request.freeze_limit_seconds() > 0 ? absl::Seconds(request.freeze_limit_seconds())
                                                         : kFreezeLimit),
        prepare_limit_(prepare_limit),
        coordinator_(coordinator) {}

  // On a thread of its own, until there is nothing more to read.
  void Listen() {
    v1::PartRequest request;
    while (coordinator_.read(&request)) {
      absl::MutexLock lock(&mutex_);
      switch (request.request_case()) {
        case v1::PartRequest::kFreeze:
          state_.OnFreeze();
          break;
        case v1::PartRequest::kGo:
          state_.OnGo();
          break;
        case v1::PartRequest::kCommit:
          state_.OnCommit();
          break;
        case v1::PartRequest::kAbort:
          state_.OnAbort();
          break;
        case v1::PartRequest::kPrepare:
        case v1::PartRequest::REQUEST_NOT_SET:
          break;  // of a newer coordinator
      }
    }
    absl::MutexLock lock(&mutex_);
    state_.OnBroken();
    ended_ = true;
  }

  absl::Status BeforeFreeze() override {
    v1::PartEvent event;
    event.mutable_prepared();
    coordinator_.write(event);
    PassGroupPoint(group_point::kMemberPrepared);
    return Await(&MemberState::MayFreeze, prepare_limit_,
                 "the others to get ready (no image by interval is taken of a supervised job meanwhile)",
                 "try again");
  }

  absl::Status OnFrozen() override {
    PassGroupPoint(group_point::kMemberFrozen);
    v1::PartEvent event;
    event.mutable_frozen();
    coordinator_.write(event);
    return Await(&MemberState::MayGoOn, freeze_limit_, "the others to be frozen",
                 "allow more with --freeze-limit");
  }

  absl::Status BeforeCommit() override {
    PassGroupPoint(group_point::kMemberStoring);
    return Await(&MemberState::MayStore, absl::ZeroDuration(), "", "");
  }

  bool gives_up() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return state_.gives_up();
  }

  // Whether it is given up: it is not to freeze yet.
  bool Yield() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (state_.MayFreeze() != MemberState::Verdict::kWait) return false;
    yielded_ = true;
    state_.OnLimit();
    return true;
  }
  bool yielded() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return yielded_;
  }
  absl::Status WhyYielded() const {
    return absl::AbortedError(
        absl::StrCat(name_,
                     ": its daemon takes last images of its jobs, or ends, and did not wait for the "
                     "others any longer; the job runs on. Take the group again"));
  }

  void OnStored() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    state_.OnStored();
  }
  MemberState::Fate AwaitFate(absl::Duration limit) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto known = [this]()
                     ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return state_.fate() != MemberState::Fate::kWait; };
    AwaitUntil(mutex_, absl::Condition(&known), Deadline(limit));
    return state_.fate();
  }
  void AwaitEnd(absl::Duration limit) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    AwaitUntil(mutex_, absl::Condition(&ended_), Deadline(limit));
  }

 private:
  absl::Status Await(MemberState::Verdict (MemberState::*may)() const, absl::Duration limit,
                     const char* what_for, const char* cure) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto told = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return (state_.*may)() != MemberState::Verdict::kWait;
    };
    if (!AwaitUntil(mutex_, absl::Condition(&told), Deadline(limit))) {
      state_.OnLimit();
      return absl::DeadlineExceededError(absl::StrCat(name_, ": waiting for ", what_for, " took longer than ",
                                                      absl::FormatDuration(limit),
                                                      ", so the job runs on and the group is given up; see "
                                                      "why another member was slow, or ",
                                                      cure));
    }
    if ((state_.*may)() == MemberState::Verdict::kGoOn) return absl::OkStatus();
    return absl::AbortedError(
        absl::StrCat(name_, ": its coordinator gave the group up or can't be reached; the job runs on"));
  }

  const std::string name_;
  const absl::Duration freeze_limit_, prepare_limit_;
  const PartCaller& coordinator_;
  mutable absl::Mutex mutex_;
  MemberState state_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool yielded_ ABSL_GUARDED_BY(mutex_) = false;
};

v1::CheckpointRequest RequestFor(const v1::PreparePart& prepare) {
  v1::CheckpointRequest request = prepare.checkpoint();
  auto& labels = *request.mutable_labels();
  labels[v1::kGroupIdLabel] = prepare.id();
  labels[v1::kGroupLabel] = prepare.group();
  labels[v1::kGroupMemberLabel] = absl::StrCat(prepare.member());
  labels.erase(v1::kGroupCoordinatorStoreLabel);
  if (!prepare.coordinator().empty()) labels[v1::kGroupCoordinatorLabel] = prepare.coordinator();
  if (!prepare.coordinator_store().empty())
    labels[v1::kGroupCoordinatorStoreLabel] = prepare.coordinator_store();
  labels.erase(v1::kGroupMachineLabel);
  if (const std::string machine = ThisMachineId(); !machine.empty()) labels[v1::kGroupMachineLabel] = machine;
  labels.erase(v1::kGroupEndsJobLabel);
  if (request.stop()) labels[v1::kGroupEndsJobLabel] = "yes";
  return request;
}

// Of the member's job, if it is supervised here.
absl::Duration ImagePeriodOf(Node& node, const v1::CheckpointRequest& request) {
  std::string name = request.job();
  if (name.empty()) {
    if (const std::optional<JobRecord> job = node.jobs().FindRunning(request.pid())) name = job->name;
  }
  const absl::StatusOr<std::shared_ptr<SupervisedJob>> job = node.supervisor().Find(name);
  return job.ok() ? absl::Seconds((*job)->PeriodOfImages().second) : absl::ZeroDuration();
}

absl::Status AskWhetherItLives(const GroupPeerOptions& peers, const v1::PreparePart& prepare) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<GroupPeer> coordinator, ConnectToPeer(peers, prepare.coordinator()));
  v1::GetGroupDecisionRequest request;
  request.set_id(prepare.id());
  request.set_store(prepare.coordinator_store());
  return coordinator->GetGroupDecision(request).status();
}

// Who could not ask later what was decided would have his part in doubt for ever.
absl::Status CheckCanAsk(const GroupPeerOptions& peers, const v1::PreparePart& prepare) {
  if (prepare.coordinator().empty()) return absl::OkStatus();
  const absl::Status answer = AskWhetherItLives(peers, prepare);
  if (answer.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the member can't ask its coordinator at ", prepare.coordinator(),
                   " what was decided: ", answer.message(),
                   "; start the coordinator's daemon with --advertise and an address that members reach"));
}

}  // namespace

// One member of a group that a coordinator captures: its image stored, and then what becomes of it.
class Groups::PartCall {
 public:
  PartCall(Groups& groups, const PartCaller& coordinator, const v1::PreparePart& prepare, Part& part)
      : groups_(groups), coordinator_(coordinator), prepare_(prepare), part_(part) {}

  // False: there is no image, which the coordinator was told.
  bool Store(const Call& call) {
    PartOfGroup of_group;
    of_group.gate = &part_;
    of_group.prepared_id = PreparedId(prepare_.id(), prepare_.member());
    of_group.standing = &standing_;
    of_group.when_published = &when_published_;
    Call inner = call;
    inner.part = &of_group;
    inner.cancelled = [this] { return part_.gives_up(); };
    v1::PartEvent event;
    absl::Status stored;
    {
      const Yielding yielding(groups_, [this] { return part_.Yield(); });
      stored =
          Checkpoint(groups_.node_, inner, RequestFor(prepare_), [&](const v1::CheckpointEvent& checkpoint) {
            if (checkpoint.has_result()) *event.mutable_stored() = checkpoint.result();
            return true;
          });
    }
    if (!stored.ok()) {
      SendFailure(coordinator_, part_.yielded() ? part_.WhyYielded() : stored);
      return false;
    }
    part_.OnStored();
    PassGroupPoint(group_point::kMemberStored);
    if (auto store = groups_.node_.OpenStore(Node::Access::kWrite); store.ok())
      event.set_store((*store)->id());
    coordinator_.write(event);
    PassGroupPoint(group_point::kMemberInDoubt);
    return true;
  }

  // Until it is known, or who is to know it is no more, and the resolver has to find out.
  void AwaitDecision() {
    for (;;) {
      switch (part_.AwaitFate(kLookEvery)) {
        case MemberState::Fate::kInDoubt:
          return groups_.ResolveSoon();
        case MemberState::Fate::kWait:
          if (IsSettled()) return;
          LetGoWithoutCoordinator();
          continue;
        case MemberState::Fate::kPublish:
          return Publish();
        case MemberState::Fate::kRemove:
          return GiveUp();
      }
    }
  }

 private:
  v1::SettlePartRequest RequestTo(v1::SettlePartRequest::Action action) const {
    v1::SettlePartRequest settle;
    settle.set_id(prepare_.id());
    settle.set_member(prepare_.member());
    settle.set_action(action);
    return settle;
  }

  // The resolver or an operator may have settled it, where the connection is dead and nobody can tell.
  bool IsSettled() {
    const absl::StatusOr<v1::SettlePartResponse> look =
        groups_.Settle(RequestTo(v1::SettlePartRequest::LOOK));
    if (!look.ok() || look->state() == v1::SettlePartResponse::IN_DOUBT) return false;
    if (look->state() == v1::SettlePartResponse::COMMITTED) IsPublished();
    return true;
  }

  void LetGoWithoutCoordinator() {
    if (!standing_ || prepare_.coordinator().empty() || absl::Seconds(asked_.seconds()) <= kAskEvery) return;
    if (const absl::Status answer = AskWhetherItLives(groups_.peers_, prepare_); !answer.ok()) {
      Log(LogLevel::kWarning,
          absl::StrCat("group ", prepare_.group(), ", member ", prepare_.member(),
                       ": its coordinator does not answer, so the job goes on, and ends when the group is "
                       "known to be committed: ",
                       answer.message()));
      standing_.reset();
    }
    asked_.Restart();
  }

  void IsPublished() {
    if (standing_) standing_->End();
    if (when_published_) when_published_();
  }

  // Nothing: it stays in doubt, and the coordinator keeps its decision until this has worked.
  std::optional<v1::SettlePartResponse> Settle(v1::SettlePartRequest::Action action) {
    absl::StatusOr<v1::SettlePartResponse> settled = groups_.Settle(RequestTo(action));
    if (settled.ok()) return *std::move(settled);
    Log(LogLevel::kWarning, absl::StrCat("group ", prepare_.group(), ": settling its member ",
                                         prepare_.member(), ": ", settled.status().message()));
    SendFailure(coordinator_, settled.status());
    return std::nullopt;
  }

  void GiveUp() {
    standing_.reset();
    if (Settle(v1::SettlePartRequest::ABORT))
      SendFailure(coordinator_, absl::AbortedError("the group was given up; the job runs on"));
  }

  void Publish() {
    PassGroupPoint(group_point::kMemberCommitting);
    const std::optional<v1::SettlePartResponse> settled = Settle(v1::SettlePartRequest::COMMIT);
    if (!settled) return;
    if (settled->state() != v1::SettlePartResponse::COMMITTED) {
      standing_.reset();
      return SendFailure(coordinator_,
                         absl::DataLossError(absl::StrCat(
                             "the stored image of group ", prepare_.group(), ", member ", prepare_.member(),
                             ", was removed before it could be published; the job runs on, and "
                             "the group can't become complete: take it anew")));
    }
    IsPublished();
    PassGroupPoint(group_point::kMemberCommitted);
    v1::PartEvent done;
    done.mutable_committed();
    coordinator_.write(done);
  }

  Groups& groups_;
  const PartCaller& coordinator_;
  const v1::PreparePart& prepare_;
  Part& part_;
  // One that is to end goes on after all when this ends without knowing: Settle ends it when it is known.
  std::unique_ptr<ckpt::StandingJob> standing_;
  std::function<void()> when_published_;
  Stopwatch asked_;
};

absl::Status Groups::TakePart(const Call& call, const PartCaller& coordinator) {
  RK_RETURN_IF_ERROR(MayUse(call));
  v1::PartRequest first;
  if (!coordinator.read(&first)) return absl::CancelledError("the coordinator has gone");
  RK_RETURN_IF_ERROR(CheckRequest(first));
  if (!first.has_prepare()) {
    return absl::InvalidArgumentError("a group's member is told first what to prepare");
  }
  const v1::PreparePart& prepare = first.prepare();
  RK_RETURN_IF_ERROR(CheckGroupId(prepare.id()));
  RK_RETURN_IF_ERROR(CheckLabelsOfCaller(prepare.checkpoint().labels()));

  Part part(prepare, group::PrepareLimit(ImagePeriodOf(node_, prepare.checkpoint())), coordinator);
  const PartListener listener(part, coordinator);
  if (absl::Status can = CheckCanAsk(peers_, prepare); !can.ok()) {
    SendFailure(coordinator, can);
    return absl::OkStatus();
  }
  PartCall member(*this, coordinator, prepare, part);
  if (member.Store(call)) member.AwaitDecision();
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
