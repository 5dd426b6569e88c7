#include "daemon/listener_note.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::daemon {
namespace {

constexpr size_t kLongestNote = 4096;

}  // namespace

std::string ListenerLockPath(const std::string& socket) { return absl::StrCat(socket, ".lock"); }

absl::Status WriteListenerNote(int lock, const std::string& note, const std::string& socket) {
  const std::string path = ListenerLockPath(socket);
  if (::ftruncate(lock, 0) != 0) return ErrnoStatus(errno, path);
  return WriteFully(lock, note.data(), note.size(), path);
}

std::string NoteOfListener(const std::string& socket) {
  const absl::StatusOr<UniqueFd> lock =
      OpenFile(ListenerLockPath(socket), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  struct stat info;
  if (!lock.ok() || ::fstat(lock->get(), &info) != 0 || info.st_uid != ::geteuid() || !S_ISREG(info.st_mode))
    return "";
  std::string note(kLongestNote, '\0');
  const ssize_t got = ::pread(lock->get(), note.data(), note.size(), 0);
  note.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return note;
}

}  // namespace rekindle::daemon
