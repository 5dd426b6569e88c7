// A coordinator's side of a group's restore.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/image_reference.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "base/timeline.h"
#include "daemon/group_member.h"
#include "daemon/group_point.h"
#include "daemon/groups.h"
#include "daemon/sending_thread.h"

namespace rekindle::daemon {
namespace {

// For a member's daemon to take down what it has begun.
constexpr absl::Duration kEndMayTake = absl::Seconds(30);

// One member's restore, followed by a thread of its own.
struct Member {
  enum class Phase { kPreparing, kReady, kRunning, kKept, kEnded };
  std::shared_ptr<GroupPeer> peer;
  std::unique_ptr<RestoreStream> stream;
  std::thread reader;
  double say_again_at = 0;  // that the coordinator lives
  // Under the mutex.
  Phase phase = Phase::kPreparing;
  absl::Status why;         // it has ended
  bool has_failed = false;  // by its own word: nothing of it is left
  v1::JobStarted started;
  v1::FilesRolledBack files;
};

class GroupRestore {
 public:
  GroupRestore(const Call& call, const EventSink<v1::GroupEvent>& send, size_t members)
      : call_(call), reports_(send, call.abandon), members_(members) {}
  // What was started and is not kept is killed by its daemon: when this returns it has been, unless a daemon
  // can't be reached.
  ~GroupRestore() {
    End();
    for (Member& member : members_) {
      if (member.stream) member.stream->Cancel();
    }
    for (Member& member : members_) {
      if (member.reader.joinable()) member.reader.join();
    }
  }

  // ResourceExhausted: no thread can be made for it, and it has heard of nothing.
  absl::Status Start(size_t index, std::shared_ptr<GroupPeer> peer, const v1::RestorePartRequest& request) {
    Member& member = members_[index];
    member.peer = std::move(peer);
    member.stream = member.peer->RestorePart(request);
    const absl::Status begun = CatchNoMoreThreads([&] {
      member.reader = std::thread([this, &member] { Follow(member); });
      return absl::OkStatus();
    });
    // Of a stream that nobody reads no end would come.
    if (!begun.ok()) member.stream.reset();
    return Annotate(begun, absl::StrCat("member ", index));
  }

  absl::Status Run() {
    absl::Status run = Steps();
    if (run.ok()) return run;
    End();
    return Annotate(run, WhatIsLeft());
  }

  v1::JobStarted TakeStarted(size_t index) { return std::move(members_[index].started); }
  v1::FilesRolledBack TakeFiles(size_t index) { return std::move(members_[index].files); }

 private:
  absl::Status Steps() {
    v1::RestorePartRequest go, keep;
    go.mutable_go();
    keep.mutable_keep();
    RK_RETURN_IF_ERROR(AwaitAll(Member::Phase::kReady, "ready"));
    PassGroupPoint(group_point::kCoordinatorReady);
    told_go_ = true;
    TellAll(go);
    RK_RETURN_IF_ERROR(AwaitAll(Member::Phase::kRunning, "running"));
    told_keep_ = true;
    TellAll(keep);
    return AwaitAll(Member::Phase::kKept, "");
  }

  // Nothing more will be said: who was not told to keep his job kills it.
  void End() {
    if (ended_) return;
    ended_ = true;
    for (Member& member : members_) {
      if (member.stream) member.stream->End();
    }
    AwaitEnds();
  }

  std::string WhatIsLeft() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<std::string> kept, unheard;
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < members_.size(); ++i) {
      const Member& member = members_[i];
      if (member.phase == Member::Phase::kKept) kept.push_back(absl::StrCat(i));
      // Before it was told to go it can have no job that has run.
      if (told_go_ && member.phase != Member::Phase::kKept && !member.has_failed)
        unheard.push_back(absl::StrCat(i));
    }
    if (kept.empty() && unheard.empty()) return "no member is left running";
    return absl::StrCat(
        kept.empty() ? "" : absl::StrCat("kept and running: member ", absl::StrJoin(kept, ", ")),
        kept.empty() || unheard.empty() ? "" : "; ",
        unheard.empty() ? ""
                        : absl::StrCat("not heard of any more, and may run (`rekindle ps` there): member ",
                                       absl::StrJoin(unheard, ", ")),
        "; end what runs before the group is restored again");
  }

  void Follow(Member& member) ABSL_LOCKS_EXCLUDED(mutex_) {
    v1::RestorePartEvent event;
    while (member.stream->Read(&event)) {
      if (event.has_kept() || event.has_failed()) member.stream->End();
      absl::MutexLock lock(&mutex_);
      if (event.has_ready()) member.phase = Member::Phase::kReady;
      if (event.has_running()) {
        member.phase = Member::Phase::kRunning;
        member.started = event.running();
      }
      if (event.has_rolled_back()) member.files = event.rolled_back();
      if (event.has_kept()) member.phase = Member::Phase::kKept;
      if (event.has_failed()) {
        member.phase = Member::Phase::kEnded;
        member.has_failed = true;
        member.why = FromProto(event.failed());
      }
    }
    absl::Status status = member.stream->Finish();
    absl::MutexLock lock(&mutex_);
    if (member.phase == Member::Phase::kKept || member.phase == Member::Phase::kEnded) return;
    member.phase = Member::Phase::kEnded;
    member.why = status.ok() ? absl::AbortedError("its daemon ended the call") : status;
  }

