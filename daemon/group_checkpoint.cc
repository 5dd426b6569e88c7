// A coordinator's side of a group checkpoint.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "daemon/group_point.h"
#include "daemon/groups.h"
#include "daemon/rpc_support.h"
#include "daemon/sending_thread.h"
#include "group/coordinator_state.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

using group::CoordinatorState;
using Order = CoordinatorState::Order;

std::string NameOf(const v1::GroupMember& member) {
  return absl::StrCat(member.host().empty() ? "this daemon" : member.host(), "/",
                      member.job().empty() ? absl::StrCat(member.pid()) : member.job());
}

absl::Status CheckMembers(const Caller& caller, const v1::CheckpointGroupRequest& request,
                          const GroupPeerOptions& peers) {
  if (request.members().empty()) {
    return absl::InvalidArgumentError("a group has members: name at least one with --member [HOST/]JOB");
  }
  std::set<std::string> names;
  for (const v1::GroupMember& member : request.members()) {
    if (member.job().empty() == (member.pid() == 0)) {
      return absl::InvalidArgumentError("a group's member is named by its PID or by its job's name");
    }
    if (!names.insert(NameOf(member)).second) {
      return absl::InvalidArgumentError(absl::StrCat("member ", NameOf(member), " is named twice"));
    }
    // The member is asked for by this daemon, to which its numbers mean what they mean there.
    if (member.host().empty() && member.pid() != 0) {
      RK_RETURN_IF_ERROR(
          Annotate(CheckMeansOurs(caller, member.pid()), absl::StrCat("member ", NameOf(member))));
    }
    if (!member.host().empty() && peers.address.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("member ", NameOf(member),
                       ": its daemon must be able to ask this one what was decided: start this one with "
                       "--listen and an address that others reach, or say which with --advertise"));
    }
  }
  return absl::OkStatus();
}

// The streams to all members, each read by a thread of its own.
class Members {
 public:
  struct Event {
    size_t member = 0;
    std::optional<v1::PartEvent> event;  // nothing: the stream has ended, with `status`
    absl::Status status;
  };

  ~Members() {
    for (auto& stream : streams_) stream->Cancel();
    for (std::thread& reader : readers_) reader.join();
  }

  void Add(std::shared_ptr<GroupPeer> peer, v1::PartRequest prepare) {
    peers_.push_back(std::move(peer));
    streams_.push_back(peers_.back()->TakePart(std::move(prepare)));
  }
  // Connects to all of them at once, and returns meanwhile. ResourceExhausted: no thread can be made for one;
  // those that have begun end with this.
  absl::Status Read() {
    return CatchNoMoreThreads([this] {
      for (size_t i = 0; i < streams_.size(); ++i) readers_.emplace_back([this, i] { ReadOne(i); });
      return absl::OkStatus();
    });
  }
  void TellAll(const v1::PartRequest& request) {
    for (auto& stream : streams_) stream->Write(request);
  }
  std::optional<Event> Next(absl::Duration limit) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    auto any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
    if (!AwaitUntil(mutex_, absl::Condition(&any), Deadline(limit))) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  void ReadOne(size_t i) {
    v1::PartEvent event;
    while (streams_[i]->Read(&event)) {
      // Then nothing is left to say.
      if (event.has_committed() || event.has_failed()) streams_[i]->End();
      Put({i, std::move(event), {}});
    }
    Put({i, std::nullopt, streams_[i]->Finish()});
  }
  void Put(Event event) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }

  std::vector<std::shared_ptr<GroupPeer>> peers_;  // go after their streams
  std::vector<std::unique_ptr<PartStream>> streams_;
  std::vector<std::thread> readers_;
  absl::Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
};

