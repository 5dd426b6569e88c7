#include "restore/pager_name.h"

#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "restore/pager_protocol.h"

namespace rekindle::restore {

PagerName::PagerName(int listener) : listener_(listener) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
      size > offsetof(sockaddr_un, sun_path) && address.sun_path[0] == '/') {
    path_ = address.sun_path;
  }
}

bool PagerName::GiveUp(const std::function<bool()>& somebody_is_here) {
  if (path_.empty()) return !somebody_is_here();
  const auto lock =
      LockFile(absl::StrCat(path_.substr(0, path_.rfind('/') + 1), kPagerLock), LOCK_EX | LOCK_NB);
  if (!lock.ok()) return false;
  // Aside, as one that is removed does not come back.
  const std::string aside = absl::StrCat(path_, kEndingPagerSuffix);
  if (::rename(path_.c_str(), aside.c_str()) != 0 && errno != ENOENT) return false;
  pollfd waiting{listener_, POLLIN, 0};
  if (::poll(&waiting, 1, 0) != 0 || somebody_is_here()) {
    ::rename(aside.c_str(), path_.c_str());
    return false;
  }
  ::unlink(aside.c_str());
  return true;
}

}  // namespace rekindle::restore
