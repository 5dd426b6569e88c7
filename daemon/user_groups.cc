#include "daemon/user_groups.h"

#include <grp.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "daemon/user_names.h"

namespace rekindle::daemon {
namespace {

constexpr size_t kMostOfEntry = size_t{1} << 20;  // a group's has the names of its members

}  // namespace

std::optional<UserGroups> GroupsOfUser(uid_t uid) {
  const absl::StatusOr<std::optional<User>> found = FindUser(uid);
  if (!found.ok() || !*found) return std::nullopt;
  const auto& [name, number, group] = **found;
  UserGroups user;
  user.group = group;
  // It says how many there are, which may be more by the next time.
  int count = 64;
  for (int room = 0; room < count;) {
    room = count;
    user.groups.resize(static_cast<size_t>(room));
    ::getgrouplist(name.c_str(), group, user.groups.data(), &count);
  }
  user.groups.resize(static_cast<size_t>(count));
  std::sort(user.groups.begin(), user.groups.end());
  return user;
}

absl::StatusOr<gid_t> FindGroup(const std::string& name) {
  gid_t number = 0;
  if (absl::SimpleAtoi(name, &number)) return number;
  group entry{}, *found = nullptr;
  std::vector<char> buffer(size_t{64} << 10);
  int error = 0;
  while ((error = ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found)) == ERANGE &&
         buffer.size() < kMostOfEntry) {
    buffer.resize(buffer.size() * 2);
  }
  if (found != nullptr) return found->gr_gid;
  const std::string what = absl::StrCat("finding group '", name, "'");
  const absl::Status why = error != 0
                               ? ErrnoStatus(error, what)
                               : absl::NotFoundError(absl::StrCat(what, ": there is none of that name now"));
  return absl::UnavailableError(absl::StrCat(
      why.message(),
      "; add it with groupadd, or name another; one of a directory service is there once that is up"));
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