class Coordination {
 public:
  Coordination(const Call& call, const v1::CheckpointGroupRequest& request, std::string reference,
               std::string id, std::string store, const std::optional<v1::Group>& replaces,
               GroupRecords& records, const EventSink<v1::GroupEvent>& send)
      : call_(call),
        request_(request),
        store_(std::move(store)),
        replaces_(replaces ? replaces->id() : ""),
        records_(records),
        reports_(send, call.abandon),
        state_(static_cast<size_t>(request.members_size())),
        results_(static_cast<size_t>(request.members_size())) {
    group_.set_id(std::move(id));
    group_.set_reference(std::move(reference));
    // Of two with one name the newer has taken the place of the other, also where the clock was set back.
    group_.set_created_unix_ns(std::max(UnixNanos(), replaces ? replaces->created_unix_ns() + 1 : 0));
  }

  absl::Status Begin(const GroupPeerOptions& peers) {
    for (int i = 0; i < request_.members_size(); ++i) {
      const v1::GroupMember& member = request_.members(i);
      v1::GroupPart* part = group_.add_parts();
      *part->mutable_member() = member;
      part->set_image(MemberReference(group_.reference(), static_cast<uint32_t>(i)));
    }
    for (int i = 0; i < request_.members_size(); ++i) {
      RK_ASSIGN_OR_RETURN(std::shared_ptr<GroupPeer> peer, ConnectToPeer(peers, request_.members(i).host()));
      members_.Add(std::move(peer), Prepare(i, peers));
    }
    return members_.Read();
  }

  // Until every member has done as was decided, or can't be told so now.
  absl::Status Run() {
    PassGroupPoint(group_point::kCoordinatorBegun);
    while (!state_.finished()) {
      if (unknown_) return why_;
      std::optional<Members::Event> event =
          members_.Next(settled_.empty() ? kLookForCaller : absl::ZeroDuration());
      if (call_.cancelled()) GiveUp();
      if (!event) {
        NoteSettled();
        continue;
      }
      const Order order =
          event->event ? OnEvent(event->member, *event->event) : OnEnd(event->member, event->status);
      if (order == Order::kAbort && why_.ok()) why_ = OutOfTurn(*event);
      Obey(order);
    }
    NoteSettled();
    if (state_.outcome() == CoordinatorState::Outcome::kAborted) return why_;
    PassGroupPoint(group_point::kCoordinatorCommitted);
    return absl::OkStatus();
  }

  // Whether it was decided to commit only the disk knows.
  bool unknown() const { return unknown_; }

  v1::GroupResult TakeResult() {
    v1::GroupResult result;
    for (int i = 0; i < group_.parts_size(); ++i) {
      const bool settled = state_.settled(static_cast<size_t>(i));
      group_.mutable_parts(i)->set_settled(settled);
      if (!settled) {
        result.add_warnings(
            absl::StrCat("member ", i, " (", NameOf(group_.parts(i).member()),
                         ") was lost after it had stored its image, which appears ",
                         request_.stop() ? "(and its job, which may run until then, ends) " : "",
                         "when it can be told; `rekindle group ls` shows when the group is complete"));
      }
      *result.add_members() = std::move(results_[static_cast<size_t>(i)]);
    }
    group_.set_complete(IsComplete(group_));
    *result.mutable_group() = std::move(group_);
    return result;
  }

 private:
  v1::PartRequest Prepare(int index, const GroupPeerOptions& peers) const {
    const v1::GroupPart& part = group_.parts(index);
    v1::PartRequest request;
    v1::PreparePart* prepare = request.mutable_prepare();
    prepare->set_id(group_.id());
    if (!part.member().host().empty()) prepare->set_coordinator(peers.address);
    prepare->set_coordinator_store(store_);
    prepare->set_group(group_.reference());
    prepare->set_member(static_cast<uint32_t>(index));
    prepare->set_members(static_cast<uint32_t>(group_.parts_size()));
    prepare->set_freeze_limit_seconds(request_.freeze_limit_seconds());
    v1::CheckpointRequest* checkpoint = prepare->mutable_checkpoint();
    checkpoint->set_pid(part.member().pid());
    checkpoint->set_job(part.member().job());
    checkpoint->set_reference(part.image());
    checkpoint->set_replace(request_.replace());
    checkpoint->set_stop(request_.stop());
    checkpoint->set_tcp_established(request_.tcp_established());
    checkpoint->set_tcp_close(request_.tcp_close());
    checkpoint->set_staging_budget_bytes(request_.staging_budget_bytes());
    *checkpoint->mutable_labels() = request_.labels();
    checkpoint->set_file_contents(request_.file_contents());
    *checkpoint->mutable_ignore_paths() = request_.ignore_paths();
    *checkpoint->mutable_track_paths() = request_.track_paths();
    checkpoint->set_gpu_lock_timeout_seconds(request_.gpu_lock_timeout_seconds());
    return request;
  }