  void AwaitEnds() ABSL_LOCKS_EXCLUDED(mutex_) {
    auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return std::all_of(members_.begin(), members_.end(), [](const Member& member) {
        return !member.stream || member.phase == Member::Phase::kKept ||
               member.phase == Member::Phase::kEnded;
      });
    };
    absl::MutexLock lock(&mutex_);
    AwaitUntil(mutex_, absl::Condition(&over), Deadline(kEndMayTake));
  }

  void TellAll(const v1::RestorePartRequest& request) {
    for (Member& member : members_) member.stream->Write(request);
  }

  // Those that wait for others have jobs standing ready, or running, which they keep for a coordinator that
  // works on.
  void SayThatWeLive() ABSL_LOCKS_EXCLUDED(mutex_) {
    const double now = MonotonicSeconds();
    for (Member& member : members_) {
      {
        absl::MutexLock lock(&mutex_);
        if (member.phase != Member::Phase::kReady && member.phase != Member::Phase::kRunning) continue;
      }
      if (now < member.say_again_at) continue;
      member.say_again_at = now + absl::ToDoubleSeconds(kCoordinatorSaysItLives);
      member.stream->Write(v1::RestorePartRequest());
    }
  }

  absl::Status AwaitAll(Member::Phase phase, const char* state) ABSL_LOCKS_EXCLUDED(mutex_) {
    auto decided = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      bool all = true;
      for (const Member& member : members_) {
        if (member.phase == Member::Phase::kEnded) return true;
        all = all && member.phase >= phase;
      }
      return all;
    };
    for (;;) {
      SayThatWeLive();
      {
        absl::MutexLock lock(&mutex_);
        if (AwaitUntil(mutex_, absl::Condition(&decided), Deadline(kLookForCaller))) {
          for (size_t i = 0; i < members_.size(); ++i) {
            if (members_[i].phase != Member::Phase::kEnded) continue;
            return Annotate(members_[i].why, absl::StrCat("member ", i));
          }
          break;
        }
      }
      // Once some may have been kept, all are.
      if (!told_keep_ && call_.cancelled()) return absl::CancelledError("the group's restore was given up");
    }
    if (*state == '\0') return absl::OkStatus();
    for (size_t i = 0; i < members_.size(); ++i) {
      v1::GroupEvent event;
      event.mutable_member()->set_member(static_cast<uint32_t>(i));
      event.mutable_member()->set_state(state);
      reports_.Send(std::move(event));
    }
    return absl::OkStatus();
  }

  const Call& call_;
  SendingThread<v1::GroupEvent> reports_;  // the members' processes may stand still meanwhile
  bool told_go_ = false, told_keep_ = false, ended_ = false;
  absl::Mutex mutex_;
  std::vector<Member> members_;
};

}  // namespace

