#include "daemon/groups.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cause_in_words.h"
#include "base/error_cause.h"
#include "base/image_labels.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "ckpt/standing_job.h"
#include "dedup_store/image_stream.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

// `id`: of the store that is meant; empty: this one.
absl::Status CheckIsStore(const store::Store& store, const std::string& id, absl::string_view what) {
  if (id.empty() || id == store.id()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " another store (", id, ") than the one at ", store.path(), " (", store.id(),
                   "), which knows nothing of it: is its file system mounted?"));
}

// Of a record that can't be read. A newer version's has its cure in the message.
std::string CureOf(const absl::Status& why) {
  if (absl::IsFailedPrecondition(why)) return "";
  return ". Put it back from a copy, or remove it: members that have not published their images give them up "
         "then";
}

// Between two rounds of asking and telling.
constexpr absl::Duration kResolveEvery = absl::Seconds(2);
// Whether they have their images members are asked again in each of so many rounds: they may be removed
// there, and a store may come back.
constexpr uint64_t kRoundsBetweenAll = 30;
// For who asks what there is: a member that does not answer must not keep it waiting.
constexpr absl::Duration kAskingAllMayTake = absl::Seconds(1);
constexpr size_t kMostHostsAtOnce = 32;
// For captures that are given up before their freeze.
constexpr absl::Duration kYieldingMayTake = absl::Seconds(10);

bool IsPartOf(const store::ImageInfo& info, const std::string& id, uint32_t member) {
  return LabelOf(info.labels, v1::kGroupIdLabel) == id &&
         LabelOf(info.labels, v1::kGroupMemberLabel) == absl::StrCat(member);
}

void Describe(const store::ImageInfo& info, v1::SettlePartResponse::State state,
              v1::SettlePartResponse* response) {
  response->set_state(state);
  response->set_image(info.reference);
  response->set_digest(info.digest);
  response->set_origin(store::OriginOf(info));
}

// The job of a part that is decided, if it is to end with that.
absl::Status EndJobOf(const store::Store& store, const std::string& prepared_id) {
  RK_ASSIGN_OR_RETURN(std::vector<store::PreparedImage> prepared, store.ListPrepared());
  for (const store::PreparedImage& image : prepared) {
    if (image.id != prepared_id || !image.info.labels.contains(v1::kGroupEndsJobLabel)) continue;
    return Annotate(ckpt::EndJob(LabelOf(image.info.labels, v1::kJobIdLabel)),
                    absl::StrCat("ending the job of '", image.info.reference, "'"));
  }
  return absl::OkStatus();
}

// The job of a published image, if the runtime hook has held it until one was taken.
void LetJobGoOn(const store::ImageInfo& image) {
  if (image.labels.contains(v1::kGroupEndsJobLabel)) return;
  if (absl::Status let = ckpt::LetHeldJobGoOn(LabelOf(image.labels, v1::kJobIdLabel)); !let.ok())
    Log(LogLevel::kWarning, absl::StrCat("the job of '", image.reference, "' is held: ", let.message()));
}

bool AllKnow(const v1::Group& group) {
  return std::all_of(group.parts().begin(), group.parts().end(),
                     [](const v1::GroupPart& part) { return part.settled(); });
}

}  // namespace

void CallPeers(const std::vector<PeerCall>& calls, const std::function<bool()>& stop) {
  std::map<std::string, std::vector<const PeerCall*>> of_hosts;
  for (const PeerCall& call : calls) of_hosts[call.host].push_back(&call);
  std::vector<const std::vector<const PeerCall*>*> hosts;
  for (const auto& [host, its] : of_hosts) hosts.push_back(&its);
  absl::Mutex asking;
  const auto stops = [&] {
    absl::MutexLock lock(&asking);
    return stop && stop();
  };
  std::atomic<size_t> next{0};
  InParallel(std::min(kMostHostsAtOnce, hosts.size()), [&](size_t) {
    for (size_t i; (i = next.fetch_add(1)) < hosts.size();) {
      for (const PeerCall* call : *hosts[i]) {
        if (stops()) return;
        const absl::Status made = call->make();
        // A host that does not answer costs each call its whole limit.
        if (absl::IsAborted(made) || absl::IsDeadlineExceeded(made)) break;
      }
    }
  });
}

