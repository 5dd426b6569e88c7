#include "base/file_rights.h"

#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "base/parallel.h"
#include "base/status.h"

namespace rekindle {
namespace {

// System calls as they are: they change the calling thread alone, where the C library's wrappers would change
// all.
absl::Status TakeRights(const Owner& owner) {
  const auto failed = [&] {
    return ErrnoStatus(errno, absl::StrCat("taking the rights of user ", owner.uid, " over files"));
  };
  if (::syscall(SYS_setgroups, owner.groups.size(), owner.groups.data()) != 0) return failed();
  ::setfsgid(owner.gid);
  ::setfsuid(owner.uid);
  // They say nothing of failure; asked for an impossible one, they return the present.
  if (::setfsgid(static_cast<gid_t>(-1)) != static_cast<int>(owner.gid) ||
      ::setfsuid(static_cast<uid_t>(-1)) != static_cast<int>(owner.uid)) {
    errno = EPERM;
    return failed();
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capset, &header, none) != 0) return failed();
  return absl::OkStatus();
}

}  // namespace

absl::Status WithFileRightsOf(const Owner& owner, const std::function<absl::Status()>& work) {
  if (owner.uid == ::geteuid()) return work();
  if (::geteuid() != 0) {
    return absl::PermissionDeniedError(absl::StrCat("working on files of user ", owner.uid, " as user ",
                                                    ::geteuid(), ": only a service that runs as root can"));
  }
  return CatchNoMoreThreads([&] {
    absl::Status status;
    // Rights belong to a thread: one that ends here takes them with it.
    std::thread([&] {
      status = TakeRights(owner);
      if (status.ok()) status = work();
    }).join();
    return status;
  });
}

}  // namespace rekindle