  Order OnEvent(size_t member, const v1::PartEvent& event) {
    switch (event.event_case()) {
      case v1::PartEvent::kPrepared:
        return state_.OnPrepared(member);
      case v1::PartEvent::kFrozen:
        Report(member, "frozen");
        return state_.OnFrozen(member);
      case v1::PartEvent::kStored:
        Report(member, "stored");
        results_[member] = event.stored();
        group_.mutable_parts(static_cast<int>(member))->set_digest(event.stored().image().digest());
        group_.mutable_parts(static_cast<int>(member))->set_store(event.store());
        return state_.OnStored(member);
      case v1::PartEvent::kCommitted:
        Report(member, "committed");
        settled_.push_back(static_cast<int>(member));
        return state_.OnCommitted(member);
      case v1::PartEvent::kFailed:
        Report(member, "failed");
        return OnEnd(member, FromProto(event.failed()));
      case v1::PartEvent::EVENT_NOT_SET:
        return Order::kNothing;
    }
    return Order::kNothing;
  }

  Order OnEnd(size_t member, const absl::Status& status) {
    if (why_.ok() && state_.outcome() == CoordinatorState::Outcome::kUndecided) {
      why_ =
          Annotate(status.ok() ? absl::AbortedError("its daemon ended the call") : status,
                   absl::StrCat("group ", group_.reference(),
                                ": nothing of it is left, and its jobs run "
                                "on: member ",
                                member, " (", NameOf(group_.parts(static_cast<int>(member)).member()), ")"));
    }
    return state_.OnEnded(member);
  }

  // A member has said what does not fit the step that the group is at.
  absl::Status OutOfTurn(const Members::Event& event) const {
    const v1::GroupPart& part = group_.parts(static_cast<int>(event.member));
    const char* said = "something";
    if (event.event && event.event->has_prepared()) said = "'prepared'";
    if (event.event && event.event->has_frozen()) said = "'frozen'";
    if (event.event && event.event->has_stored()) said = "'stored'";
    if (event.event && event.event->has_committed()) said = "'committed'";
    return absl::FailedPreconditionError(
        absl::StrCat("group ", group_.reference(), ": nothing of it is left, and its jobs run on: member ",
                     event.member, " (", NameOf(part.member()), ") said ", said,
                     " out of turn: is its daemon of another version? `rekindle version` shows it"));
  }

  void GiveUp() {
    if (why_.ok()) why_ = absl::CancelledError("the group was given up; its jobs run on");
    Obey(state_.OnGiveUp());
  }

  void Obey(Order order) {
    v1::PartRequest request;
    switch (order) {
      case Order::kNothing:
        return;
      case Order::kFreeze:
        PassGroupPoint(group_point::kCoordinatorFreeze);
        request.mutable_freeze();
        break;
      case Order::kGo:
        PassGroupPoint(group_point::kCoordinatorGo);
        request.mutable_go();
        break;
      case Order::kDecide: {
        PassGroupPoint(group_point::kCoordinatorDeciding);
        absl::Status decided = records_.Decide(group_, replaces_);
        if (!decided.ok()) why_ = decided;
        unknown_ = absl::IsDataLoss(decided);
        if (unknown_) return;  // nobody is told anything
        return Obey(state_.OnDecided(decided.ok()));
      }
      case Order::kCommit:
        PassGroupPoint(group_point::kCoordinatorDecided);
        Log(LogLevel::kInfo, absl::StrCat("group ", group_.reference(), " (", group_.id(), ") is committed"));
        request.mutable_commit();
        break;
      case Order::kAbort:
        Log(LogLevel::kInfo,
            absl::StrCat("group ", group_.reference(), " (", group_.id(), ") is given up: ", why_.message()));
        request.mutable_abort();
        break;
    }
    members_.TellAll(request);
  }

