// Templates: a live, parked copy of an image from which further copies are forked, so that they share its
// memory copy-on-write. The runtime hook in the copy does the forking (docs/hook.md).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "restore/answer_patience.h"
#include "restore/clone.h"
#include "restore/standby.h"
#include "restore/touched_pages.h"

namespace rekindle::restore {

// Thread-safe.
class Template {
 public:
  // `started` is what CloneStarter::Start gave for an image with the hook and
  // CloneOptions::template_instance; its sandbox's control socket stays with the caller. Waits until the
  // template serves, or says why it can't (refusal()). `standby_size`: copies that are forked before anybody
  // asks for them, while the template is in use.
  static absl::StatusOr<std::unique_ptr<Template>> Take(CloneResult& started,
                                                        const std::string& runtime_directory,
                                                        size_t standby_size, int cancel_fd);
  // Takes it down: it ends, what was forked from it goes on.
  ~Template();

  // Why it can't be forked; empty: it can.
  const std::string& refusal() const { return refusal_; }
  // Of memory, that what its ready sandboxes begin with takes.
  uint64_t ready_bytes() const;

  // A copy of the template as it is, in a sandbox inside of the template's: it answers on its own channel. Of
  // the options it takes name, environment, network, limits, binds. FailedPrecondition: the template can't be
  // forked as it is now. DeadlineExceeded: it does not answer, for several times as long as it usually takes,
  // and was killed; what was forked from it goes on. Unavailable: it has ended.
  absl::StatusOr<CloneResult> Fork(const CloneOptions& options) ABSL_LOCKS_EXCLUDED(mutex_, channel_mutex_);
  // It has ended: nothing will be forked from it any more.
  bool lost() const;

  // A copy that was forked with these options has answered: what it has touched until now is what the next
  // ones get at once. Of no effect once that is known. Does not wait.
  void HasAnswered(const UniqueFd& root, const CloneOptions& options) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Template() = default;
  // With `park` it waits for whoever wants it, and gets all that is his in the end.
  absl::StatusOr<CloneResult> MakeCopy(const CloneOptions& options, bool grouped,
                                       const StandbyPool::Park& park);
  absl::Status Personalize(const CloneOptions& options, Sandbox& sandbox, Cgroup* group);
  // A copy that waits goes on as what `options` say.
  static absl::Status Wake(int channel, const Sandbox& sandbox, const CloneOptions& options);
  struct Answered {
    UniqueFd root;
    CloneOptions options;
  };
  void Learn(const Answered& copy) ABSL_LOCKS_EXCLUDED(mutex_);
  void WantMore(const CloneOptions& options) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Sandbox> TakeSandbox(Network network) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Sandbox> MakeSandbox(Network network) ABSL_LOCKS_EXCLUDED(control_mutex_);
  void Refill() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On the channel, whose turn it is.
  absl::Status AwaitForked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(channel_mutex_);
  absl::Status AskToFork(const CloneOptions& options, const Sandbox& sandbox, int channel,
                         const Cgroup* group, bool wait) ABSL_LOCKS_EXCLUDED(mutex_, channel_mutex_);

  uint64_t FileBytes() const;

  std::string refusal_, directory_;
  OwnPlaces own_;     // as each copy has them
  pid_t pid_ = 0;     // of the template within its sandbox, and so of each copy in its own
  UniqueFd process_;  // its pidfd
  std::atomic<bool> given_up_{false};
  bool knows_waiting_ = false;  // its hook is new enough for copies that wait, and lists of pages

  absl::Mutex control_mutex_;  // one request at a time
  UniqueFd control_ ABSL_GUARDED_BY(control_mutex_);
  absl::Mutex channel_mutex_;
  UniqueFd channel_ ABSL_GUARDED_BY(channel_mutex_);
  AnswerPatience patience_ ABSL_GUARDED_BY(channel_mutex_);

  absl::Mutex mutex_;
  std::deque<Sandbox> ready_ ABSL_GUARDED_BY(mutex_);  // with the service's network
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool failing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Answered> answered_ ABSL_GUARDED_BY(mutex_);  // to be learned from
  bool learned_ ABSL_GUARDED_BY(mutex_) = false;
  int parts_ ABSL_GUARDED_BY(mutex_) = 0;  // copies that ended while they were looked at
  std::shared_ptr<const UniqueFd> touch_list_ ABSL_GUARDED_BY(mutex_);
  uint64_t own_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of a copy that has answered
  std::thread thread_;
  std::unique_ptr<StandbyPool> standby_;  // null: none
};

}  // namespace rekindle::restore
