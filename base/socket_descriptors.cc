#include "base/socket_descriptors.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/opened_files.h"

namespace rekindle {

std::optional<uint64_t> SocketInode(absl::string_view target) {
  uint64_t inode = 0;
  if (!absl::ConsumePrefix(&target, "socket:[") || !absl::ConsumeSuffix(&target, "]") ||
      !absl::SimpleAtoi(target, &inode)) {
    return std::nullopt;
  }
  return inode;
}

void ForEachSocketOf(pid_t pid, absl::FunctionRef<bool(int descriptor, uint64_t inode)> found) {
  const auto descriptors = ForeignDescriptorsOf(pid);
  for (const ForeignDescriptor& descriptor : descriptors.value_or(std::vector<ForeignDescriptor>())) {
    char target[64];
    const ssize_t n = ::readlink(descriptor.link().c_str(), target, sizeof target);
    const auto inode =
        n > 0 ? SocketInode(absl::string_view(target, static_cast<size_t>(n))) : std::optional<uint64_t>();
    if (inode && !found(descriptor.number, *inode)) return;
  }
}

}  // namespace rekindle