  // All that have said so, once nobody else does just now: the record is written as a whole each time, and
  // synced.
  void NoteSettled() {
    const std::vector<int> settled = std::exchange(settled_, {});
    if (settled.empty()) return;
    absl::Status noted = records_.Update(group_.id(), [&settled](v1::Group& record) {
      for (const int member : settled) record.mutable_parts(member)->set_settled(true);
    });
    // They are told once more later, which does no harm.
    if (!noted.ok()) Log(LogLevel::kWarning, noted.message());
  }

  void Report(size_t member, const char* state) {
    v1::GroupEvent event;
    event.mutable_member()->set_member(static_cast<uint32_t>(member));
    event.mutable_member()->set_state(state);
    reports_.Send(std::move(event));
  }

  const Call& call_;
  const v1::CheckpointGroupRequest& request_;
  const std::string store_;     // its id
  const std::string replaces_;  // id of the group that has its name
  GroupRecords& records_;
  SendingThread<v1::GroupEvent> reports_;  // jobs may stand still meanwhile
  v1::Group group_;
  CoordinatorState state_;
  std::vector<v1::CheckpointResult> results_;
  std::vector<int> settled_;  // members of which the record does not say so yet
  absl::Status why_;
  bool unknown_ = false;
  Members members_;
};

}  // namespace

absl::Status Groups::CheckpointGroup(const Call& call, const v1::CheckpointGroupRequest& request,
                                     const EventSink<v1::GroupEvent>& send) {
  RK_RETURN_IF_ERROR(MayUse(call));
  RK_ASSIGN_OR_RETURN(std::string reference, store::NormalizeReference(request.reference()));
  RK_RETURN_IF_ERROR(CheckNoNameOfFunctions(reference));
  RK_RETURN_IF_ERROR(CheckMembers(call.caller, request, peers_));
  RK_RETURN_IF_ERROR(CheckLabelsOfCaller(request.labels()));
  const std::string id = NewGroupId();
  Stopwatch watch;
  v1::GroupEvent event;
  {
    RK_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kWrite));
    // Before any member is told, until the decision is durable or the group is given up.
    absl::StatusOr<UniqueFd> work = records_.BeginWork(id, reference);
    if (!work.ok()) return Annotate(work.status(), absl::StrCat("beginning group ", reference));
    InWork in_work(*this, id, *std::move(work));
    std::optional<v1::Group> old;
    if (absl::StatusOr<v1::Group> found = records_.FindByReference(reference); found.ok()) {
      old = *std::move(found);
    } else if (!absl::IsNotFound(found.status())) {
      return found.status();
    }
    if (old && !request.replace()) {
      return absl::AlreadyExistsError(
          absl::StrCat("group ", reference, " exists: choose another tag, or take its name with --replace"));
    }
    Coordination coordination(call, request, reference, id, store->id(), old, records_, send);
    RK_RETURN_IF_ERROR(coordination.Begin(peers_));
    absl::Status run = coordination.Run();
    if (coordination.unknown()) in_work.Forever();
    RK_RETURN_IF_ERROR(run);
    *event.mutable_result() = coordination.TakeResult();
    if (old) {
      // Images of the new one have taken the names of the old one's; what is left of it goes. Before others
      // see that the new one is done, and there are two of the name.
      absl::Status removed = records_.MarkRemoved(old->id());
      if (!removed.ok()) Log(LogLevel::kWarning, removed.message());
    }
  }
  ResolveSoon();
  event.mutable_result()->set_total_seconds(watch.seconds());
  send(event);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
