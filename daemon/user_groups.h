// The users of this machine, and the groups that they are in, as its user database has them.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rekindle::daemon {

struct UserGroups {
  gid_t group = 0;            // the user's own
  std::vector<gid_t> groups;  // all, sorted
};

// Nothing: the machine does not know the user, or the database can't be asked. May take as long as a
// directory service that is far away. Thread-safe.
std::optional<UserGroups> GroupsOfUser(uid_t uid);

// By name, or by number, which needs to be nobody's. Unavailable: there is none now, or the database can't be
// asked. Which of the two nobody knows: a directory service that is not up yet has no groups. Thread-safe.
absl::StatusOr<gid_t> FindGroup(const std::string& name);

// What was found is told again for some time. Thread-safe; users that are known wait for nobody.
class KnownGroups {
 public:
  explicit KnownGroups(absl::Duration for_time) : for_time_(for_time) {}

  std::optional<UserGroups> Of(uid_t uid) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Known {
    std::optional<UserGroups> groups;
    absl::Time until;
  };
  const absl::Duration for_time_;
  absl::Mutex mutex_;
  std::map<uid_t, Known> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