std::string MemberReference(const std::string& group, uint32_t member) {
  const size_t colon = group.rfind(':');
  return absl::StrCat(group.substr(0, colon), "/", member, group.substr(colon));
}

std::string PreparedId(const std::string& group_id, uint32_t member) {
  return absl::StrCat(group_id, ".", member);
}

bool IsComplete(const v1::Group& group) {
  return !group.removed() &&
         std::all_of(group.parts().begin(), group.parts().end(),
                     [](const v1::GroupPart& part) { return part.settled() && !part.lost(); });
}

v1::PartFailure ToProto(const absl::Status& status) {
  v1::PartFailure failure;
  failure.set_code(static_cast<int>(status.code()));
  failure.set_message(std::string(status.message()));
  failure.set_error_number(ErrnoOf(status));
  failure.set_cause(CauseOf(status));
  return failure;
}

absl::Status FromProto(const v1::PartFailure& failure) {
  if (failure.code() == 0) return absl::InternalError("a member failed without saying why");
  absl::Status status(static_cast<absl::StatusCode>(failure.code()), failure.message());
  if (!failure.has_error_number()) return WithCauseInWords(std::move(status));
  return WithErrno(WithCause(std::move(status), failure.cause()), failure.error_number());
}

Groups::Groups(Node& node, GroupPeerOptions peers)
    : node_(node), peers_(std::move(peers)), records_(absl::StrCat(node.options().store, "/groups")) {}

Groups::InWork::InWork(Groups& groups, std::string id, UniqueFd work)
    : groups_(groups), id_(std::move(id)), work_(std::move(work)) {
  absl::MutexLock lock(&groups_.mutex_);
  groups_.in_work_.insert(id_);
}

Groups::InWork::~InWork() {
  if (forever_) {
    work_.Release();  // goes with the process
    return;
  }
  groups_.records_.EndWork(id_, std::move(work_));
  absl::MutexLock lock(&groups_.mutex_);
  groups_.in_work_.erase(groups_.in_work_.find(id_));
}

absl::Status Groups::MayUse(const Call& call) const {
  return node_.policy().MayAdminister(call.caller, "use group checkpoints");
}

void Groups::Start() {
  EndForsakenJobs();
  resolver_ = std::thread([this] {
    for (uint64_t round = 0;; ++round) {
      uint64_t all_wanted = 0;
      bool ask_all = false;
      {
        absl::MutexLock lock(&mutex_);
        all_wanted = all_wanted_;
        ask_all = all_wanted != all_asked_ || round % kRoundsBetweenAll == 0;
      }
      ResolveAll(ask_all);
      absl::MutexLock lock(&mutex_);
      all_asked_ = all_wanted;
      auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopping_ || soon_ || all_wanted_ != all_asked_;
      };
      AwaitUntil(mutex_, absl::Condition(&wanted), Deadline(kResolveEvery));
      if (stopping_) return;
      soon_ = false;
    }
  });
}

void Groups::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (resolver_.joinable()) resolver_.join();
}

void Groups::ResolveSoon() {
  absl::MutexLock lock(&mutex_);
  soon_ = true;
}

Groups::Yielding::Yielding(Groups& groups, std::function<bool()> yield)
    : groups_(groups), yield_(std::move(yield)) {
  absl::MutexLock lock(&groups_.mutex_);
  groups_.yielding_.insert(this);
}

Groups::Yielding::~Yielding() {
  absl::MutexLock lock(&groups_.mutex_);
  groups_.yielding_.erase(this);
}

void Groups::YieldJobs() {
  absl::MutexLock lock(&mutex_);
  for (Yielding* part : yielding_) part->yielded_ = part->yielded_ || part->yield_();
  auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return std::none_of(yielding_.begin(), yielding_.end(),
                        [](const Yielding* part) { return part->yielded_; });
  };
  AwaitUntil(mutex_, absl::Condition(&none), Deadline(kYieldingMayTake));
}

