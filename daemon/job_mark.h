// The mark of a supervised job: the name of its file of progress (RUNTIME/progress/MARK), whose path its
// processes carry in their environment. By it those are found that are not in its session any more. It is of
// one submission, NAME+RANDOM; but the environment is part of images, so what else is restored from one of
// them carries it too: other jobs, clones, and a job that is submitted to go on from one (--from), whose mark
// it becomes.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::daemon {

// One that no job has yet.
std::string NewJobMark(absl::string_view job_name);

// Is it the name of such a file, whoever chose it? No job's name is one.
bool IsJobMark(absl::string_view text);

// The one that an image's processes carry; empty: none that is known.
std::string MarkOfImage(const std::map<std::string, std::string>& labels);

// Who is at work with processes of a mark: what a restore has made is no job's yet, and must not be ended as
// what is left of another one. Thread-safe.
class MarkUses {
 public:
  // Gives back what it stands for when it goes. Movable.
  class [[nodiscard]] Use {
   public:
    Use() = default;
    Use(MarkUses& uses, std::string mark, std::string job, bool ends)
        : uses_(&uses), mark_(std::move(mark)), job_(std::move(job)), ends_(ends) {}
    Use(Use&& other) noexcept { *this = std::move(other); }
    Use& operator=(Use&& other) noexcept;
    ~Use();

    explicit operator bool() const { return uses_ != nullptr; }

   private:
    MarkUses* uses_ = nullptr;
    std::string mark_, job_;
    bool ends_ = false;
  };

  // An image whose processes carry it is being restored as job `job` (empty: its name is found later). Waits
  // until nobody ends processes by it. An empty mark is nobody's.
  Use Restore(const std::string& mark, const std::string& job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Processes of `job` are to be ended by it. False: another job with it is just being restored.
  Use End(const std::string& mark, const std::string& job) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void GiveBack(const std::string& mark, const std::string& job, bool ends) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  std::map<std::string, std::multiset<std::string>> restoring_ ABSL_GUARDED_BY(mutex_);  // jobs by mark
  std::multiset<std::string> ending_ ABSL_GUARDED_BY(mutex_);                            // marks
};

}  // namespace rekindle::daemon
