#include "daemon/user_groups.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"

namespace rekindle::daemon {

std::optional<UserGroups> GroupsOfUser(uid_t uid) {
  constexpr size_t kLargestEntry = size_t{1} << 20;
  passwd entry{}, *found = nullptr;
  std::vector<char> buffer(size_t{16} << 10);
  while (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == ERANGE &&
         buffer.size() < kLargestEntry) {
    buffer.resize(buffer.size() * 2);
  }
  if (found == nullptr) return std::nullopt;
  UserGroups user;
  user.group = found->pw_gid;
  // It says how many there are, which may be more by the next time.
  int count = 64;
  for (int room = 0; room < count;) {
    room = count;
    user.groups.resize(static_cast<size_t>(room));
    ::getgrouplist(found->pw_name, found->pw_gid, user.groups.data(), &count);
  }
  user.groups.resize(static_cast<size_t>(count));
  std::sort(user.groups.begin(), user.groups.end());
  return user;
}

std::optional<UserGroups> KnownGroups::Of(uid_t uid) {
  {
    absl::MutexLock lock(&mutex_);
    const auto known = known_.find(uid);
    if (known != known_.end() && SteadyNow() < known->second.until) return known->second.groups;
  }
  std::optional<UserGroups> groups = GroupsOfUser(uid);
  const absl::Time now = SteadyNow();
  absl::MutexLock lock(&mutex_);
  std::erase_if(known_, [now](const auto& known) { return known.second.until <= now; });
  known_[uid] = {groups, now + for_time_};
  return groups;
}

}  // namespace rekindle::daemon