void Groups::AskAllSoon(absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  const uint64_t mine = ++all_wanted_;
  auto asked = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || all_asked_ >= mine; };
  AwaitUntil(mutex_, absl::Condition(&asked), Deadline(patience));
}

v1::GetGroupDecisionResponse::Decision Groups::DecisionAbout(const std::string& id) const {
  {
    // First: a group in work leaves this set only when its record is there, or never will be.
    absl::MutexLock lock(&mutex_);
    if (in_work_.contains(id)) return v1::GetGroupDecisionResponse::PENDING;
  }
  // So does one that another daemon with this store has in work.
  if (records_.IsInWork(id).value_or(true)) return v1::GetGroupDecisionResponse::PENDING;
  absl::StatusOr<v1::Group> group = records_.Find(id);
  if (absl::IsNotFound(group.status())) return v1::GetGroupDecisionResponse::ABORT;
  // What can't be read is not known.
  if (!group.ok()) return v1::GetGroupDecisionResponse::PENDING;
  return group->removed() ? v1::GetGroupDecisionResponse::ABORT : v1::GetGroupDecisionResponse::COMMIT;
}

absl::Status Groups::GetGroupDecision(const Call& call, const v1::GetGroupDecisionRequest& request,
                                      v1::GetGroupDecisionResponse* response) {
  RK_RETURN_IF_ERROR(MayUse(call));
  RK_RETURN_IF_ERROR(CheckGroupId(request.id()));
  if (!request.store().empty()) {
    RK_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kWrite));
    RK_RETURN_IF_ERROR(CheckIsStore(*store, request.store(), "the group was taken with"));
  }
  response->set_decision(DecisionAbout(request.id()));
  return absl::OkStatus();
}

absl::Status Groups::SettlePart(const Call& call, const v1::SettlePartRequest& request,
                                v1::SettlePartResponse* response) {
  RK_RETURN_IF_ERROR(MayUse(call));
  RK_RETURN_IF_ERROR(CheckGroupId(request.id()));
  RK_ASSIGN_OR_RETURN(*response, Settle(request));
  return absl::OkStatus();
}

absl::StatusOr<v1::SettlePartResponse> Groups::Settle(const v1::SettlePartRequest& request) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kWrite));
  RK_RETURN_IF_ERROR(CheckIsStore(*store, request.store(), "the group's image is in"));
  const std::string prepared_id = PreparedId(request.id(), request.member());
  const bool remove =
      request.action() == v1::SettlePartRequest::ABORT || request.action() == v1::SettlePartRequest::REMOVE;
  v1::SettlePartResponse response;
  if (request.action() == v1::SettlePartRequest::COMMIT) {
    // Before it is published: if this fails, or is interrupted, it is done again.
    RK_RETURN_IF_ERROR(EndJobOf(*store, prepared_id));
    absl::StatusOr<store::ImageInfo> published = store->PublishPrepared(prepared_id);
    if (published.ok()) {
      Log(LogLevel::kInfo,
          absl::StrCat("image '", published->reference, "' of group ", request.id(), " is there"));
      LetJobGoOn(*published);
      Describe(*published, v1::SettlePartResponse::COMMITTED, &response);
      return response;
    }
    if (!absl::IsNotFound(published.status())) return published.status();
  }
  if (remove) {
    absl::Status removed = store->RemovePrepared(prepared_id);
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
    if (removed.ok()) {
      Log(LogLevel::kInfo,
          absl::StrCat("the stored part ", request.member(), " of group ", request.id(), " was removed"));
    }
  } else {
    RK_ASSIGN_OR_RETURN(std::vector<store::PreparedImage> prepared, store->ListPrepared());
    for (const store::PreparedImage& image : prepared) {
      if (image.id != prepared_id) continue;
      Describe(image.info, v1::SettlePartResponse::IN_DOUBT, &response);
      return response;
    }
  }
  RK_ASSIGN_OR_RETURN(std::vector<store::ImageInfo> images, store->List([&](const store::ImageInfo& info) {
    return IsPartOf(info, request.id(), request.member());
  }));
  for (const store::ImageInfo& info : images) {
    if (request.action() != v1::SettlePartRequest::REMOVE) {
      Describe(info, v1::SettlePartResponse::COMMITTED, &response);
      return response;
    }
    absl::Status removed = store->RemoveExactly(info);
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
    response.set_image(info.reference);
  }
  return response;
}