namespace {

// A host that no member is at is a mistake: its members would start where they were.
absl::Status CheckHostMap(const v1::RestoreGroupRequest& request, const v1::Group& group) {
  std::set<std::string> hosts;
  for (const v1::GroupPart& part : group.parts()) hosts.insert(part.member().host());
  for (const auto& [from, to] : request.host_map()) {
    if (hosts.contains(from)) continue;
    std::vector<std::string> names;
    for (const std::string& host : hosts) names.push_back(host.empty() ? "here" : host);
    return absl::InvalidArgumentError(
        absl::StrCat("--map: no member of group ", group.reference(), " is at ", from.empty() ? "here" : from,
                     ", so nothing was restored: its members are at ", absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Groups::RestoreGroup(const Call& call, const v1::RestoreGroupRequest& request,
                                  const EventSink<v1::GroupEvent>& send) {
  RK_RETURN_IF_ERROR(MayUse(call));
  if (request.rollback().dry_run()) {
    return absl::InvalidArgumentError(
        "a group's restore has no dry run: ask for one of each member's image (`rekindle restore "
        "--dry-run`)");
  }
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(std::string reference, store::NormalizeReference(request.reference()));
  RK_ASSIGN_OR_RETURN(v1::Group group, records_.FindByReference(reference));
  RK_RETURN_IF_ERROR(CheckHostMap(request, group));
  std::vector<absl::Status> told(static_cast<size_t>(group.parts_size()));
  if (!IsComplete(group) && DecisionAbout(group.id()) != v1::GetGroupDecisionResponse::PENDING) {
    RK_ASSIGN_OR_RETURN(group, TellMembers(group, call.cancelled, &told));
  }
  std::vector<std::shared_ptr<GroupPeer>> peers;
  std::vector<std::string> who;
  std::vector<absl::StatusOr<v1::SettlePartResponse>> answers(static_cast<size_t>(group.parts_size()));
  std::vector<PeerCall> looks;
  for (int i = 0; i < group.parts_size(); ++i) {
    const size_t index = static_cast<size_t>(i);
    const v1::GroupPart& part = group.parts(i);
    auto mapped = request.host_map().find(part.member().host());
    const std::string host = mapped == request.host_map().end() ? part.member().host() : mapped->second;
    who.push_back(absl::StrCat("restoring group ", reference, ": member ", i, " at ",
                               host.empty() ? "this daemon" : host));
    // Of one that has lost its image another node may have a copy.
    if (!part.settled() || (part.lost() && mapped == request.host_map().end())) {
      return absl::FailedPreconditionError(absl::StrCat(
          who.back(), part.lost() ? " has lost its image" : " can't be told yet that it is committed",
          told[index].ok() ? "" : absl::StrCat(" (", told[index].message(), ")"),
          ": the set is not complete, so nothing is restored; `rekindle group ls` shows it"));
    }
    RK_ASSIGN_OR_RETURN(std::shared_ptr<GroupPeer> peer, ConnectToPeer(peers_, host));
    peers.push_back(peer);
    looks.push_back({host, [&answers, &group, i, peer] {
                       v1::SettlePartRequest look;
                       look.set_id(group.id());
                       look.set_member(static_cast<uint32_t>(i));
                       auto& answer = answers[static_cast<size_t>(i)] = peer->SettlePart(look);
                       return answer.status();
                     }});
  }
  CallPeers(looks, call.cancelled);
  if (call.IsCancelled())
    return absl::CancelledError("the group's restore was given up; nothing was restored");
  std::vector<std::string> images;  // where they are, which may be copies
  for (int i = 0; i < group.parts_size(); ++i) {
    const size_t index = static_cast<size_t>(i);
    const v1::GroupPart& part = group.parts(i);
    const absl::StatusOr<v1::SettlePartResponse>& answer = answers[index];
    // One that was not asked comes behind one at its host that could not be.
    if (!answer.ok()) return Annotate(answer.status(), who[index]);
    if (answer->state() != v1::SettlePartResponse::COMMITTED ||
        (answer->digest() != part.digest() && answer->origin() != part.digest())) {
      AskAllSoon(absl::ZeroDuration());  // `group ls` is to show it
      return absl::FailedPreconditionError(
          absl::StrCat(who[index], " has no image ", part.image(),
                       " of this group in its store: the set is not complete, "
                       "so nothing is restored"));
    }
    images.push_back(absl::StrCat(NameOfReference(answer->image()), "@", answer->digest()));
  }

  v1::GroupEvent event;
  {
    GroupRestore restore(call, send, peers.size());
    for (int i = 0; i < group.parts_size(); ++i) {
      v1::RestorePartRequest begin;
      begin.mutable_restore()->set_id(group.id());
      begin.mutable_restore()->set_member(static_cast<uint32_t>(i));
      begin.mutable_restore()->set_coordinator_says_it_lives(true);
      v1::RestoreRequest* one = begin.mutable_restore()->mutable_restore();
      one->set_image(images[static_cast<size_t>(i)]);
      one->set_tcp_close(request.tcp_close());
      one->set_ignore_mismatch(request.ignore_mismatch());
      if (request.has_rollback()) *one->mutable_rollback() = request.rollback();
      if (!request.log_directory().empty())
        one->set_log(absl::StrCat(request.log_directory(), "/", i, ".log"));
      RK_RETURN_IF_ERROR(
          Annotate(restore.Start(static_cast<size_t>(i), std::move(peers[static_cast<size_t>(i)]), begin),
                   absl::StrCat("restoring group ", reference)));
    }
    RK_RETURN_IF_ERROR(Annotate(restore.Run(), absl::StrCat("restoring group ", reference)));
    // What was not done is told also where nothing was asked for.
    bool tells_files = request.has_rollback();
    for (int i = 0; i < group.parts_size(); ++i) {
      *event.mutable_restored()->add_members() = restore.TakeStarted(static_cast<size_t>(i));
      *event.mutable_restored()->add_files() = restore.TakeFiles(static_cast<size_t>(i));
      tells_files = tells_files || event.restored().files(i).files_size() > 0;
    }
    if (!tells_files) event.mutable_restored()->clear_files();
  }
  Log(LogLevel::kInfo, absl::StrCat("group ", reference, " (", group.id(), ") runs again"));
  group.set_complete(true);
  *event.mutable_restored()->mutable_group() = std::move(group);
  event.mutable_restored()->set_total_seconds(watch.seconds());
  send(event);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
