#include "base/proc_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle {
namespace {

ssize_t ReadSome(int fd, char* to, size_t most) {
  ssize_t n;
  do {
    n = ::read(fd, to, most);
  } while (n < 0 && errno == EINTR);
  return n;
}

}  // namespace

std::string BeginningOfFile(const std::string& path, size_t most) {
  std::string text;
  const auto file = OpenFile(path, O_RDONLY);
  if (!file.ok()) return text;
  size_t used = 0;
  while (used < most) {
    text.resize(std::min(most, std::max<size_t>(4096, used * 2)));
    const ssize_t n = ReadSome(file->get(), text.data() + used, text.size() - used);
    if (n < 0) return "";
    if (n == 0) break;
    used += static_cast<size_t>(n);
  }
  text.resize(used);
  return text;
}

std::string EnvironmentOf(pid_t pid) {
  // The most that the kernel gives to a program that begins; later the process may make it longer.
  constexpr size_t kMostBytes = 6 << 20;
  return BeginningOfFile(absl::StrCat("/proc/", pid, "/environ"), kMostBytes);
}

void ForEachLineOf(const std::string& path, absl::FunctionRef<bool(absl::string_view)> visit) {
  const auto file = OpenFile(path, O_RDONLY);
  if (!file.ok()) return;
  std::string text;
  char buffer[16384];
  for (ssize_t n; (n = ReadSome(file->get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      if (!visit(absl::string_view(text).substr(begin, end - begin))) return;
    }
    text.erase(0, begin);
  }
  if (!text.empty()) visit(text);
}

}  // namespace rekindle