absl::Status Groups::TellMember(const v1::Group& group, int index) {
  const v1::GroupPart& part = group.parts(index);
  RK_ASSIGN_OR_RETURN(std::shared_ptr<GroupPeer> peer, ConnectToPeer(peers_, part.member().host()));
  v1::SettlePartRequest request;
  request.set_id(group.id());
  request.set_member(static_cast<uint32_t>(index));
  request.set_action(group.removed() ? v1::SettlePartRequest::REMOVE : v1::SettlePartRequest::COMMIT);
  request.set_store(part.store());
  const absl::StatusOr<v1::SettlePartResponse> answer = peer->SettlePart(request);
  if (absl::IsFailedPrecondition(answer.status())) {
    absl::MutexLock lock(&mutex_);
    if (with_other_stores_.insert(PreparedId(group.id(), static_cast<uint32_t>(index))).second) {
      Log(LogLevel::kError,
          absl::StrCat("group ", group.reference(), " (", group.id(), "): member ", index, " at ",
                       part.member().host(), " can't be told what was decided, or asked for its image: ",
                       answer.status().message()));
    }
  }
  RK_RETURN_IF_ERROR(answer.status());
  const bool has_it = answer->state() == v1::SettlePartResponse::COMMITTED;
  // What was lost is there again only if it is the very image.
  const bool lost =
      !group.removed() &&
      (!has_it || (part.lost() && answer->digest() != part.digest() && answer->origin() != part.digest()));
  if (lost && !part.lost()) {
    Log(LogLevel::kError,
        absl::StrCat("group ", group.reference(), " (", group.id(), ") ",
                     part.settled() ? "is not complete any more" : "can't become complete", ": member ",
                     index, " at ", part.member().host(), " has no image of it any more"));
  }
  if (part.settled() && lost == part.lost()) return absl::OkStatus();
  return records_.Update(group.id(), [&](v1::Group& record) {
    if (record.removed() != group.removed()) return;  // meanwhile: it is to be told something else
    record.mutable_parts(index)->set_settled(true);
    record.mutable_parts(index)->set_lost(lost);
  });
}

absl::StatusOr<v1::Group> Groups::TellMembers(const v1::Group& group, const std::function<bool()>& stop,
                                              std::vector<absl::Status>* told) {
  told->assign(static_cast<size_t>(group.parts_size()), absl::OkStatus());
  std::vector<PeerCall> calls;
  for (int i = 0; i < group.parts_size(); ++i) {
    if (group.parts(i).settled() && !group.parts(i).lost()) continue;
    calls.push_back({group.parts(i).member().host(),
                     [&, i] { return (*told)[static_cast<size_t>(i)] = TellMember(group, i); }});
  }
  CallPeers(calls, stop);
  return ForgetIfAllKnow(group.id());
}

absl::StatusOr<v1::Group> Groups::ForgetIfAllKnow(const std::string& id) {
  RK_ASSIGN_OR_RETURN(v1::Group group, records_.Find(id));
  if (group.removed() && AllKnow(group)) {
    RK_RETURN_IF_ERROR(records_.Forget(id));
    return absl::NotFoundError(absl::StrCat("group ", group.reference(), " is removed"));
  }
  return group;
}

