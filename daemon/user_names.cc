#include "daemon/user_names.h"

#include <pwd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

// Calls a function of the getpw…_r family with a buffer that is large enough.
template <typename Lookup>
absl::StatusOr<std::optional<User>> LookUpUser(Lookup look_up) {
  constexpr size_t kLargestEntry = size_t{1} << 20;
  for (std::vector<char> buffer(1024);; buffer.resize(buffer.size() * 2)) {
    passwd entry;
    passwd* found = nullptr;
    int error = look_up(&entry, buffer.data(), buffer.size(), &found);
    if (error == ERANGE && buffer.size() < kLargestEntry) continue;
    if (found != nullptr) return User{found->pw_name, found->pw_uid, found->pw_gid};
    // Which of these means "no such user" differs between databases.
    if (error == 0 || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM)
      return std::nullopt;
    return ErrnoStatus(error, "looking for a user");
  }
}

}  // namespace

absl::StatusOr<std::optional<User>> FindUser(uid_t uid) {
  return LookUpUser([uid](passwd* entry, char* buffer, size_t size, passwd** found) {
    return ::getpwuid_r(uid, entry, buffer, size, found);
  });
}

std::string UserName(uid_t uid) {
  const absl::StatusOr<std::optional<User>> user = FindUser(uid);
  return user.ok() && *user ? (*user)->name : "";
}

absl::StatusOr<uid_t> UserOfText(const std::string& text) {
  uint32_t uid = 0;
  if (absl::SimpleAtoi(text, &uid)) {
    if (uid != static_cast<uid_t>(-1)) return uid;
    return absl::InvalidArgumentError(absl::StrCat(
        "no user has the number ", text, ", which for the kernel says 'none': give another, or a name"));
  }
  RK_ASSIGN_OR_RETURN(auto user, LookUpUser([&](passwd* entry, char* buffer, size_t size, passwd** found) {
                        return ::getpwnam_r(text.c_str(), entry, buffer, size, found);
                      }));
  if (user) return user->uid;
  return absl::NotFoundError(
      absl::StrCat("this machine knows no user '", text, "': give the name of one, or a number"));
}

}  // namespace rekindle::daemon
