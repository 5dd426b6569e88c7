// Group checkpoints on this node: as coordinator, and as member of others'. docs/groups.md has the protocol.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "daemon/call.h"
#include "daemon/group_peers.h"
#include "daemon/group_records.h"
#include "daemon/job_registry.h"
#include "daemon/node.h"
#include "dedup_store/store.h"
#include "rekindle/v1/group.pb.h"

namespace rekindle::daemon {

// How soon it is seen that the caller has gone.
inline constexpr absl::Duration kLookForCaller = absl::Milliseconds(50);

// The other end of a call with messages both ways, on the side that serves it. One thread may read while
// others write.
template <typename Request, typename Event>
struct Caller2Way {
  std::function<bool(Request*)> read;       // false: there will be no more
  std::function<bool(const Event&)> write;  // in turn
  std::function<void()> hang_up;            // ends all reading; what was written before may not arrive
};
using PartCaller = Caller2Way<v1::PartRequest, v1::PartEvent>;
using RestorePartCaller = Caller2Way<v1::RestorePartRequest, v1::RestorePartEvent>;

// Thread-safe. All calls are for administrators: PermissionDenied.
class Groups {
 public:
  // `node` outlives it, and its store is there.
  Groups(Node& node, GroupPeerOptions peers);
  // No call may be in work any more.
  ~Groups() { Stop(); }

  // Ends what an earlier daemon restored and did not hear that it is kept. From now on parts in doubt, and
  // members that have not done as decided, are asked and told, until Stop.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Members whose jobs have not been told to freeze give their groups up, so that others can take images of
  // these jobs at once. Returns when they have.
  void YieldJobs() ABSL_LOCKS_EXCLUDED(mutex_);

  // group_checkpoint.cc
  absl::Status CheckpointGroup(const Call& call, const v1::CheckpointGroupRequest& request,
                               const EventSink<v1::GroupEvent>& send);
  // group_restore.cc
  absl::Status RestoreGroup(const Call& call, const v1::RestoreGroupRequest& request,
                            const EventSink<v1::GroupEvent>& send);
  // group_part.cc
  absl::Status TakePart(const Call& call, const PartCaller& coordinator);
  // group_restore_part.cc
  absl::Status RestorePart(const Call& call, const RestorePartCaller& coordinator);

  // groups.cc
  absl::Status ListGroups(const Call& call, const v1::ListGroupsRequest& request,
                          v1::ListGroupsResponse* response);
  absl::Status RemoveGroup(const Call& call, const v1::RemoveGroupRequest& request,
                           v1::RemoveGroupResponse* response);
  absl::Status ResolveGroup(const Call& call, const v1::ResolveGroupRequest& request,
                            v1::ResolveGroupResponse* response);
  absl::Status SettlePart(const Call& call, const v1::SettlePartRequest& request,
                          v1::SettlePartResponse* response);
  absl::Status GetGroupDecision(const Call& call, const v1::GetGroupDecisionRequest& request,
                                v1::GetGroupDecisionResponse* response);

 private:
  // A group that is being captured: whoever asks is told to wait.
  class InWork {
   public:
    // `work`: of GroupRecords::BeginWork.
    InWork(Groups& groups, std::string id, UniqueFd work);
    ~InWork();
    // For as long as the daemon lives.
    void Forever() { forever_ = true; }

   private:
    Groups& groups_;
    const std::string id_;
    UniqueFd work_;
    bool forever_ = false;
  };

  // A member whose job is being captured. `yield`: gives it up unless it is to freeze, and says whether.
  class Yielding {
   public:
    Yielding(Groups& groups, std::function<bool()> yield);
    ~Yielding();

   private:
    friend class Groups;
    Groups& groups_;
    const std::function<bool()> yield_;
    bool yielded_ = false;  // under the mutex
  };

  class PartCall;

  absl::Status MayUse(const Call& call) const;
  v1::GetGroupDecisionResponse::Decision DecisionAbout(const std::string& id) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<v1::SettlePartResponse> Settle(const v1::SettlePartRequest& request);
  // Tells the member what was decided, and notes that it knows. FailedPrecondition: it has another store now.
  absl::Status TellMember(const v1::Group& group, int part) ABSL_LOCKS_EXCLUDED(mutex_);
  // All members of this job's group run: no later daemon ends it. What can't be written now (a full disk) is
  // tried again in each of the resolver's rounds.
  void NoteKept(const JobRecord& job) ABSL_LOCKS_EXCLUDED(mutex_);
  // The record as it is once all members that can be reached know, or `stop` says so; NotFound: it was a
  // removed one's. `told`: what each said that did not know, or has lost its image. `stop`: any thread.
  absl::StatusOr<v1::Group> TellMembers(const v1::Group& group, const std::function<bool()>& stop,
                                        std::vector<absl::Status>* told);
  // The record, or NotFound: it was a removed one's, and all members know.
  absl::StatusOr<v1::Group> ForgetIfAllKnow(const std::string& id);
  void EndForsakenJobs();
  absl::Status AskCoordinator(const store::PreparedImage& image);
  // `ask_all`: also members that have done as decided, whether they still have their images.
  void ResolveAll(bool ask_all) ABSL_LOCKS_EXCLUDED(mutex_);
  // Once each, unless it is only not decided yet.
  void TellOfDoubt(const store::PreparedImage& image, const absl::Status& asked) ABSL_LOCKS_EXCLUDED(mutex_);
  void TellOfUnreadable(const std::map<std::string, absl::Status>& unreadable);
  void ResolveSoon() ABSL_LOCKS_EXCLUDED(mutex_);
  // Has all members asked for their images soon. Returns when they have been, or after `patience`.
  void AskAllSoon(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);

  Node& node_;
  const GroupPeerOptions peers_;
  GroupRecords records_;
  mutable absl::Mutex mutex_;
  std::multiset<std::string> in_work_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool soon_ ABSL_GUARDED_BY(mutex_) = false;
  // How often somebody wanted all members asked, and up to which of these they have been.
  uint64_t all_wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t all_asked_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, absl::Status> unreadable_;  // the resolver's: told of
  // What the log has been told of: parts in doubt, with why, and members that have another store, by their
  // ids.
  std::map<std::string, absl::StatusCode> in_doubt_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> with_other_stores_ ABSL_GUARDED_BY(mutex_);
  std::set<Yielding*> yielding_ ABSL_GUARDED_BY(mutex_);
  // Jobs of which that could not be written yet.
  std::vector<JobRecord> kept_ ABSL_GUARDED_BY(mutex_);
  std::thread resolver_;
};

// Calls at other daemons, those of one host one after the other, different ones' at the same time. Where a
// host can't be reached the rest of its calls is left out, and all that is left once `stop`, which may be
// empty, says so: it is asked on any thread, by one at a time.
struct PeerCall {
  std::string host;
  std::function<absl::Status()> make;
};
void CallPeers(const std::vector<PeerCall>& calls, const std::function<bool()>& stop);

// "name/I:tag" of the group "name:tag".
std::string MemberReference(const std::string& group, uint32_t member);
// Under which a member's image is prepared.
std::string PreparedId(const std::string& group_id, uint32_t member);
bool IsComplete(const v1::Group& group);
v1::PartFailure ToProto(const absl::Status& status);
absl::Status FromProto(const v1::PartFailure& failure);

}  // namespace rekindle::daemon