absl::Status Groups::AskCoordinator(const store::PreparedImage& image) {
  const std::string id = LabelOf(image.info.labels, v1::kGroupIdLabel);
  const std::string coordinator = LabelOf(image.info.labels, v1::kGroupCoordinatorLabel);
  uint32_t member = 0;
  if (id.empty() || !absl::SimpleAtoi(LabelOf(image.info.labels, v1::kGroupMemberLabel), &member)) {
    return absl::OkStatus();  // somebody else's
  }
  v1::GetGroupDecisionResponse answer;
  if (coordinator.empty()) {
    answer.set_decision(DecisionAbout(id));
  } else {
    RK_ASSIGN_OR_RETURN(std::shared_ptr<GroupPeer> peer, ConnectToPeer(peers_, coordinator));
    v1::GetGroupDecisionRequest request;
    request.set_id(id);
    request.set_store(LabelOf(image.info.labels, v1::kGroupCoordinatorStoreLabel));
    RK_ASSIGN_OR_RETURN(answer, peer->GetGroupDecision(request));
  }
  if (answer.decision() == v1::GetGroupDecisionResponse::PENDING) {
    return absl::UnavailableError("its coordinator has not decided yet");
  }
  // To take it for an abort would remove the image.
  if (!v1::GetGroupDecisionResponse::Decision_IsValid(answer.decision())) {
    return absl::UnimplementedError(absl::StrCat("its coordinator answers ",
                                                 static_cast<int>(answer.decision()),
                                                 ", which this version does not know: upgrade this daemon"));
  }
  const bool commit = answer.decision() == v1::GetGroupDecisionResponse::COMMIT;
  const std::string machine = LabelOf(image.info.labels, v1::kGroupMachineLabel);
  if (commit && image.info.labels.contains(v1::kGroupEndsJobLabel) && IsOtherMachine(machine)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it is committed, and its job ends with that, which only the daemon on its machine (", machine,
        ") can do; if that is gone for good, 'rekindle group resolve ", id, " commit' publishes it here"));
  }
  Log(LogLevel::kInfo, absl::StrCat("group ", LabelOf(image.info.labels, v1::kGroupLabel), " (", id,
                                    "): its coordinator says ", commit ? "commit" : "abort"));
  v1::SettlePartRequest settle;
  settle.set_id(id);
  settle.set_member(member);
  settle.set_action(commit ? v1::SettlePartRequest::COMMIT : v1::SettlePartRequest::ABORT);
  return Settle(settle).status();
}

void Groups::TellOfDoubt(const store::PreparedImage& image, const absl::Status& asked) {
  const bool is_decided_later = absl::IsUnavailable(asked);
  bool is_new = false;
  {
    absl::MutexLock lock(&mutex_);
    if (asked.ok()) {
      in_doubt_.erase(image.id);
    } else if (!is_decided_later) {
      // Another trouble than before is told too.
      is_new = std::exchange(in_doubt_[image.id], asked.code()) != asked.code();
    }
  }
  if (asked.ok()) return;
  const std::string coordinator = LabelOf(image.info.labels, v1::kGroupCoordinatorLabel);
  Log(!is_new ? LogLevel::kDebug : LogLevel::kWarning,
      absl::StrCat(
          "image '", image.info.reference, "' of group ", LabelOf(image.info.labels, v1::kGroupLabel), " (",
          LabelOf(image.info.labels, v1::kGroupIdLabel), ") stays in doubt until its coordinator",
          coordinator.empty() ? "" : " at ", coordinator, " says what was decided: ", asked.message()));
}

void Groups::TellOfUnreadable(const std::map<std::string, absl::Status>& unreadable) {
  for (const auto& [id, why] : unreadable) {
    if (unreadable_.contains(id)) continue;
    Log(LogLevel::kError, absl::StrCat("group ", id, " is left as it is, and its members in doubt: ",
                                       why.message(), CureOf(why)));
  }
  unreadable_ = unreadable;
}

void Groups::ResolveAll(bool ask_all) {
  std::vector<JobRecord> kept;
  {
    absl::MutexLock lock(&mutex_);
    kept.swap(kept_);
  }
  for (const JobRecord& job : kept) NoteKept(job);
  absl::StatusOr<std::shared_ptr<store::Store>> store = node_.OpenStore(Node::Access::kWrite);
  if (!store.ok()) return;
  records_.ForgetDeadWork();
  const auto stop = [this] {
    absl::MutexLock lock(&mutex_);
    return stopping_;
  };
  if (absl::StatusOr<std::vector<store::PreparedImage>> prepared = (*store)->ListPrepared(); prepared.ok()) {
    std::vector<PeerCall> calls;
    for (const store::PreparedImage& image : *prepared) {
      calls.push_back({LabelOf(image.info.labels, v1::kGroupCoordinatorLabel), [&image, this] {
                         absl::Status asked = AskCoordinator(image);
                         TellOfDoubt(image, asked);
                         return asked;
                       }});
    }
    CallPeers(calls, stop);
  }
  std::map<std::string, absl::Status> unreadable;
  absl::StatusOr<std::vector<v1::Group>> groups = records_.List(&unreadable);
  if (!groups.ok()) return Log(LogLevel::kError, groups.status().message());
  TellOfUnreadable(unreadable);
  std::set<std::string> names;
  std::vector<PeerCall> calls;
  std::vector<std::string> removed_ones;
  for (const v1::Group& group : *groups) {
    // The newer of a name has taken its place, and the coordinator died before it could say so.
    if (!group.removed() && !names.insert(group.reference()).second &&
        DecisionAbout(group.id()) == v1::GetGroupDecisionResponse::COMMIT) {
      Log(LogLevel::kInfo, absl::StrCat("group ", group.reference(), " (", group.id(),
                                        ") is removed: a newer one has its name"));
      absl::Status removed = records_.MarkRemoved(group.id());
      if (!removed.ok()) Log(LogLevel::kWarning, removed.message());
      continue;
    }
    // One whose call is in work tells its members itself.
    if (DecisionAbout(group.id()) == v1::GetGroupDecisionResponse::PENDING) continue;
    if (group.removed()) removed_ones.push_back(group.id());
    for (int i = 0; i < group.parts_size(); ++i) {
      const v1::GroupPart& part = group.parts(i);
      if (part.settled() && (group.removed() || !ask_all)) continue;
      calls.push_back({part.member().host(), [&group, i, this] {
                         absl::Status told = TellMember(group, i);
                         if (!told.ok()) {
                           Log(LogLevel::kDebug, absl::StrCat("group ", group.reference(), ", member ", i,
                                                              ": ", told.message()));
                         }
                         return told;
                       }});
    }
  }
  CallPeers(calls, stop);
  for (const std::string& id : removed_ones) ForgetIfAllKnow(id).status().IgnoreError();
}

absl::Status Groups::ListGroups(const Call& call, const v1::ListGroupsRequest&,
                                v1::ListGroupsResponse* response) {
  RK_RETURN_IF_ERROR(MayUse(call));
  std::map<std::string, absl::Status> unreadable;
  RK_ASSIGN_OR_RETURN(std::vector<v1::Group> groups, records_.List(&unreadable));
  if (!groups.empty()) {
    AskAllSoon(kAskingAllMayTake);
    RK_ASSIGN_OR_RETURN(groups, records_.List(&unreadable));
  }
  for (const auto& [id, why] : unreadable)
    response->add_warnings(absl::StrCat("group ", id, " is left out: ", why.message(), CureOf(why)));
  for (v1::Group& group : groups) {
    group.set_complete(IsComplete(group));
    *response->add_groups() = std::move(group);
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(std::vector<store::PreparedImage> prepared, store->ListPrepared());
  for (const store::PreparedImage& image : prepared) {
    const std::string id = LabelOf(image.info.labels, v1::kGroupIdLabel);
    if (id.empty()) continue;
    v1::PartInDoubt* part = response->add_in_doubt();
    part->set_id(id);
    part->set_reference(LabelOf(image.info.labels, v1::kGroupLabel));
    part->set_image(image.info.reference);
    part->set_coordinator(LabelOf(image.info.labels, v1::kGroupCoordinatorLabel));
    part->set_created_unix_ns(image.info.created_unix_ns);
  }
  return absl::OkStatus();
}

absl::Status Groups::RemoveGroup(const Call& call, const v1::RemoveGroupRequest& request,
                                 v1::RemoveGroupResponse* response) {
  RK_RETURN_IF_ERROR(MayUse(call));
  RK_ASSIGN_OR_RETURN(std::string reference, store::NormalizeReference(request.reference()));
  RK_ASSIGN_OR_RETURN(v1::Group group, records_.FindByReference(reference));
  if (DecisionAbout(group.id()) == v1::GetGroupDecisionResponse::PENDING) {
    return absl::FailedPreconditionError(
        absl::StrCat("group ", reference, " is being committed: try again when its checkpoint has ended"));
  }
  RK_RETURN_IF_ERROR(records_.MarkRemoved(group.id()));
  RK_ASSIGN_OR_RETURN(group, records_.Find(group.id()));
  response->set_id(group.id());
  std::vector<absl::Status> told;
  absl::StatusOr<v1::Group> left = TellMembers(group, call.cancelled, &told);
  if (absl::IsNotFound(left.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(left.status());
  for (int i = 0; i < left->parts_size(); ++i) {
    if (left->parts(i).settled()) continue;
    const absl::Status& why = told[static_cast<size_t>(i)];
    response->add_warnings(absl::StrCat("member ", i, " at ", left->parts(i).member().host(),
                                        " can't be told: its image goes when it can", why.ok() ? "" : ": ",
                                        why.message()));
  }
  return absl::OkStatus();
}

absl::Status Groups::ResolveGroup(const Call& call, const v1::ResolveGroupRequest& request,
                                  v1::ResolveGroupResponse* response) {
  RK_RETURN_IF_ERROR(MayUse(call));
  RK_RETURN_IF_ERROR(CheckGroupId(request.id()));
  if (DecisionAbout(request.id()) == v1::GetGroupDecisionResponse::PENDING) {
    return absl::FailedPreconditionError(absl::StrCat("a daemon of this store is at work on group ",
                                                      request.id(), ": wait until its checkpoint has ended"));
  }
  absl::StatusOr<v1::Group> record = records_.Find(request.id());
  if (!absl::IsNotFound(record.status())) {
    RK_RETURN_IF_ERROR(record.status());
    if (!record->removed() || request.commit()) {
      return absl::FailedPreconditionError(
          absl::StrCat("group ", record->reference(), " was decided here: it is ",
                       record->removed() ? "removed" : "committed",
                       ", and members that can't be reached follow when they can. `rekindle group rm` "
                       "removes a group; after "
                       "it `rekindle group resolve ",
                       request.id(), " abort` forgets members that will never be reached"));
    }
    RK_RETURN_IF_ERROR(records_.Forget(request.id()));
    response->set_forgotten(true);
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kWrite));
  RK_ASSIGN_OR_RETURN(std::vector<store::PreparedImage> prepared, store->ListPrepared());
  for (const store::PreparedImage& image : prepared) {
    if (LabelOf(image.info.labels, v1::kGroupIdLabel) != request.id()) continue;
    if (request.commit()) RK_RETURN_IF_ERROR(EndJobOf(*store, image.id));
    RK_RETURN_IF_ERROR(request.commit() ? store->PublishPrepared(image.id).status()
                                        : store->RemovePrepared(image.id));
    if (request.commit()) LetJobGoOn(image.info);
    response->add_images(image.info.reference);
    const std::string machine = LabelOf(image.info.labels, v1::kGroupMachineLabel);
    if (request.commit() && image.info.labels.contains(v1::kGroupEndsJobLabel) && IsOtherMachine(machine)) {
      response->add_warnings(absl::StrCat("the job of '", image.info.reference,
                                          "' was to end (--stop), and may "
                                          "run on another machine (",
                                          machine, "): end it there"));
    }
    Log(LogLevel::kWarning,
        absl::StrCat("an operator has decided about group ", request.id(), ": '", image.info.reference,
                     "' is ", request.commit() ? "published" : "removed"));
  }
  if (response->images().empty() && !response->forgotten()) {
    return absl::NotFoundError(absl::StrCat("nothing of group ", request.id(),
                                            " is in doubt here; `rekindle group ls` shows what is"));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
